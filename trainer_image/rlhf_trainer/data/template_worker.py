"""Process that compiles and renders chat templates, which are a stranger's programs: `python3 -m
rlhf_trainer.data.template_worker`.

Each line of its standard input is a request: seconds, conversations, arguments of `render_jinja_template`; without
conversations it only compiles the template, which is kept. Each line of its standard output is a reply. What takes more
than these seconds of processor time ends this process by SIGPROF, the system's time for it included: no template
catches it, nor any computation within one statement, such as a constant's. Imports no torch.
"""

import json
import signal
import sys
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from ..process.limits import limit_memory

MEMORY = 1 << 30
"""Memory beside what its modules take, bytes."""
LONGEST = 16 << 20
"""Characters of a rendered conversation."""


def reply(conversations: list[Any], arguments: dict[str, Any]) -> dict[str, str]:
    try:
        rendered: Any = render_jinja_template(conversations=conversations, **arguments)
        text = "".join(rendered[0])
    except MemoryError:
        return {"limit": f"it takes more than {MEMORY >> 20} MiB of memory"}
    except Exception as error:  # Jinja's errors, and exceptions raised by the template
        return {"error": f"{type(error).__name__}: {str(error)[:1000]}"}
    if len(text) > LONGEST:
        return {"limit": f"it makes {len(text)} characters, more than {LONGEST}"}
    return {"text": text}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of its input ends it
    limit_memory(MEMORY)
    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        seconds, conversations, arguments = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = json.dumps(reply(conversations, arguments))
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(f"{answer}\n")
        replies.flush()


if __name__ == "__main__":
    main()
