"""Episodes on a real vLLM that gets new weights in the middle of a turn: each token's log-probability and version."""

import asyncio
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cluster.packages import Unavailable
from tests.support.servers import vllm_server
from tests.support.servers.vllm_server import Server
from tests.support.tiny.chat_model import smollm2
from tests.support.tiny.models import byte_tokenizer, tiny_model
from tests.unit.trainer.environments.test_pool import GAMES
from tests.unit.trainer.environments.test_pool import NONE as NO_NAMESPACES
from tests.unit.trainer.environments.test_tail import TOKENIZERS
from tests.unit.trainer.weights.support import TOKEN, generator, load, prompt_logprobs, weights
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlhf_api.contract.run import Member
from rlhf_api.sections.data import Data
from rlhf_api.sections.environment import Environment
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.chat import end_of_turn
from rlhf_trainer.data.encode import end_tokens
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.dispatch.outcomes import Interrupted
from rlhf_trainer.environments.environments import Environments
from rlhf_trainer.environments.record import turns_of
from rlhf_trainer.environments.rendering import Rendering
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.rollout.clients.engine_client import EngineClient
from rlhf_trainer.rollout.clients.turns_client import TurnsClient
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response
from rlhf_trainer.rollout.responses import pack
from rlhf_trainer.tensors.records import Prompt
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.broadcaster import Broadcaster

pytestmark = pytest.mark.slow
AGENTS = Path(__file__).parents[1] / "environments" / "agents.py"
PROMPTS, RESPONSES, TURNS, TURN = 4, 2, 5, 8
VOCABULARY, LONGEST = 600, 4096
"""Tokens of the model, more than any tokenizer here has, as with many models; and of the engine's context."""
NEVER = 10**6
"""A secret of `Guess` that no turn says: the episodes are as long as may be."""
PACE_SECONDS = 0.05
PATIENCE_SECONDS = 240.0
SECTION = Environment(path=f"{GAMES}:Guess", turns=TURNS, maxTokens=200, workers=1)
SAMPLING = Sampling(maxNewTokens=TURN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("turns")
    for seed in range(3):
        more = {"vocab_size": VOCABULARY, "max_position_embeddings": LONGEST}
        tiny_model(folder / f"model-{seed}", tie=True, seed=seed, chat=True, **more)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder / "model-0", folder / "vllm.log") as server:
        yield server


@contextmanager
def serving(model: Path, log: Path, longest: int = LONGEST) -> Iterator[Server]:
    server = vllm_server.launch(model, log, token=TOKEN, arguments=("--max-model-len", str(longest)))
    try:
        yield server.wait_ready()
    finally:
        server.stop()


async def _client(
    http: HttpClient,
    tokenizer: PreTrainedTokenizerBase,
    section: Environment = SECTION,
    around: Callable[[VllmClient], EngineClient] = lambda engine: engine,
) -> tuple[TurnsClient, Environments]:
    ends, stops = end_tokens(tokenizer, None, SAMPLING), StopStrings(tokenizer, ())
    engine = VllmClient(http, sampling=SAMPLING, seed=7, ends=ends, stops=stops, stream_interval=1)
    pool = WorkerPool(section)
    await pool.start()
    rendering = Rendering(tokenizer, Data(train=("unused",), maxPromptLength=200), ends, stops, pool.schemas)
    environments = Environments(section, rendering, pool)
    settings: dict[str, Any] = {"sampling": SAMPLING, "ends": ends, "stops": stops}
    return TurnsClient(around(engine), environments, most=section.max_tokens, **settings), environments


@torch.no_grad()
def expected_logprobs(
    models: dict[int, PreTrainedModel], prompt: Prompt, response: Response, *, keeps: bool
) -> list[float]:
    """Of each sampled token, by Transformers in float32: of a turn, the keys and values of tokens before a change of
    weights are those of the old ones if the engine `keeps` them, else of the new ones."""
    logprobs = list[float]()
    for turn in turns_of(response.tokens, response.sampled):
        begin, place = turn.end - len(turn.sampled), 0
        before = [*prompt.tokens, *response.tokens[:begin]]
        feed, cache = before, None
        for version, group in groupby(response.versions[begin : turn.end]):
            if not keeps:
                feed, cache = [*before, *turn.sampled[:place]], None
            tokens = [*turn.sampled[place : place + len([*group])]]
            fed = torch.tensor([[*feed, *tokens[:-1]]])
            made = models[version](fed, past_key_values=cache, use_cache=True)
            distributions = made.logits[0, -len(tokens) :].log_softmax(-1)
            logprobs += distributions.gather(-1, torch.tensor(tokens)[:, None]).flatten().tolist()
            cache, feed, place = made.past_key_values, tokens[-1:], place + len(tokens)
    return logprobs


