"""An engine's client whose engine is a model of this process."""

import asyncio
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rlhf_api.contract.run import Member
from rlhf_api.sections.sampling import Sampling

from ...data.sampling_request import SamplingRequest
from ...data.stop_strings import StopStrings
from ...local_generation.sampler import Sampled, generate_batch
from ...tensors.records import Prompt
from ..partial_rollout import PartialRollout, Response


@dataclass(frozen=True)
class LocalClient:
    """Samples by Hugging Face's `generate`; implements `EngineClient`. `model`: one whose generation configuration is
    hidden (`sampling_of_the_job_alone`); `pad`: the token that fills rows. Draws from torch's global generator."""

    model: Any
    sampling: Sampling
    ends: Sequence[int]
    stops: StopStrings
    pad: int

    async def ask(
        self, _member: Member, work: PartialRollout, progress: Callable[[], None]
    ) -> PartialRollout:
        """Completes the responses one after another, each to the end of its present turn."""
        for index in work.unfinished:
            response = work.responses[index]
            room = work.turn_end(response, self.sampling.max_new_tokens) - len(response.tokens)
            sampled = await asyncio.to_thread(self._sample, work.prompt, response, room)
            tokens, logprobs = array("i", sampled.tokens.tolist()), array("f", sampled.logprobs.tolist())
            response.add(tokens, logprobs, 0)
            response.finish("stop" if sampled.finished else "length")
            work.ended(work.prompt, response)
            progress()
        return work

    async def listens(self, _member: Member) -> bool:
        """The model is in this process."""
        return True

    def _sample(self, prompt: Prompt, response: Response, room: int) -> Sampled:
        so_far = replace(prompt, tokens=response.before(prompt))
        sampling = self.sampling.model_copy(update={"max_new_tokens": room})
        with torch.no_grad():
            (sampled,) = generate_batch(
                self.model,
                [so_far],
                SamplingRequest(sampling, masks=False),
                self.ends,
                self.stops,
                self.pad,
                threading.Event(),
            )
        return sampled
