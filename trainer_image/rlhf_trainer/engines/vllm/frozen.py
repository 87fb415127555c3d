"""vLLM inside the process of a role with a frozen model: log-probabilities or scores of sequences.

The engine and its workers are processes of their own, over as many GPUs as the manifest says; the role's process holds
no weights and sends them token ids over vLLM's own sockets. The watchdog ends it when they die.
"""

import itertools
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Self

import torch
from pydantic import JsonValue
from torch import Tensor

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.event_loop import EventLoop
from rlhf_api.host.tasks import run_together
from rlhf_api.roles import Role
from rlhf_api.rules.engines.vllm_options import engine_problems

from ...process.settings import frozen_source
from ...tensors.records import Sequences
from ...tensors.sampling_mask import LEFT_OUT
from .front.probes import ENGINE_DEAD, HUNG_SECONDS
from .serve import watchdog
from .serve.expected import check_vllm
from .serve.forking import fork_processes
from .serve.gpu import gpu_memory
from .serve.launch import engine_environment, frozen_options, instead_of, on_cpu, option
from .serve.refusal import refusals

TEMPERED = "rlhf_trainer.engines.vllm.weights.extension.Tempered"


class FrozenModel:
    """A model under vLLM. `logprobs` and `scores` are called from one thread at a time, `restart_reason` from any."""

    def __init__(self, options: dict[str, JsonValue], temperature: float = 1.0) -> None:
        """`options`: of `vllm serve`; log-probabilities are at `temperature`. Call on the main thread: the kernel kills
        the engine's process when the thread that started it ends. Raises what vLLM raises where it cannot serve the
        model."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM

        if temperature != 1:
            options = {**options, "worker-extension-cls": TEMPERED}
        words = [word for name, value in options.items() for word in option(name, value)]
        parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
        arguments = AsyncEngineArgs.from_cli_args(parser.parse_args(words))
        fork_processes()
        engine: Any = AsyncLLM.from_engine_args(arguments)
        watchdog.start(engine)
        self._engine = engine
        self._loop = EventLoop("vllm")
        self._ids = itertools.count()
        self._under_way = 0
        self._last_reply = time.monotonic()
        if temperature != 1:
            self._loop.run(self._engine.collective_rpc("rlhf_temper", args=(temperature,)))

    @classmethod
    def of(
        cls, config: RunConfig, role: Role, longest: int, temperature: float = 1.0, most_logprobs: int = 0
    ) -> Self:
        """The frozen model of a role, for sequences of up to `longest` tokens, which gives log-probabilities of up to
        `most_logprobs` tokens beside that of each sequence's own. Sets vLLM's environment variables.
        Raises InvalidJob for models and options that vLLM does not run."""
        model = frozen_source(config, role)
        if problems := engine_problems(config.spec, role, model.where, model.path):
            raise InvalidJob(problems)
        cpu = on_cpu()
        memory = gpu_memory() if config.shared_gpus and not cpu else None
        options = frozen_options(config, role, model, longest, cpu=cpu, shared_memory=memory)
        options |= {"max-logprobs": most_logprobs} if most_logprobs else {}
        # Only what changes: a variable that is set again moves, and then no process that is forked can set its title.
        os.environ.update(engine_environment(os.environ, cpu).items() - os.environ.items())
        check_vllm(f"spec.{role.value}")
        with refusals(role, instead_of(role)):
            return cls(options, temperature)

    def logprobs(self, sequences: Sequences, count: int = 0) -> Tensor:
        """The log-probability of each response token, in nats: float32 [A]; with a `count` those of the so many most
        probable tokens at its place, see `top_tokens`. Raises RuntimeError where vLLM's output does not hold one finite
        number for each."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=count,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

        async def one(ids: list[int], begin: int) -> list[Any]:
            output = await final(self._engine.generate({"prompt_token_ids": ids}, parameters, self._id()))
            if count:
                return most_probable(output.prompt_logprobs, ids, begin, count)
            return response_logprobs(output.prompt_logprobs, ids, begin)

        sequences, _ = sequences.by_branch()
        logprobs = self._all(one, sequences)
        whole = torch.tensor([value for values in logprobs for value in values], dtype=torch.float32)
        return whole if sequences.sampled is None else whole[sequences.sampled]

    def scores(self, sequences: Sequences) -> Tensor:
        """The score of each sequence by a classifier with one output: float32 [N]. Raises
        RuntimeError where vLLM gives other than one number."""
        from vllm import PoolingParams

        parameters = PoolingParams(task="classify", use_activation=False)

        async def one(ids: list[int], _begin: int) -> float:
            output = await final(self._engine.encode({"prompt_token_ids": ids}, parameters, self._id()))
            score = torch.as_tensor(output.outputs.data).flatten()
            if len(score) != 1:
                raise RuntimeError(f"vLLM gave {len(score)} scores for a sequence, of a model that has one")
            return float(score)

        return torch.tensor(self._all(one, sequences.last_branches()), dtype=torch.float32)

    def restart_reason(self) -> str:
        """Reason why a new process is needed; empty if healthy."""
        if self._engine.errored:
            return ENGINE_DEAD
        silent = time.monotonic() - self._last_reply
        return (
            f"vLLM has finished nothing for {silent:.0f} s"
            if self._under_way and silent > HUNG_SECONDS
            else ""
        )

    def close(self) -> None:
        """Stops the engine's processes."""
        self._engine.shutdown()

    def _id(self) -> str:
        return f"sequence-{next(self._ids)}"

    def _all(
        self, one: Callable[[list[int], int], Coroutine[Any, Any, Any]], sequences: Sequences
    ) -> Sequence[Any]:
        """Submits all sequences at once; result of `one(tokens, prompt length)` for each."""

        async def noted(ids: list[int], begin: int) -> Any:
            result = await one(ids, begin)
            self._last_reply, self._under_way = time.monotonic(), self._under_way - 1
            return result

        async def together() -> list[Any]:
            begins = sequences.prompt_lengths.tolist()
            rows = [noted(sequences.row(i).tolist(), begin) for i, begin in enumerate(begins)]
            self._last_reply, self._under_way = time.monotonic(), len(rows)
            try:
                return await run_together(rows)
            finally:
                self._under_way = 0

        results: list[Any] = self._loop.run(together())
        return results


