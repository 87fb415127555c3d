"""Grades a response that is the body of a function: exit code 0 where the row's tests pass.

Runs in the sandbox: the response comes on stdin, the dataset's row is row.json.
"""

import json
import sys
from pathlib import Path

row = json.loads(Path("row.json").read_text())
names: dict[str, object] = {}
exec(row["prompt"] + sys.stdin.read(), names)
exec(row["tests"], names)
