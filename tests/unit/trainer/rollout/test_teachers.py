"""Each response is sent to the processes of its own teacher, and the answers come back in the responses' order."""

from collections.abc import Callable

import pytest
import torch
from aiohttp import web
from tests.support.ports import free_port

from rlhf_api.contract.proof import Prover
from rlhf_api.contract.run import Member, Membership
from rlhf_api.roles import Role
from rlhf_trainer.dispatch.control import Control
from rlhf_trainer.dispatch.roster import Roster, Unavailable
from rlhf_trainer.rollout.teachers import Teachers
from rlhf_trainer.scoring.client import Scorer
from rlhf_trainer.scoring.messages import LOGPROBS_ROUTE, unpack
from rlhf_trainer.scoring.server import application
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.transport.http import HttpClient

TOKEN = "t" * 32
PROMPT, LENGTHS = 7, (3, 1, 4, 2)
SEQUENCES = Sequences.pack([((PROMPT,), tuple(range(10 * i, 10 * i + n))) for i, n in enumerate(LENGTHS)])
OF_ROWS = torch.tensor([1.0, 0.0, 1.0, 0.0])


def responses(sequences: Sequences) -> torch.Tensor:
    """The ids of their response tokens."""
    return sequences.tokens[sequences.tokens != PROMPT].float()


class Process:
    """A reference whose log-probability of a token is minus its id, times `factor`."""

    def __init__(self, http: HttpClient, index: int, factor: float) -> None:
        self.lengths: list[int] = []
        self._http, prover = http, Prover(TOKEN, "127.0.0.1", free_port())

        def answer(message):
            sequences = unpack(message)
            self.lengths += sequences.lengths.tolist()
            return {"logprobs": -factor * responses(sequences)}, {}

        self._runner = web.AppRunner(application(LOGPROBS_ROUTE, answer, prover))
        http.run(self._start(prover.port))
        address = f"http://127.0.0.1:{prover.port}"
        self.member = Member(role=Role.REFERENCE, name=f"reference-{index}", uid=address, address=address)

    async def _start(self, port: int) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()


@pytest.fixture
def http():
    with HttpClient(TOKEN) as client:
        yield client


def teachers(
    http: HttpClient, members: tuple[Member, ...], names: Callable[[int], set[str]], patience: float = 60.0
) -> Teachers:
    control = Control(total_steps=1)
    control._membership = Membership(members=members)
    roster = Roster(control, http)
    return Teachers(
        [
            Scorer(
                *(Role.REFERENCE, LOGPROBS_ROUTE),
                http=http,
                roster=roster.of_names(names(number)),
                chunk_tokens=64,
                timeout=60.0,
                patience=patience,
            )
            for number in range(2)
        ]
    )


def test_each_teacher_is_asked_about_its_own_responses_alone(http):
    processes = [Process(http, index, factor) for index, factor in enumerate((1.0, 100.0))]
    both = teachers(http, tuple(p.member for p in processes), lambda number: {f"reference-{number}"})
    factors = torch.tensor([100.0, 1.0, 100.0, 1.0]).repeat_interleave(torch.tensor(LENGTHS))
    assert torch.equal(both.ask(SEQUENCES, "logprobs", teacher=OF_ROWS), -factors * responses(SEQUENCES))
    assert [sorted(p.lengths) for p in processes] == [[2, 3], [4, 5]]


def test_a_teacher_without_responses_is_not_asked(http):
    process = Process(http, 0, 1.0)
    both = teachers(http, (process.member,), lambda number: {f"reference-{number}"})
    assert len(both.ask(SEQUENCES, "logprobs", teacher=torch.zeros(4))) == sum(LENGTHS)


def test_another_teachers_process_takes_no_responses_of_one_that_is_away(http):
    process = Process(http, 0, 1.0)
    both = teachers(http, (process.member,), lambda number: {f"reference-{number}"}, patience=0.0)
    with pytest.raises(Unavailable, match="no reference answered within 0 s"):
        both.ask(SEQUENCES, "logprobs", teacher=OF_ROWS)
    assert sorted(process.lengths) == [2, 3]
