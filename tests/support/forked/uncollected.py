"""Imported first where others are forked from: nothing is collected as garbage until they begin, as in a role
(rlhf_trainer/roles/__init__.py)."""

import gc

gc.disable()
