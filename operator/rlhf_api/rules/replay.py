"""Rules of `spec.replay`."""

from collections.abc import Iterator

from ..errors.problem import Problem
from ..graph import Generate, Graph
from ..sections.replay import SAMPLER_FIELD
from ..spec import Spec

LOADER = "spec.replay.streamDataLoaderType"


def dynamic_problems(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Problems of a graph whose training nodes name different minibatch sizes, as all models train on the same
    minibatch, or that waits for the scores of a whole step."""
    if not spec.replay.dynamic:
        return
    if isinstance(graph.source, Generate) and graph.source.rounds:
        message = (
            "dynamic trains before all scores of a step are there; without dynamicSampling, or use fixed"
        )
        yield Problem(LOADER, f"{message}; got 'dynamic'")
    if len({node.minibatch_size for node in graph.train}) > 1:
        sizes = ", ".join(f"{node.name} {node.minibatch_size or 'a whole step'}" for node in graph.train)
        message = (
            "dynamic trains every model on the same minibatch, as it comes; the responses of an update are: "
            f"{sizes}; give all the same, or use fixed; got 'dynamic'"
        )
        yield Problem(LOADER, message)


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of fields of `spec.replay` that contradict each other or others, or have no effect."""
    replay = spec.replay
    keys = {name: f"spec.replay.{field.alias}" for name, field in type(replay).model_fields.items()}
    for name in ("replay_episode_offset", "replay_sample_fn", "samples_per_step"):
        if not replay.window and getattr(replay, name) is not None:
            message = (
                f"applies only with maxReplayEpisode; set that, or remove this; got {getattr(replay, name)!r}"
            )
            yield Problem(keys[name], message)
    if replay.dynamic and spec.generator.shared_with_trainer:
        yield Problem(
            LOADER,
            "dynamic trains while generators answer, and spec.generator.sharedWithTrainer leaves none; use fixed; "
            "got 'dynamic'",
        )
    yield from dynamic_problems(spec, spec.graph)
    yield from paired_problems(spec, spec.graph)
    if replay.samples_per_step is not None and replay.sampler_is_import:
        yield Problem(
            "spec.replay.samplesPerStep",
            f"is for the built-in samplers; {replay.sampler} itself says how many it returns; remove it; "
            f"got {replay.samples_per_step}",
        )


def paired_problems(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Problems of what a graph that trains on pairs of sampled responses is given besides them, which would part
    them."""
    if not any(node.pairs for node in graph.train):
        return
    if spec.replay.window:
        message = f"draws single responses again, and {spec.algorithm} trains on pairs; remove it"
        yield Problem("spec.replay.maxReplayEpisode", f"{message}; got {spec.replay.max_replay_episode}")
    rows = 0 if spec.pretraining is None else spec.pretraining.rows_per_update
    if rows % 2:
        message = f"must be even: {spec.algorithm} trains on two sequences at a time"
        yield Problem("spec.pretraining.rowsPerUpdate", f"{message}; got {rows}")


def unweighted(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Problems of sampler `prioritized`, in a job whose own graph computes no advantages."""
    replay = spec.replay
    if replay.sampler == "prioritized" and not any("advantages" in node.writes for node in graph.nodes):
        message = f"draws by advantages, which the graph of {spec.algorithm!r} does not compute"
        yield Problem(SAMPLER_FIELD, f"{message}; use uniform, newest or a function; got 'prioritized'")
