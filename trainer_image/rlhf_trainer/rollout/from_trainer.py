"""Rollouts that the trainer generates itself."""

import json
from dataclasses import replace
from itertools import islice

import torch

from ..data.sampling_request import SamplingRequest
from ..dispatch.roster import Stopped
from ..local_generation.sampler import Sampled, shared_sampler
from ..local_generation.shared import generate_shared
from ..models.trained_model import TrainedModel
from ..process.timeline import RECORDER
from ..ranks.context import TrainerContext
from ..tensors.records import Prompt, Rollout
from .clients.turn_rounds import TurnRounds
from .in_flight.requests import Responses
from .in_flight.saved_responses import decode, encode
from .partial_rollout import Ended, PartialRollout, nobody, rollouts
from .rollouts import Rollouts


class TrainerRollouts(Rollouts):
    """Samples with the policy's own weights, on every rank."""

    def __init__(self, ctx: TrainerContext, policy: TrainedModel, rounds: TurnRounds | None = None) -> None:
        """`rounds`: the environment of this rank's episodes; None where responses have one turn."""
        super().__init__()
        self._ctx, self._policy, self._rounds = ctx, policy, rounds

    def answer(
        self,
        prompts: list[Prompt],
        request: SamplingRequest,
        ended: Ended = nobody,  # noqa: ARG002
        *,
        enough: int | None = None,  # noqa: ARG002
    ) -> Responses:
        """Each rank has all of them. `ended` is not called, and none is stopped."""
        with RECORDER.measure("generate"):
            if self._rounds is not None:
                return self._play(self._rounds, prompts, request)
            return Responses(self._generate(prompts, request))

    def _generate(self, prompts: list[Prompt], request: SamplingRequest) -> list[Rollout]:
        """Sampled responses, and given ones in their places."""
        ctx, version, each = self._ctx, self.version, request.sampling.responses_per_prompt
        ungiven = [prompt for prompt in prompts if prompt.given is None]
        made = iter(
            generate_shared(self._policy, ctx.ranks, ctx.tokenizer, ungiven, request, version, ctx.stop)
        )
        of_prompts = (
            islice(made, each)
            if prompt.given is None
            else PartialRollout.begin(prompt, each, version=version).rollouts()
            for prompt in prompts
        )
        return [rollout for rollouts_of in of_prompts for rollout in rollouts_of]

    def _play(self, rounds: TurnRounds, prompts: list[Prompt], request: SamplingRequest) -> Responses:
        """Each rank plays the episodes of its share of the prompts."""
        ctx, ranks, sampling = self._ctx, self._ctx.ranks, request.sampling
        works = [
            PartialRollout.begin(prompt, sampling.responses_per_prompt)
            for prompt in prompts[ranks.rank :: ranks.world]
        ]
        with shared_sampler(self._policy, ctx.tokenizer, sampling, ctx.stop) as sampler:

            def sample(turns: list[Prompt], most: int) -> list[Sampled]:
                limits = {"max_new_tokens": most, "min_new_tokens": min(most, sampling.min_new_tokens)}
                limited = replace(request, sampling=sampling.model_copy(update=limits))
                return sampler.sample(turns, limited)

            refused = rounds.play(works, sample, sampling.max_new_tokens, self.version)
        if ranks.any(ctx.stop.is_set()):
            raise Stopped("stopped while the trainer generated")
        mine = {"works": encode(works), "refused": json.dumps(refused).encode()}
        gathered = ranks.gather(
            {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in mine.items()}
        )
        played = {work.prompt.id: work for each in gathered for work in decode(_bytes(each["works"]))}
        for prompt in prompts:
            work = played[prompt.id]
            work.prompt = replace(prompt, tokens=work.prompt.tokens)
        reasons = {
            key: reason for each in gathered for key, reason in json.loads(_bytes(each["refused"])).items()
        }
        return Responses(
            rollouts(played[prompt.id] for prompt in prompts if prompt.id not in reasons), refused=reasons
        )


def _bytes(data: torch.Tensor) -> bytes:
    return data.numpy().tobytes()
