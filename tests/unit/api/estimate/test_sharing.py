"""GPUs that trainer, engine and frozen models share: the division of memory, vLLM's options, and refusals."""

import re
from collections.abc import Sequence

import pytest
from tests.unit.api.estimate.shared import AHEAD, AWAY, EIGHT, GRPO, H200, LARGE, REFERENCE, SMALL
from tests.unit.api.manifests import job

from rlhf_api.errors.problem import Problem
from rlhf_api.estimate.sharing.divide import divide, frozen_options, generator_options
from rlhf_api.estimate.sharing.division import SPARE, Division
from rlhf_api.estimate.sharing.problems import problems
from rlhf_api.estimate.sizes import Size, Sizes
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

MANY = "spec.data.promptsPerStep=4096", "spec.generator.concurrentRequests=4096"
"""More sequences at once than any GPU has memory for."""


def of(size: Size | None, *overrides: str) -> tuple[Spec, Sizes]:
    spec = job(*GRPO, *overrides).spec
    return spec, Sizes.of(spec, {"policy": size} if size else {})


def divided(made: tuple[Spec, Sizes], memory: float, count: int = 1) -> Division:
    division = divide(*made, memory, count)
    assert division is not None
    return division


def refused(size: Size | None, memory: float, count: int, *overrides: str) -> list[Problem]:
    return problems(*of(size, *overrides), memory, count)


@pytest.mark.parametrize(
    ("overrides", "factor"), [((), 1), ((AHEAD,), 2), (("spec.generator.replicas=2",), 0.5)]
)
def test_the_cache_is_no_larger_than_the_sequences_that_are_generated_at_once(
    overrides: Sequence[str], factor: float
) -> None:
    """A larger one would come back more slowly after each sleep, and hold nothing."""
    spec, sizes = of(SMALL, "spec.data.promptsPerStep=64", *overrides)
    token = 2 * 28 * 256 * 2
    longest = spec.data.max_prompt_length + spec.sampling.max_new_tokens
    division = divided((spec, sizes), H200, 2)
    assert division.cache == pytest.approx(1.1 * factor * 64 * 8 * longest * token, abs=1e8)
    assert "for all sequences at once" in division.lines[-1]


def test_in_turns_each_phase_has_the_gpu_but_for_what_the_others_never_give_up() -> None:
    division = divided(of(SMALL, *MANY), 80e9)
    each = "1.544e9 parameters x (2 weights + 4 gradients + 4 master weights + 8 moments) B"
    assert division.lines == [
        f"while it generates 36.9 of 80 GB: 27.8 GB of trained models ({each}) + 2 GB of CUDA and NCCL of the trainer"
        " + 3.09 GB of serving weights (1.544e9 parameters x 2 B) + 4 GB of CUDA, graphs and buffers of vLLM",
        f"while new weights arrive 41 of 80 GB: 27.8 GB of trained models ({each}) + 2 GB of CUDA and NCCL of the"
        " trainer + 1.02 GB of buckets of weights + 3.09 GB of serving weights (1.544e9 parameters x 2 B) + 4 GB of"
        " CUDA, graphs and buffers of vLLM + 3.09 GB of new weights (1.544e9 parameters x 2 B)",
        f"while it trains 73.8 of 80 GB: 67.8 GB of training ({each} + 1.544e9 x (2 bfloat16 gradients) B and 36.9 GB"
        " of activations in the backward pass) + 2 GB of CUDA and NCCL of the trainer + 4 GB of CUDA, graphs and"
        " buffers of vLLM",
        "KV cache 40.7 GB, what is left but 3% (kv-cache-memory-bytes 40700000000, gpu-memory-utilization 0.08)",
    ]


def test_at_once_the_cache_gets_what_the_peak_of_training_leaves() -> None:
    turns, at_once = divided(of(SMALL, *MANY), H200), divided(of(SMALL, *MANY, AHEAD), H200)
    assert [phase.name for phase in at_once.phases] == ["at once"]
    assert at_once.phases[0].total == pytest.approx(79.96e9, abs=1e7)
    assert (turns.cache, at_once.cache) == (108.7e9, 65.6e9)


