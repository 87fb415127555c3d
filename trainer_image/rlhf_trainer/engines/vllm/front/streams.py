"""Responses as binary frames on a path of our own: no JSON per token, detokenized for stop strings only."""

import logging
import math
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from ....tensors.sampling_mask import ROUNDING
from ....transport.frames import GENERATE, NO_VERSION, Asked, Kind, encode, encode_error, rows_between
from ..serve.constraints import CONSTRAINED
from .asgi import body, reply, stream
from .experts import TakenExperts, state_of
from .gate import WEIGHTS
from .guard import App, Receive, Scope, Send
from .images import prompt_of

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger("vllm.rlhf")

REQUEST = "rlhf-"
"""Beginning of the engine's names of our requests."""
KINDS = {None: Kind.TOKENS, "stop": Kind.STOP, "length": Kind.LENGTH, "abort": Kind.ABORT}
"""Frame kinds by vLLM's `finish_reason`; any other reason means a failed request."""


class TokenStreams:
    """ASGI middleware, behind the gate, with a path of its own:

    POST /generate, a `transport.frames.Asked` as JSON: 200 and the frames of the responses as they come. Later errors,
    including a prompt that the engine refuses (400), are ERROR frames. A client that disconnects aborts its request.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != GENERATE:
            await self.app(scope, receive, send)
            return
        try:
            request = Asked.model_validate_json(await body(receive))
        except ValidationError as error:
            await reply(send, 422, {"error": str(error)})
            return
        engine: AsyncLLM = scope["app"].state.engine_client
        await stream(receive, send, _frames(engine, request, scope.get(WEIGHTS)))


async def _frames(engine: "AsyncLLM", request: Asked, weights: int | None) -> AsyncIterator[bytes]:
    """Frames of the responses. Of cached keys and values of other prompts they use those that were begun with the same
    `weights`: those of earlier ones, of a system prompt say, would grow older without end."""
    from vllm.exceptions import VLLMClientError

    begun = False
    try:
        longest, required = engine.model_config.max_model_len, len(request.prompt) + request.max_tokens
        if required > longest:
            parts = f"a prompt of {len(request.prompt)} tokens and a response of up to {request.max_tokens}"
            raise ValueError(f"{parts} do not fit into a context of {longest}")
        most = min(request.kept, engine.model_config.get_vocab_size())
        prompt = prompt_of(request, engine.model_config.hf_config, weights)
        name, sent = f"{REQUEST}{uuid.uuid4()}", Counter[int]()
        taken = TakenExperts(engine, name, request)
        async for request_output in engine.generate(prompt, _sampling(request, most), name):
            begun = True
            # All at once: while a frame is sent, the engine may forget a response that has ended.
            starts = [_starts(engine, name, output) for output in request_output.outputs]
            experts = [taken.take(output) for output in request_output.outputs]
            frames = list[bytes]()
            for output, theirs, rows in zip(request_output.outputs, starts, experts, strict=True):
                if output.finish_reason not in KINDS:
                    raise RuntimeError(f"vLLM ended response {output.index} with {output.finish_reason!r}")
                logprobs, kept_tokens = sampled_from(output, most)
                masks = kept_tokens if request.kept else None
                kind, first = KINDS[output.finish_reason], sent[output.index]
                sent[output.index] += len(output.token_ids)
                frames.append(
                    encoded(output.index, kind, theirs, first, output.token_ids, logprobs, masks, rows)
                )
            yield b"".join(frames)
    except Exception as error:  # any error of an engine, dead ones included
        code = 400 if isinstance(error, ValueError | VLLMClientError) and not begun else 500
        log.log(logging.INFO if code == 400 else logging.WARNING, "a request failed: %r", error)
        yield encode_error(code, f"{type(error).__name__}: {error}" if code == 500 else str(error))


def encoded(
    index: int,
    kind: Kind,
    starts: Sequence[tuple[int, int]],
    first: int,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    kept_tokens: Sequence[Sequence[int]] | None,
    experts: np.ndarray | None = None,
) -> bytes:
    """Frames of a response's tokens from number `first` on, one for each weight version; `starts` as in `_starts`,
    `experts` as in `encode`."""
    frames = list[bytes]()
    for version, begin, end in _parts(starts, first, len(tokens)):
        masks = None if kept_tokens is None else kept_tokens[begin:end]
        last = kind if end == len(tokens) else Kind.TOKENS
        rows = rows_between(experts, len(tokens), begin, end)
        frames.append(encode(index, last, version, tokens[begin:end], logprobs[begin:end], masks, rows))
    return b"".join(frames)


def _parts(starts: Sequence[tuple[int, int]], first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """The weight versions of `count` tokens from a response's token number `first` on, each with the range of those
    that it sampled; one empty range for no token."""
    if not count:
        yield NO_VERSION, 0, 0
    ends = [*(start for _, start in starts[1:]), first + count]
    for (version, start), end in zip(starts, ends, strict=True):
        begin, end = max(start - first, 0), min(end - first, count)
        if begin < end:
            yield version, begin, end


def _starts(engine: "AsyncLLM", name: str, output: "CompletionOutput") -> list[tuple[int, int]]:
    """Weight versions of the response so far, each with the number of the first token that it sampled: vLLM names one
    with the tokens of each step, and tells them with a response's end alone."""
    if output.finish_reason is not None:
        spans = [(span.version, span.start) for span in output.weight_versions or ()]
    else:
        spans = state_of(engine, name, output.index).weight_version_starts
    known = [(int(version) if version.isdecimal() else NO_VERSION, start) for version, start in spans]
    return known or [(NO_VERSION, 0)]


def _sampling(request: Asked, most: int) -> "SamplingParams":
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    own = {"prompt", "kept", "images", "experts_from", "structured", "constrained"}
    fields = request.model_dump(exclude=own)
    if request.structured is not None:
        fields["structured_outputs"] = StructuredOutputsParams(**request.structured)
        fields["extra_args"] = {CONSTRAINED: request.constrained}
    begin = len(request.prompt) if request.experts_from is None else request.experts_from
    return SamplingParams(
        **fields,
        logprobs=most,
        flat_logprobs=True,
        detokenize=bool(request.stop),
        output_kind=RequestOutputKind.DELTA,
        routed_experts_prompt_start=begin,
    )


def sampled_from(output: "CompletionOutput", most: int) -> tuple[list[float], list[list[int]]]:
    """The log-probability of each sampled token, and with `most` > 0 the other tokens that it was sampled from.

    `output.logprobs` is vLLM's FlatLogprobs: for each token first itself, then the likeliest `most` ones in that order,
    whose log-probabilities after truncation are -inf for what it left out. More tokens are kept only where some tie
    with the last one; if none of those was sampled, the distribution is that of the others, renormalised.
    """
    flat: Any = output.logprobs
    if flat is None:
        return [], []
    if not most:
        return flat.logprobs, []
    logprobs, kept_tokens = list[float](), list[list[int]]()
    for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
        own, logprob = flat.token_ids[start], flat.logprobs[start]
        values = flat.logprobs[start + 1 : end]
        size = values.index(-math.inf) if values[-1] == -math.inf else len(values)
        others = dict(zip(flat.token_ids[start + 1 : start + 1 + size], values, strict=False))
        others.pop(own, None)
        if len(others) >= most - 1:
            total = math.exp(logprob) + sum(map(math.exp, others.values()))
            logprob -= math.log(total) if total < 1 - ROUNDING else 0.0
        logprobs.append(logprob)
        kept_tokens.append(list(others))
    return logprobs, kept_tokens
