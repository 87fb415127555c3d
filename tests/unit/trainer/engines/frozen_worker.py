"""`python -m tests.unit.trainer.engines.frozen_worker FOLDER`: a reference and a reward model, each by vLLM in a
process of its own.

They are forked from one that has imported vLLM, so that it is imported once. Each writes what it computes of
`sequences.json`, of which only the reference asks which tokens were sampled, to `<role>.json`, then stays until its
engine dies; `codes.json` has their exit codes.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: F401  imported before the forks

from rlhf_api.contract.run import RunConfig
from rlhf_api.roles import Role
from rlhf_trainer.engines.vllm.frozen import FrozenModel
from rlhf_trainer.tensors.records import Sequences

LONGEST = 128
TEMPERATURE = 0.7
COUNT = 30
"""Most probable tokens: more than vLLM gives unless it is asked to."""


def work(folder: Path, role: Role) -> None:
    os.environ["RLHF_TERMINATION_LOG"] = str(folder / f"{role.value}.end")
    config = RunConfig.model_validate_json((folder / "run.json").read_bytes())
    given = json.loads((folder / "sequences.json").read_text())
    sampled = torch.tensor(given["sampled"]) if role is Role.REFERENCE else None
    sequences = replace(Sequences.pack([tuple(row) for row in given["rows"]]), sampled=sampled)
    temperature, most = (TEMPERATURE, COUNT) if role is Role.REFERENCE else (1.0, 0)
    model = FrozenModel.of(config, role, LONGEST, temperature, most)
    compute = model.logprobs if role is Role.REFERENCE else model.scores
    outputs = {"found": compute(sequences).tolist()}
    if most:
        outputs["top"] = model.logprobs(sequences, most).tolist()
    write(folder / f"{role.value}.json", {**outputs, "trouble": model.restart_reason(), "pid": os.getpid()})
    time.sleep(600)


def write(file: Path, content: object) -> None:
    """All at once: the test looks whether it is there."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(content))
    partial.rename(file)


def main() -> None:
    folder = Path(sys.argv[1])
    children = []
    for role in (Role.REFERENCE, Role.REWARD):
        pid = os.fork()
        if pid == 0:
            work(folder, role)
            os._exit(1)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    write(folder / "codes.json", codes)


if __name__ == "__main__":
    main()