@pytest.mark.parametrize("overrides", [(), (AHEAD,), (AWAY,), (AWAY, AHEAD), REFERENCE, (*REFERENCE, AHEAD)])
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("memory", [40e9, 80e9, H200, 192e9])
def test_the_cache_and_all_that_is_beside_it_fit(overrides: Sequence[str], size: Size, memory: float) -> None:
    division = divided(of(size, *overrides), memory)
    if not division.shortage:
        assert division.least <= division.cache <= (1 - SPARE) * memory - division.phases[0].total
        assert memory * float(str(division.options["gpu-memory-utilization"])) <= division.served
    elif not refused(size, memory, 1, *overrides):
        assert division.phases[-1].total < 1.1 * memory, "activations are known within a tenth"


def test_with_activations_of_unknown_size_half_of_the_rest_is_left_for_them() -> None:
    unknown = divided(of(Size(1.544e9), AHEAD), 80e9)
    assert unknown.phases[0].parts[-1].words == "activations, whose size is unknown: half of the rest"
    rest = 80e9 - (unknown.phases[0].total - unknown.phases[0].parts[-1].total)
    assert unknown.cache == pytest.approx(rest / 2 - SPARE * 80e9, abs=1e8)


def test_the_fullest_gpu_says_how_much_there_is() -> None:
    """On two GPUs the one reference is beside one of the engines; the other engine gets no more, being its equal."""
    two = ("spec.trainer.processesPerReplica=2", "spec.generator.replicas=2")
    alone, beside = (divided(of(SMALL, *MANY, *two, *more), H200, 2) for more in ((), REFERENCE))
    assert alone.cache - beside.cache == pytest.approx(3.088e9 + 4e9, abs=2e8)
    assert "GB of reference (1.544e9 parameters x 2 B + 4 GB beside)" in beside.phases[0].words


def test_the_frozen_weights_below_an_adapter_stay_in_every_phase() -> None:
    division = divided(of(LARGE, "spec.model.lora={policy: {}}"), H200)
    assert all("15.2 GB of the frozen weights below the adapter" in phase.words for phase in division.phases)


def test_ranks_without_an_engine_beside_them_are_a_case_of_their_own() -> None:
    made = of(SMALL, "spec.trainer.processesPerReplica=2", AHEAD)
    division = divided(made, 80e9, 2)
    assert [phase.name for phase in division.phases] == ["at once", "without a generator"]


@pytest.mark.parametrize(("memory", "share"), [(H200, 0.06), (80e9, 0.12)])
def test_a_frozen_model_under_vllm_gets_a_share_and_a_cache_of_its_own(memory: float, share: float) -> None:
    made = of(SMALL, *REFERENCE, "spec.reference.engine=vllm")
    assert frozen_options(made[0], Role.REFERENCE, made[1], memory) == {
        "kv-cache-memory-bytes": 2_000_000_000,
        "gpu-memory-utilization": share,
    }
    division = divided(made, memory)
    assert (
        "12.1 GB of reference (1.544e9 parameters x 2 B + 7 GB beside + 2 GB of cache)"
        in division.phases[0].words
    )


def test_memory_that_the_manifest_divides_stays_as_it_says() -> None:
    both = "{gpu-memory-utilization: 0.3, kv-cache-memory-bytes: 20000000000}"
    spec, sizes = of(SMALL, f"spec.generator.engineArguments={both}")
    assert generator_options(spec, sizes, H200, 1) == {}
    assert not problems(spec, sizes, H200, 1)
    half = of(SMALL, "spec.generator.engineArguments={kv-cache-memory-bytes: 20000000000}")
    assert generator_options(*half, H200, 1) == {
        "kv-cache-memory-bytes": 20_000_000_000,
        "gpu-memory-utilization": 0.04,
    }
    given = f"spec.reference={{engine: vllm, engineArguments: {both}}}"
    spec, sizes = of(SMALL, *REFERENCE, given)
    assert frozen_options(spec, Role.REFERENCE, sizes, H200) == {}
    division = divided((spec, sizes), H200)
    assert "45 GB of reference (by gpu-memory-utilization)" in division.phases[0].words


