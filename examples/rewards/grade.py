"""Grades a response that is the body of a function: exit code 0 if the row's tests pass.

The tests run here. The function runs in the candidate's sandbox, which sees neither row nor tests: it reads calls from
this program's stdout, and its replies are this program's stdin. Whatever it does, it can only reply with values, and
the tests compare them.
"""

import json
from pathlib import Path
from typing import Any

CANDIDATE = """
import json, os

replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the response prints is no reply
names = {{}}
exec({code!r}, names)
function = names[{function!r}]
while True:
    print(json.dumps(function(*json.loads(input()))), file=replies, flush=True)
"""


def call(*arguments: Any) -> Any:
    """The function's result, as JSON has it: a tuple is a list. Raises EOFError if the candidate has ended."""
    print(json.dumps(arguments), flush=True)
    return json.loads(input())


row = json.loads(Path("row.json").read_text())
code = row["prompt"] + Path("response.txt").read_text()
print(repr(CANDIDATE.format(code=code, function=row["function"])), flush=True)
exec(row["tests"], {row["function"]: call})
