"""An executor on several ranks: `executor_worker.py OUT`, with torchrun's environment; writes OUT/<rank>.json."""

import json
import sys
import threading
from pathlib import Path

import torch
from tests.unit.trainer.graph.test_executor import PATIENCE, REFER, columns, executor, logprobs, scores
from torch import distributed

from rlhf_api.graph import Compute, Score, reward_column
from rlhf_trainer.dispatch.roster import Stopped
from rlhf_trainer.ops import OpContext
from rlhf_trainer.process import timeline
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Sequences

order: list[str] = []
referred = threading.Event()


def of_scores(columns: Columns, _ctx: OpContext) -> Columns:
    order.append("of_scores")
    return columns.with_rows(of_scores=columns["scores"])


def of_reference(columns: Columns, _ctx: OpContext) -> Columns:
    order.append("of_reference")
    referred.set()
    return columns.with_tokens(of_reference=columns["reference_logprobs"])


def late(sequences: Sequences, rows: object) -> dict[str, torch.Tensor]:
    """Scores that come only after what follows from the reference, with those of a single reward."""
    assert referred.wait(PATIENCE)
    together = scores(sequences, rows)
    return {"scores": together, reward_column("length"): together / 2}


def stops(*_given: object) -> torch.Tensor:
    raise Stopped("the host asked for it")


def node(name: str, reads: str) -> Compute:
    return Compute(name=name, function=f"{__name__}:{name}", reads=(reads,), writes=(name,))


def main(out: Path) -> None:
    distributed.init_process_group("gloo")
    ranks = Ranks(distributed.get_rank(), distributed.get_world_size(), torch.device("cpu"))
    calls = {"score": late, "refer": logprobs} if ranks.first else {}
    score = Score(writes=("scores", reward_column("length")))
    nodes = (score, node("of_scores", "scores"), REFER, node("of_reference", "reference_logprobs"))
    timeline.SHORTEST = 0.0
    timeline.RECORDER.begin_step()
    computed = executor(*nodes, ranks=ranks, **calls).run(columns())
    times = {span.what for span in timeline.RECORDER.take_step(ranks.rank)[1]}
    stopped = ""
    try:
        executor(*nodes, ranks=ranks, **({**calls, "score": stops} if calls else {})).run(columns())
    except Stopped as error:
        stopped = str(error)
    report = {
        "order": order[:2],
        "columns": {name: computed[name].tolist() for name in ("reference_logprobs", *score.writes)},
        "stopped": stopped,
        "waited": sorted(what for what in times if what.startswith("wait")),
    }
    (out / f"{ranks.rank}.json").write_text(json.dumps(report))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