DO_NOT_FIT = [
    (SMALL, 80e9, 1, (AHEAD,), "rollout.maxStaleness 0"),
    (SMALL, 80e9, 1, ("spec.replay.streamDataLoaderType=dynamic",), "replay.streamDataLoaderType fixed"),
    (SMALL, 80e9, 1, ("spec.weights.everySteps=2",), "weights.everySteps 1"),
    (SMALL, 60e9, 1, (), "trainer.gradientCheckpointing selective"),
    (LARGE, H200, 1, (), "trainer.deepspeed.zero_optimization.offload_optimizer.device cpu"),
    (LARGE, 80e9, 8, EIGHT, "trainer.gradientCheckpointing selective"),
    (SMALL, 24e9, 1, (), "trainer.gradientCheckpointing full and trainer.deepspeed"),
    (
        LARGE,
        66e9,
        2,
        (AWAY, "spec.model.dtype=float32", "spec.trainer.dtype=bfloat16"),
        "generator.tensorParallelSize 2 and",
    ),
    (
        *(SMALL, 80e9, 1, ("spec.generator.engineArguments={kv-cache-memory-bytes: 70000000000}",)),
        "engineArguments without kv-cache-memory-bytes",
    ),
]


@pytest.mark.parametrize(("size", "memory", "count", "overrides", "remedy"), DO_NOT_FIT)
def test_what_does_not_fit_names_the_field_that_makes_it_fit(
    size: Size, memory: float, count: int, overrides: Sequence[str], remedy: str
) -> None:
    (problem,) = refused(size, memory, count, *overrides)
    assert problem.where == "spec.placement"
    first = problem.message.partition("; use ")[2].partition(", or ")[0].partition(", with which")[0]
    assert remedy in first, problem
    changes = [
        "spec.generator.engineArguments={}" if "without" in words else f"spec.{'='.join(words.split())}"
        for words in re.split(" and | with ", first)
    ]
    assert refused(size, memory, count, *overrides, *changes) == [], changes


def test_what_fits_in_no_way_says_so() -> None:
    (problem,) = refused(LARGE, 24e9, 1)
    assert "use larger GPUs, a smaller model, an adapter" in problem.message


@pytest.mark.parametrize(
    ("size", "count", "overrides", "where", "words"),
    [
        (None, 1, (), "spec.model.parameters", "is needed to divide the memory of shared GPUs"),
        (
            *(SMALL, 1, ("spec.generator.engineArguments={gpu-memory-utilization: 0.4}",)),
            *("spec.generator.engineArguments.gpu-memory-utilization", "set kv-cache-memory-bytes too"),
        ),
        (
            *(SMALL, 1, ("spec.generator.engineArguments={kv-cache-memory-bytes: 9G}",)),
            *("spec.generator.engineArguments.kv-cache-memory-bytes", "use a number of bytes; got '9G'"),
        ),
        (
            *(SMALL, 1, ("spec.generator.engineArguments={quantization: fp8}",)),
            *("spec.generator.engineArguments", "does not follow"),
        ),
        (
            SMALL,
            2,
            ("spec.generator.replicas=3",),
            "spec.generator",
            "needs 3 GPUs, and 2 are there to share",
        ),
        (SMALL, 1, ("spec.trainer.processesPerReplica=2",), "spec.trainer", "needs 2 GPUs, and 1 is there"),
        (
            *(SMALL, 4, ("spec.generator={tensorParallelSize: 2, podsPerReplica: 2}",)),
            *("spec.generator.podsPerReplica", "is one process; use 1; got 2"),
        ),
        (
            *(SMALL, 0, ("spec.generator={tensorParallelSize: 2, podsPerReplica: 2}",)),
            *("spec.generator.podsPerReplica", "is one process; use 1; got 2"),
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(
    size: Size | None, count: int, overrides: Sequence[str], where: str, words: str
) -> None:
    (problem,) = refused(size, H200, count, *overrides)
    assert problem.where == where
    assert words in problem.message


def test_without_gpus_there_is_nothing_to_divide() -> None:
    assert refused(None, H200, 0) == []
    assert problems(*of(SMALL), None, 1) == [], "of GPUs of unknown size the processes work it out themselves"
