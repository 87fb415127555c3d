"""Process that renders chat templates, which are a stranger's programs: `python3 -m rlhf_trainer.data.template_worker`.

Each line of its standard input is a request, each of its standard output a reply. A rendering that takes too long ends
this process by SIGPROF: no template catches it, nor any computation within one statement. Imports no torch.
"""

import json
import signal
import sys
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from ..process.memory_limit import limit_memory

SECONDS = 0.8
"""Computing time of one rendering, the system's for it included: a refusal comes within a second."""
MEMORY = 1 << 30
"""Memory beside what its modules take, bytes."""
LONGEST = 16 << 20
"""Characters of a rendered conversation."""


def reply(request: dict[str, Any]) -> dict[str, str]:
    try:
        rendered: Any = render_jinja_template(conversations=[request.pop("messages")], **request)
        text = rendered[0][0]
    except MemoryError:
        return {"error": f"it takes more than {MEMORY >> 20} MiB of memory"}
    except Exception as error:  # Jinja's errors, and exceptions raised by the template
        return {"error": f"{type(error).__name__}: {str(error)[:1000]}"}
    if len(text) > LONGEST:
        return {"error": f"it makes {len(text)} characters, more than {LONGEST}"}
    return {"text": text}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of its input ends it
    limit_memory(MEMORY)
    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        answer = json.dumps(reply(json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(f"{answer}\n")
        replies.flush()


if __name__ == "__main__":
    main()