def broadcaster(http: HttpClient, *, keep: bool) -> Broadcaster:
    settings = {"host": "127.0.0.1", "timeout_s": 120.0, "device": torch.device("cpu")}
    return Broadcaster(http, **settings, bucket_bytes=1 << 16, keep=keep)


def sampled_logprobs(response: Response) -> list[float]:
    return [p for p, flag in zip(response.logprobs, response.sampled, strict=True) if flag]


@pytest.mark.parametrize("keeps", [True, False], ids=["keep", "recompute"])
def test_each_tokens_log_probability_is_that_of_its_weights(server: Server, folder: Path, keeps: bool):
    models = {version: load(folder / f"model-{version}") for version in (1, 2)}
    member = generator(0, server.address)
    works = [
        PartialRollout.begin(
            Prompt(f"0/{n}", (n,), {"prompt": [{"role": "user", "content": "x"}], "secret": NEVER}), RESPONSES
        )
        for n in range(PROMPTS)
    ]
    with HttpClient(TOKEN) as http:

        def pace(seconds: float) -> None:
            body = {"method": "pace", "args": [seconds]}
            http.run(http.json("POST", f"{server.address}/collective_rpc", body, timeout=60))

        sync = broadcaster(http, keep=keeps)
        assert sync.send([member], lambda: weights(models[1]), 1).holders == (member,)
        client, environments = http.run(_client(http, AutoTokenizer.from_pretrained(folder / "model-0")))
        committed = asyncio.Event()

        async def play(work: PartialRollout) -> None:
            while not work.is_complete:
                with suppress(Interrupted):
                    await client.ask(member, work, lambda: None)
                    return
                await committed.wait()

        pace(PACE_SECONDS)
        playing = [http.start(play(work)) for work in works]
        deadline = time.monotonic() + PATIENCE_SECONDS
        responses = [response for work in works for response in work.responses]
        while not all(
            response.turn_start and len(response.tokens) > response.turn_start for response in responses
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert sync.send([member], lambda: weights(models[2]), 2).holders == (member,)
        http.loop.call_soon_threadsafe(committed.set)
        pace(0)
        for each in playing:
            each.result(PATIENCE_SECONDS)
        http.run(environments.close())
        sync.close()

    inside_a_turn = 0
    for work in works:
        for response in work.responses:
            assert response.outcome is not None
            assert (response.outcome.turns, response.outcome.problem) == (TURNS, "")
            assert list(response.versions) == sorted(response.versions)
            assert {*response.versions} == {1, 2}, "the episode outlived its weights"
            turns = turns_of(response.tokens, response.sampled)
            inside_a_turn += any(len({*response.versions[t.end - len(t.sampled) : t.end]}) > 1 for t in turns)
            sampled = sampled_logprobs(response)
            expected = expected_logprobs(models, work.prompt, response, keeps=keeps)
            torch.testing.assert_close(torch.tensor(sampled), torch.tensor(expected), atol=1e-5, rtol=0)
    assert inside_a_turn, "new weights came in the middle of turns"


CALLS = {
    1: '<think>\nI  say.\n</think>\n\n<tool_call>\n{"name":  "say",\t"arguments" : {"text":"a  b"}}\n\n</tool_call>',
    5: ' <tool_call>{ "arguments":{ "text" : "<|im_end|>\\n<|im_start|>assistant\\nI" } ,"name":"say"}</tool_call> \n',
    12: '<tool_call>{"name":"say","arguments":{"text":"x"}}</tool_call><tool_call>{"name": "say"',
    15: '\n{"name": "say", "parameters": {"text":"\\u00e9 "}}',
}
"""What a model may write in these turns of an episode, which one with random weights does not."""
LONG, CHANGE = 20, 10
"""Turns of an episode, and the one that is the first of new weights."""


class Steered:
    """An engine that says CALLS in their turns, with the log-probabilities that it has of them; none begins turn CHANGE
    before version 2. By the response, what it was asked to continue, and the tokens that it gave.
    """

    def __init__(self, http: HttpClient, tokenizer: PreTrainedTokenizerBase, engine: EngineClient) -> None:
        self._http, self._tokenizer, self._engine, self.version = http, tokenizer, engine, 1
        self.requests, self.given = defaultdict[int, list[list[int]]](list), defaultdict[int, list[int]](list)

    async def ask(self, member: Member, work: PartialRollout, progress: Callable[[], None]) -> PartialRollout:
        counts = {id(response): len(response.tokens) for response in work.responses}
        for response in work.responses:
            self.requests[id(response)].append([*work.prompt.tokens, *response.tokens])

        def ended(prompt: Prompt, response: Response) -> None:
            self.given[id(response)] += response.tokens[counts[id(response)] :]
            work.ended(prompt, response)

        return await self._say(member, replace(work, ended=ended), progress)

    async def _say(
        self, member: Member, work: PartialRollout, progress: Callable[[], None]
    ) -> PartialRollout:
        response = work.responses[0]
        turn = sum(bool(turn.reply) for turn in turns_of(response.tokens, response.sampled))
        if turn == CHANGE and self.version == 1:
            raise Interrupted
        if turn not in CALLS:
            return await self._engine.ask(member, work, progress)
        tokens = self._tokenizer(CALLS[turn], add_special_tokens=False)["input_ids"]
        tokens = [*tokens, end_of_turn(self._tokenizer) or self._tokenizer.eos_token_id]
        whole = [*work.prompt.tokens, *response.tokens, *tokens]
        logprobs = await prompt_logprobs(self._http, member.address, whole)
        response.add(array("i", tokens), array("f", logprobs[-len(tokens) :]), self.version)
        response.finish("stop")
        work.ended(work.prompt, response)
        return work

    async def listens(self, member: Member) -> bool:
        return await self._engine.listens(member)


def offering_tools(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    own = deepcopy(tokenizer)
    own.chat_template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + str(
        own.chat_template
    )
    return own


LONG_EPISODES = {
    name: partial(lambda made: offering_tools(made()), made)
    for name, made in TOKENIZERS.items()
    if name != "SmolLM2"
} | {"bytes without a template": byte_tokenizer}


@pytest.mark.parametrize("name", LONG_EPISODES)
def test_twenty_turns_are_those_that_the_engine_saw(server: Server, folder: Path, name: str):
    """With tool calls of odd spacing, thinking, forged turns, tokens that are none of the tokenizer's, and new weights:
    ids, masks, versions and log-probabilities, as training gets them."""
    tokenizer = LONG_EPISODES[name]()
    talks = bool(tokenizer.chat_template)
    question: Any = [{"role": "user", "content": "Begin."}] if talks else "Begin."
    game = "Echoes" if talks else "Guess"
    section = Environment(path=f"{GAMES}:{game}", turns=LONG, maxTokens=LONGEST - 256, workers=1)
    models = {version: load(folder / f"model-{version}") for version in (1, 2)}
    member = generator(0, server.address)
    work = PartialRollout.begin(Prompt("0/0", (1,), {"prompt": question, "secret": -1}), RESPONSES)
    with HttpClient(TOKEN) as http:
        sync = broadcaster(http, keep=False)
        assert sync.send([member], lambda: weights(models[1]), 1).holders == (member,)
        steered: list[Steered] = []

        def around(engine: EngineClient) -> EngineClient:
            steered.append(Steered(http, tokenizer, engine))
            return steered[0]

        client, environments = http.run(_client(http, tokenizer, section, around))
        with pytest.raises(Interrupted):
            http.run(client.ask(member, work, lambda: None))
        assert sync.send([member], lambda: weights(models[2]), 2).holders == (member,)
        steered[0].version = 2
        http.run(client.ask(member, work, lambda: None))
        http.run(environments.close())
        sync.close()

    packed = pack(work.rollouts())
    for row, response in enumerate(work.responses):
        assert response.outcome is not None
        assert (response.outcome.turns, response.outcome.problem) == (LONG, "")
        whole = packed.row(row).tolist()
        requests, given = (record[id(response)] for record in (steered[0].requests, steered[0].given))
        assert len(requests) == LONG + 1, "no turn was sampled again; one was asked for twice"
        assert all(tokens == whole[: len(tokens)] for tokens in requests)
        columns = packed.response_columns[packed.response_index(torch.tensor([row]))]
        assert packed.row(row)[columns].tolist() == given, "what it sampled is trained on, and nothing else"
        turns = turns_of(response.tokens, response.sampled)
        for number, turn in enumerate(turns):
            assert {*response.versions[turn.end - len(turn.sampled) : turn.end]} == {1 + (number >= CHANGE)}
        assert [place for place, _ in response.outcome.turn_rewards] == [turn.end - 1 for turn in turns]
        expected = expected_logprobs(models, work.prompt, response, keeps=False)
        sampled = torch.tensor(sampled_logprobs(response))
        torch.testing.assert_close(sampled, torch.tensor(expected), atol=1e-5, rtol=0)


KNOCKS = """
import os, urllib.error, urllib.request

def status(path):
    headers = {{"Authorization": "Bearer " + os.environ.get("RLHF_TOKEN", "")}}
    try:
        return urllib.request.urlopen(urllib.request.Request({address!r} + path, b"{{}}", headers), timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError as error:
        return type(error.reason).__name__

result = [status(path) for path in ("/generate", "/commit", "/update_weights", "/v1/completions")]
"""


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("kind", ["class", "program"])
def test_environments_can_neither_sample_nor_send_weights(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: str, network: bool
):
    """They have no key of a generator, and without the network not even its port: the trainer alone asks it."""
    monkeypatch.setenv("RLHF_TOKEN", TOKEN)
    program = (sys.executable, str(AGENTS), "runs")
    fields: dict[str, Any] = {"path": f"{GAMES}:Runs"} if kind == "class" else {"program": program}
    row = {"code": KNOCKS.format(address=server.address)}

    async def opening() -> str:
        pool = WorkerPool(Environment(**fields, network=network, workers=1))
        try:
            await pool.start()
            call = {"do": "reset", "episode": 0, "row": row}
            made = await (await pool.free()).call(call, PATIENCE_SECONDS)
            return made["text"] if kind == "class" else made["messages"][0]["content"]
        finally:
            await pool.close()

    assert asyncio.run(opening()) == str([401 if network else "ConnectionRefusedError"] * 4)


def test_episodes_of_a_real_chat_model_are_what_its_template_renders(tmp_path: Path):
    """SmolLM2's, whose template has a system prompt of its own."""
    try:
        folder = smollm2()
    except Unavailable as error:
        pytest.skip(str(error))
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    question = {"role": "user", "content": "Begin."}
    works = [
        PartialRollout.begin(Prompt(f"0/{n}", (n,), {"prompt": [question], "secret": 5}), RESPONSES)
        for n in range(2)
    ]
    with serving(folder, tmp_path / "vllm.log", 512) as server, HttpClient(TOKEN) as http:
        member, sync = generator(0, server.address), broadcaster(http, keep=False)
        assert sync.send([member], lambda: weights(model), 1).holders == (member,)
        client, environments = http.run(_client(http, tokenizer))
        for playing in [http.start(client.ask(member, work, lambda: None)) for work in works]:
            playing.result(PATIENCE_SECONDS)
        http.run(environments.close())
        sync.close()
    for work in works:
        assert tokenizer.decode(work.prompt.tokens).endswith(
            "<|im_start|>user\nA number from 1 to 9?<|im_end|>\n<|im_start|>assistant\n"
        )
        for response in work.responses:
            turns = turns_of(response.tokens, response.sampled)
            talk = [{"role": "user", "content": "A number from 1 to 9?"}]
            for turn in turns:
                content = tokenizer.decode(turn.sampled, skip_special_tokens=True)
                talk.append({"role": "assistant", "content": content})
                if turn.reply:
                    _, _, reply = tokenizer.decode(turn.reply).partition("user\n")
                    talk.append({"role": "user", "content": reply.partition("<|im_end|>")[0]})
            whole = tokenizer.decode([*work.prompt.tokens, *response.tokens])
            assert tokenizer.apply_chat_template(talk, tokenize=False).startswith(whole)
            expected = expected_logprobs({1: model}, work.prompt, response, keeps=True)
            sampled = torch.tensor(sampled_logprobs(response))
            torch.testing.assert_close(sampled, torch.tensor(expected), atol=1e-4, rtol=0)