async def final(outputs: AsyncIterator[Any]) -> Any:
    return [output async for output in outputs][-1]


def most_probable(prompt_logprobs: Any, ids: Sequence[int], begin: int, count: int) -> list[list[float]]:
    """The `count` most probable tokens in vLLM's `prompt_logprobs` at each position from `begin` on: their
    log-probabilities, then their ids; absent ones where the vocabulary has fewer."""
    _check_length(prompt_logprobs, ids)
    rows = []
    for place in range(begin, len(ids)):
        most = [(float(entry.logprob), token) for token, entry in (prompt_logprobs[place] or {}).items()]
        most = sorted((each for each in most if math.isfinite(each[0])), reverse=True)[:count]
        if not most:
            raise RuntimeError(f"vLLM gave no finite log-probability at place {place}")
        most += [(LEFT_OUT, 0)] * (count - len(most))
        rows.append([*(value for value, _ in most), *(float(token) for _, token in most)])
    return rows


def _check_length(prompt_logprobs: Any, ids: Sequence[int]) -> None:
    if prompt_logprobs is None or len(prompt_logprobs) != len(ids):
        count = "no" if prompt_logprobs is None else len(prompt_logprobs)
        raise RuntimeError(f"vLLM gave {count} log-probabilities for {len(ids)} tokens")


def response_logprobs(prompt_logprobs: Any, ids: Sequence[int], begin: int) -> list[float]:
    """Log-probabilities of the tokens `ids` in vLLM's `prompt_logprobs` (a mapping from tokens per position), from
    position `begin` on.
    """
    _check_length(prompt_logprobs, ids)
    values = []
    for place in range(begin, len(ids)):
        entry = (prompt_logprobs[place] or {}).get(ids[place])
        if entry is None or not math.isfinite(entry.logprob):
            raise RuntimeError(f"vLLM gave no finite log-probability of token {ids[place]} at place {place}")
        values.append(float(entry.logprob))
    return values
