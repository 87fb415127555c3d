"""The sentiment chain's first two parts, run once for all end-to-end tests as a user runs them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.rlhf import SENTIMENT, Finished, succeed


@dataclass(frozen=True)
class Chain:
    """What PPO starts from."""

    sft: Finished
    reward: Finished

    @property
    def overrides(self) -> tuple[str, str]:
        """What turns the shipped `ppo.yaml` to these models."""
        return (
            f"spec.model.policy={self.sft.workdir / 'policy'}",
            f"spec.model.reward={self.reward.workdir / 'policy'}",
        )


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    folder: Path = tmp_path_factory.mktemp("chain")
    sft = succeed(SENTIMENT / "sft.yaml", folder / "sft")
    reward = succeed(
        SENTIMENT / "reward.yaml", folder / "reward", f"spec.model.policy={folder / 'sft' / 'policy'}"
    )
    return Chain(sft, reward)


@pytest.fixture(scope="session")
def ppo(chain: Chain, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The shipped PPO job, undisturbed."""
    return succeed(SENTIMENT / "ppo.yaml", tmp_path_factory.mktemp("ppo") / "run", *chain.overrides)
