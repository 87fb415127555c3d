"""Repeats a step of a run, and prints each result beside the recorded one."""

import argparse
import sys
from collections.abc import Iterator, Sequence

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from rlhf_api.contract.run import RunConfig
from rlhf_api.host.printing import write_line

from ..training.repeated_step import RepeatedStep, repeat_step
from .reporting import report_errors


def report_lines(repeated: RepeatedStep) -> Iterator[str]:
    """The report on a repeated step, for people."""
    yield f"step {repeated.step} again, from the checkpoint before it, on its {repeated.responses} responses:"
    width = max(len(each.name) for each in repeated.results)
    for each in repeated.results:
        result = "the same, bit for bit" if each.is_equal else f"differs by up to {each.difference:.3g}"
        yield f"  {each.name:<{width}}  {result}"
    if repeated.sampling is not None:
        nats = f"{repeated.sampling:.2g} nats"
        yield f"  the sampler's log-probabilities are within {nats} of the policy's before the step"
    if all(each.is_equal for each in repeated.results):
        yield "the checkpoint is what this code makes of these responses"
    else:
        yield (
            "the checkpoint is not bit for bit what this code makes of these responses: other code, another number of "
            "ranks, or kernels that add in another order (spec.trainer.deterministic)"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int)
    options = parser.parse_args(arguments)
    config = RunConfig.model_validate_json(sys.stdin.read())
    disable_progress_bar()
    set_verbosity_error()  # a critic's new head is replaced by the checkpoint's
    return report_errors(lambda: _print(repeat_step(config, options.step)))


def _print(repeated: RepeatedStep) -> int:
    for line in report_lines(repeated):
        write_line(line, sys.stdout)
    return 0 if all(each.is_equal for each in repeated.results) else 1
