"""`rlhf env try`: plays episodes of a job's environment and prints them. Reads the job as JSON on stdin.

Turns are sampled by the job's own model in this process, or by vLLM as the job's generators start it; all else is what
training has: the environment's workers, its replies as tokens, and the limits.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from rlhf_api.contract.run import Member, RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import POLICY
from rlhf_api.host.printing import write_line
from rlhf_api.roles import Role

from ..data.dataset import Dataset, open_dataset, sources_of
from ..data.encode import end_tokens
from ..data.prompts import prompts
from ..data.stop_strings import StopStrings
from ..dispatch.outcomes import Refused
from ..environments.environments import Environments
from ..environments.rendering import Rendering
from ..environments.workers.pool import WorkerPool
from ..local_generation.sampler import sampling_of_the_job_alone
from ..models.pretrained import architectures
from ..models.pretrained.hub import use_cache_if_unreachable
from ..models.pretrained.job_models import load_job_tokenizer, load_trained, on_device
from ..models.pretrained.load import padding_id
from ..process.settings import model_source
from ..rollout.clients.engine_client import EngineClient
from ..rollout.clients.local_client import LocalClient
from ..rollout.clients.turns_client import TurnsClient, turns_client
from ..rollout.clients.vllm_client import VllmClient
from ..rollout.partial_rollout import PartialRollout, Response
from ..transport.http import HttpClient
from .episode_lines import episode_lines, summary
from .own_generator import new_token, own_generator
from .reporting import report_errors

HERE = Member(role=Role.GENERATOR, name="here", uid="", address="")
Engine = tuple[EngineClient, Member, Sequence[int]]
"""What samples turns: a client, its server, and the tokens that end a turn."""


@contextmanager
def transformers_engine(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> Iterator[Engine]:
    """The policy in this process."""
    spec = config.spec
    if spec.sampling.structured_outputs is not None:
        message = "are vLLM's, and this model is asked without it; add --vllm, or remove this"
        raise InvalidJob([Problem("spec.sampling.structuredOutputs", message)])
    model = load_trained(config, POLICY, tokenizer)
    on_device(model)
    torch.manual_seed(spec.seed)
    with sampling_of_the_job_alone(model) as own:
        ends = end_tokens(tokenizer, own, spec.sampling)
        stops = StopStrings(tokenizer, spec.sampling.stop)
        yield LocalClient(model, spec.sampling, ends, stops, padding_id(tokenizer)), HERE, ends


@asynccontextmanager
async def vllm_engine(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, http: HttpClient, token: str
) -> AsyncIterator[Engine]:
    """A generator of the job; on the event loop of `http`."""
    spec = config.spec
    try:
        own = GenerationConfig.from_pretrained(model_source(config, POLICY.field).path)
    except OSError:
        own = None
    ends, stops = end_tokens(tokenizer, own, spec.sampling), StopStrings(tokenizer, spec.sampling.stop)
    async with own_generator(config, http, token) as member:
        engine = VllmClient(
            http,
            sampling=spec.sampling,
            seed=spec.seed,
            ends=ends,
            stops=stops,
            oldest_version=-1,  # there is no trainer
        )
        yield engine, member, ends


@asynccontextmanager
async def player(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, http: HttpClient | None, token: str
) -> AsyncIterator[tuple[TurnsClient, Member]]:
    """The client that plays the job's episodes, with vLLM if there is a client for it, and the server that it asks.
    Raises InvalidJob, naming the class first and then the model."""
    section = config.spec.environment
    assert section is not None, "the command asks for one"
    pool = WorkerPool(section)
    await pool.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        if http is None:
            engine, member, ends = stack.enter_context(transformers_engine(config, tokenizer))
        else:
            engine, member, ends = await stack.enter_async_context(
                vllm_engine(config, tokenizer, http, token)
            )
        stops = StopStrings(tokenizer, config.spec.sampling.stop)
        rendering = Rendering(tokenizer, config.spec.data, ends, stops, pool.schemas)
        environments = Environments(section, rendering, pool)
        yield turns_client(engine, environments, config.spec, tokenizer, ends), member


async def play(
    config: RunConfig,
    first: int,
    count: int,
    *,
    tokens: bool,
    colour: bool,
    http: HttpClient | None = None,
    token: str = "",
) -> int:
    """Plays an episode of each of `count` rows, over again after the last one, and prints them; returns the exit code:
    1 where an episode ended without a reward."""
    rows, tokenizer = _rows(config), load_job_tokenizer(config)
    if not 0 <= first < len(rows):
        message = f"must be one of the {len(rows)} rows, from 0 to {len(rows) - 1}; got {first}"
        raise InvalidJob([Problem("--row", message)])
    played = list[Response]()
    async with player(config, tokenizer, http, token) as (client, member):
        for number in range(count):
            index = (first + number) % len(rows)
            source, at = rows.place(index)
            write_line(
                f"episode {number + 1} of {count}: row {index}, {rows.files[source].where(at)}", sys.stdout
            )
            (prompt,) = prompts(rows, [(number, index)], tokenizer, config.spec.data)
            began, work = time.monotonic(), PartialRollout.begin(prompt, 1)
            try:
                work = await client.ask(member, work, lambda: None)
            except Refused as error:
                played.append(Response())
                write_line(f"  no episode: {error}", sys.stdout)
                continue
            played += work.responses
            for line in episode_lines(
                work, tokenizer, time.monotonic() - began, tokens=tokens, colour=colour
            ):
                write_line(line, sys.stdout)
    write_line(summary(played), sys.stdout)
    return 0 if all(each.outcome and not each.outcome.problem for each in played) else 1


def _rows(config: RunConfig) -> Dataset:
    """The training data."""
    _, kind, sources, samples = next(iter(sources_of(config.spec)))
    return open_dataset(sources, kind, samples)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--row", type=int, default=0)
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--vllm", action="store_true")
    options = parser.parse_args(arguments)
    config = RunConfig.model_validate_json(sys.stdin.read())
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def play_all() -> int:
        disable_progress_bar()
        architectures.register(config.spec.model.architectures)
        if "/" not in model_source(config, "policy").path:
            use_cache_if_unreachable()
        play_rows = partial(play, config, options.row, options.episodes, tokens=options.tokens, colour=colour)
        if not options.vllm:
            return asyncio.run(play_rows())
        token = new_token()
        with HttpClient(token) as http:
            return http.run(play_rows(http=http, token=token))

    return report_errors(play_all)
