"""RLHF runs from Python: the manifest, the words and the errors of the command line `rlhf` (docs/guides/python.md).

from rlhf import Job

run = Job.load("job.yaml").set({"optimizer.learningRate": 1e-5}, steps=100).run()
for step in run:
    print(step["step"], step["reward_mean"])
"""

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_operator.console.exits import Failure

from .job import Job
from .run import Run

__all__ = ["Failure", "InvalidJob", "Job", "Problem", "Run"]
