"""Reads and decodes the images of rows, which may be a stranger's: few formats, bounded bytes and pixels."""

import base64
import binascii
import warnings
from io import BytesIO
from pathlib import Path, PurePosixPath

from PIL import Image, ImageOps, UnidentifiedImageError

from rlhf_api.dataset.images import DATA
from rlhf_api.errors.problem import InvalidJob, Problem, first_line, show
from rlhf_api.field_types import SCHEMES
from rlhf_api.host.foreign_files import read_regular

from .copies import local_file

LARGEST = 32 << 20
"""Maximum size of an image's file, bytes."""
MOST_PIXELS = 64 << 20
"""Maximum number of pixels of an image, which takes three bytes for each when it is decoded."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Formats that are read, by Pillow's names: its readers of others start programs, or are rarely used."""


def placed(reference: str, folder: str) -> str:
    """The image's path or URL, of a row in a file of rows in `folder`: a path or the URL of a store; '' for rows that a
    function returns, or of the hub. Bytes stay as they are. Raises ValueError for what lies elsewhere."""
    if reference.startswith(DATA):
        return reference
    scheme, url, _ = reference.partition("://")
    if url and scheme not in SCHEMES:
        stores = ", ".join(f"{known}://" for known in SCHEMES)
        raise ValueError(f"an image's URL begins with {stores}; download it; got {show(reference)}")
    if not folder:
        raise ValueError(
            f"an image of a function's row, or of the hub, is given as its bytes; got {show(reference)}"
        )
    if "://" in folder or url:
        whole = reference if url else f"{folder}/{reference}"
        if whole.startswith(f"{folder}/") and ".." not in PurePosixPath(whole).parts:
            return whole
    else:
        path, inside = Path(folder, reference).resolve(), Path(folder).resolve()
        if path.is_relative_to(inside):
            return str(path)
    raise ValueError(
        f"an image lies in the folder of its file of rows, {folder}, or below; got {show(reference)}"
    )


def read_image(where: str) -> Image.Image:
    """The image of `placed`, upright and in RGB. Raises ValueError for what is no image of FORMATS, or too large."""
    data = _bytes(where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own of many pixels, which are refused below
            image = Image.open(BytesIO(data), formats=FORMATS)
        if (pixels := image.width * image.height) > MOST_PIXELS:
            raise ValueError(f"has {pixels:,} pixels, and {MOST_PIXELS:,} are the most")
        return ImageOps.exif_transpose(image).convert("RGB")
    except Image.DecompressionBombError:
        raise ValueError(f"has more than {MOST_PIXELS:,} pixels, which are the most") from None
    except UnidentifiedImageError:  # whose text is an object's address, another on each rank
        raise ValueError(f"is no image of {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, EOFError) as error:  # of files that end early
        raise ValueError(f"is no image of {', '.join(FORMATS)}: {first_line(error)}") from None


def _bytes(where: str) -> bytes:
    if where.startswith(DATA):
        text = where.removeprefix(DATA)
        if len(text) > LARGEST * 4 // 3 + 4:
            raise ValueError(f"is larger than {LARGEST >> 20} MiB")
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"is no base64: {error}") from None
    try:
        return read_regular(local_file(where) if "://" in where else Path(where), LARGEST)
    except InvalidJob as error:
        raise ValueError(error.problems[0].message) from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def named(where: str) -> str:
    """An image's name in messages."""
    return "an image's bytes" if where.startswith(DATA) else where


def problem(where: str, error: ValueError) -> InvalidJob:
    return InvalidJob([Problem(named(where), str(error))])
