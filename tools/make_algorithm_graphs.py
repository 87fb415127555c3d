"""Fills the graphs of docs/reference/algorithms.md: what `rlhf graph` prints for each `<!-- rlhf graph NAME -->`.

.venv/bin/python tools/make_algorithm_graphs.py
"""

import contextlib
import io
import re
from pathlib import Path

from rlhf_operator import cli

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "algorithms.md"
_BLOCK = re.compile(r"(<!-- rlhf graph (\w+) -->\n)(?:```mermaid\n.*?```\n)?", flags=re.S)


def drawn(name: str) -> str:
    """Output of `rlhf graph NAME`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["graph", name]) == 0
    return out.getvalue()


def filled(text: str) -> str:
    """The page with the graphs as they are now."""
    return _BLOCK.sub(lambda match: f"{match[1]}```mermaid\n{drawn(match[2])}```\n", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
