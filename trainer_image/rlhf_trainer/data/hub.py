"""A split of a dataset of the hub: Parquet files, to which the hub converts every dataset, on a branch of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RevisionNotFoundError

from rlhf_api.errors.problem import InvalidJob, Problem, first_line
from rlhf_api.host.model_directory import HUB_SECONDS
from rlhf_api.sections.data import HUB_URL

BRANCH = "refs/convert/parquet"


class Unreachable(OSError):
    """The hub gave no answer."""


class Split(NamedTuple):
    """Files of a split, by their names in a revision of the dataset."""

    dataset: str
    revision: str
    files: Sequence[str]


def find_split(url: str) -> Split:
    """Asks the hub for the files of `hf://OWNER/NAME[/CONFIGURATION]:SPLIT`. Raises Unreachable without an answer, and
    InvalidJob where there is no such split."""
    match = HUB_URL.fullmatch(url)
    assert match, url
    name, configuration, split = match["name"], match["configuration"], match["split"]
    try:
        info = HfApi().dataset_info(name, revision=BRANCH, timeout=HUB_SECONDS)
    except RevisionNotFoundError:
        message = "the hub has not converted it to Parquet; download its files and name them"
        raise InvalidJob([Problem(url, message)]) from None
    except HfHubHTTPError as error:
        fix = "correct the name, or give a token (HF_TOKEN)"
        message = f"the hub does not serve it: {first_line(error)}; {fix}"
        raise InvalidJob([Problem(url, message)]) from None
    except HFValidationError as error:
        raise InvalidJob([Problem(url, f"names no dataset: {first_line(error)}")]) from None
    except Exception as error:  # of whichever HTTP library it has
        raise Unreachable(first_line(error)) from error
    named = (Path(file.rfilename) for file in info.siblings or ())
    parts = [file.parts for file in named if file.suffix == ".parquet" and len(file.parts) == 3]
    splits = sorted({(folder[0], folder[1]) for folder in parts if ".." not in folder})
    fitting = [a for a, b in splits if b == split and configuration in (None, a)]
    chosen = fitting if len(fitting) == 1 else [a for a in fitting if a == "default"]
    if not chosen:
        what = f"has the split {split!r} in several configurations" if fitting else "has no such split"
        there = ", ".join(f"hf://{name}/{a}:{b}" for a, b in splits) or "no file"
        raise InvalidJob([Problem(url, f"{what}; there is {there}")])
    files = sorted("/".join(folder) for folder in parts if folder[:2] == (chosen[0], split))
    return Split(name, info.sha or BRANCH, files)


def download(split: Split, folder: Path) -> list[Path]:
    """Downloads the files into a folder. Raises Unreachable."""
    try:
        return [
            Path(
                hf_hub_download(
                    split.dataset, file, repo_type="dataset", revision=split.revision, local_dir=folder
                )
            )
            for file in split.files
        ]
    except Exception as error:
        raise Unreachable(first_line(error)) from error


def problem(url: str, error: Unreachable) -> InvalidJob:
    """The problem of a dataset whose hub gives no answer, where there is no copy either."""
    mirror = "set HF_ENDPOINT to a mirror, or download its files and name them"
    message = f"the hub at {constants.ENDPOINT} cannot be reached: {error}; {mirror}"
    return InvalidJob([Problem(url, message)])
