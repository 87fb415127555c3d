"""The roles of a job, a module each, which a host runs with `python -m`.

Until `run_role` nothing is collected as garbage: imports make hundreds of thousands of objects that stay, and to look
at them again and again takes a fifth of a role's start.
"""

import gc
import sys

if sys.argv[0] == "-m":  # Python's own, while it looks for the module that it is to run
    gc.disable()
