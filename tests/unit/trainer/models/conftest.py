"""Trained models within the test's own process: one rank, its process group made here."""

from collections.abc import Iterator

import pytest
from torch import distributed

from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import Trainer
from rlhf_trainer.models.trained_model import TrainedModel

ADAM = Optimizer().model_copy(
    update={"learning_rate": 0.01, "betas": (0.9, 0.99), "epsilon": 1e-6, "gradient_clip": 1e6}
)


@pytest.fixture(scope="session")
def one_rank() -> Iterator[None]:
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}  # as torchrun would say
    with pytest.MonkeyPatch.context() as environment:
        for name, value in alone.items():
            environment.setenv(name, value)
        # One for all tests of this process, also those of tests/unit/trainer/training: DeepSpeed keeps the first it
        # meets.
        if not distributed.is_initialized():
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        yield


@pytest.fixture
def trained(one_rank):  # noqa: ARG001
    """Puts a model under DeepSpeed, with `deepspeed` as a manifest gives it."""

    def make(model, **deepspeed) -> TrainedModel:
        return TrainedModel(
            model, ADAM, Trainer(), deepspeed=deepspeed, micro_batch_tokens=64, pad_token_id=0
        )

    return make
