"""A trainer that is killed at any moment while vLLM generates ahead of it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from tests.faults.chaos.conftest import Store, Stores
from tests.faults.chaos.test_kills import killed, schedule
from tests.support.forked.roles import TOKEN, Job
from tests.support.servers import vllm_server

from rlhf_api.sections.replay import EPISODES
from rlhf_trainer.replay.table import Episode
from rlhf_trainer.replay.table import decode as decode_episode
from rlhf_trainer.rollout.in_flight.saved_responses import BLOB
from rlhf_trainer.rollout.in_flight.saved_responses import decode as decode_works
from rlhf_trainer.rollout.partial_rollout import Response
from rlhf_trainer.transport.http import HttpClient

pytestmark = pytest.mark.slow
KILLS, STEPS, STALENESS, TOKENS = 8, 24, 2, 100
PACED_LIVES = 2
PACE_SECONDS = 0.03
"""Least time of a step of the engine in the trainer's first lives, and until a snapshot has met a response that was
only begun: the generator is the slower one then, on a busy machine too."""


@pytest.fixture(scope="module")
def generating(job: Job) -> Iterator[Job]:
    policy = job.spec["model"]["policy"]
    named = ("--served-model-name", "chaos")
    server = vllm_server.start(policy, job.folder / "vllm.log", token=TOKEN, arguments=named)
    try:
        yield replace(job, generators=[server.address])
    finally:
        server.stop()


def pace(job: Job, seconds: float) -> None:
    """Each step of the generator's engine takes at least so long."""
    with HttpClient(TOKEN) as http:
        body = {"method": "pace", "args": [seconds]}
        http.run(http.json("POST", f"{job.generators[0]}/collective_rpc", body, timeout=60))


def begun(store: Store) -> dict[tuple[str, int], Response]:
    """Responses in the newest cut that no episode has yet."""
    cut = store.newest()
    works = decode_works(cut.blob(BLOB))
    return {(w.prompt.id, k): r for w in works for k, r in enumerate(w.responses) if r.tokens}


def episodes(store: Store) -> list[Episode]:
    cut = store.newest()
    return [decode_episode(cut.blob(name)) for name in sorted(cut.blobs) if name.startswith(EPISODES)]


def test_kills_lose_nothing_and_train_on_nothing_twice_or_too_old(generating: Job, stores: Stores):
    store = stores.named(
        "ahead",
        steps=STEPS,
        rollout={"maxStaleness": STALENESS},
        sampling={"maxNewTokens": TOKENS, "responsesPerPrompt": 2},
        # One request at a time, so that snapshots hold responses only begun.
        generator={"timeoutSeconds": 60, "concurrentRequests": 1},
        replay={"maxReplayEpisode": -1, "samplesPerStep": 1},
    )
    train = partial(generating.train, "ahead", overrides=store.overrides)
    pieces: list[tuple[tuple[str, int], Response]] = []
    pace(generating, PACE_SECONDS)
    for number, when in enumerate(schedule(6, KILLS)):
        assert train(resume=number > 0, environ=killed(when)) == [-9]
        if store.steps():
            pieces += begun(store).items()
        if number >= PACED_LIVES and any(response.end is None for _, response in pieces):
            pace(generating, 0)
    assert train(resume=True) == [0]
    store.assert_every_prompt_was_trained_once()
    assert any(response.end is None for _, response in pieces), "some were only begun"

    recorded = episodes(store)
    assert [episode.number for episode in recorded] == [*range(1, STEPS + 1)]
    responses: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
    for episode in recorded:
        columns = episode.columns
        assert int(columns["versions"].min()) >= episode.number - 1 - STALENESS
        assert int(columns["versions"].max()) <= episode.number - 1
        at = columns.sequences.response_starts.tolist()
        for row, (start, length) in enumerate(zip(at, columns.lengths.tolist(), strict=True)):
            tokens = columns.sequences.row(row)[-length:].tolist()
            versions = columns["versions"][start : start + length].tolist()
            responses[episode.prompt_ids[row], row % 2] = tokens, versions
    for key, response in pieces:  # of one response perhaps several, each longer than the one before
        tokens, versions = responses[key]
        held = len(response.tokens)
        assert (tokens[:held], versions[:held]) == (list(response.tokens), list(response.versions)), (
            "a partial one was lost"
        )
