"""The first parts of examples with which several tests go on, run once for all of them as a user runs them."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from examples.sentiment import make_data
from tests.support.rlhf import ROOT, SENTIMENT, Finished, imitate, succeed

ARITHMETIC = ROOT / "examples" / "arithmetic"


@dataclass(frozen=True)
class Chain:
    """The finished runs whose models PPO starts from."""

    sft: Finished
    reward: Finished

    @property
    def overrides(self) -> tuple[str, str]:
        """Overrides with which the shipped `ppo.yaml` starts from these models."""
        return (
            f"spec.model.policy={self.sft.workdir / 'policy'}",
            f"spec.model.reward={self.reward.workdir / 'policy'}",
        )


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    folder: Path = tmp_path_factory.mktemp("chain")
    pairs = held_out_pairs()
    answers = [{"prompt": pair["prompt"], "answer": pair["chosen"]} for pair in pairs]
    for name, rows in {"answers": answers, "pairs": pairs}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = f"spec.evaluation={{data: [{folder / 'answers.jsonl'}], everySteps: 100}}"
    sft = succeed(SENTIMENT / "sft.yaml", folder / "sft", judged)
    reward = succeed(
        SENTIMENT / "reward.yaml",
        folder / "reward",
        f"spec.model.policy={folder / 'sft' / 'policy'}",
        f"spec.evaluation={{data: [{folder / 'pairs.jsonl'}], everySteps: 60}}",
        "spec.checkpoint={everySteps: 60, keepLast: 1, keepBest: 1}",
    )
    return Chain(sft, reward)


def held_out_pairs() -> list[dict[str, str]]:
    """Praise and complaint after prompts that are in no training file."""
    sides = (make_data.PRAISE, make_data.COMPLAINT)
    rng = random.Random(0)
    prompts = [json.loads(line)["prompt"] for line in (SENTIMENT / "heldout.jsonl").read_text().splitlines()]
    return [
        {
            "prompt": p,
            "chosen": make_data.answer(rng, *sides),
            "rejected": make_data.answer(rng, *sides[::-1]),
        }
        for p in prompts[:60]
    ]


@pytest.fixture(scope="session")
def summing(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two thirds of the fine-tuning of examples/arithmetic."""
    return imitate(ARITHMETIC, tmp_path_factory.mktemp("summing") / "sft", 400)


@pytest.fixture(scope="session")
def ppo(chain: Chain, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The shipped PPO job, undisturbed."""
    return succeed(SENTIMENT / "ppo.yaml", tmp_path_factory.mktemp("ppo") / "run", *chain.overrides)
