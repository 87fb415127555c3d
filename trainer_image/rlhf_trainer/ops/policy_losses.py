"""Losses of policies: the surrogate of an algorithm and the terms that settings add to it, with their metrics."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlhf_api.algorithms import teacher_kl, teachers_of
from rlhf_api.algorithms.distillation import Distillation
from rlhf_api.algorithms.policy_gradient import PolicyGradient
from rlhf_api.graph import GIVEN, REFERENCE_TOP, TEACHER
from rlhf_api.sections.common import CommonSpec

from ..maths.agreement import agreement, comparable
from ..maths.divergence import top_divergence
from ..maths.kl import kl_estimate, token_kl_k3
from ..maths.losses import (
    clipped_surrogate,
    clipped_weight_loss,
    outside_clip,
    ratio,
    sequence_ratio,
    token_weights,
)
from ..tensors.batches import Loss, MicroBatch
from ..tensors.columns import Columns
from ..tensors.packed import to_device
from ..tensors.ragged import to_tokens
from ..tensors.top_tokens import top_logprobs_of
from .compute import entropy_coefficient, kl_coefficient
from .context import OpContext

Ratios = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(log-probabilities, those before the step, rows of the micro-batch, mask) -> importance ratio of each token."""
Surrogate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(importance ratio, log-probability, advantage) -> loss of each token."""


def policy(columns: Columns, ctx: OpContext[PolicyGradient]) -> Loss:
    """Clipped surrogate of each token's importance ratio, with the settings' KL penalty and entropy bonus."""
    return _PolicyLoss(columns, ctx, _token_ratio, _clipped_surrogate(ctx))


def gspo(columns: Columns, ctx: OpContext[PolicyGradient]) -> Loss:
    """Clipped surrogate of the sequence-level ratio (GSPO, Zheng et al. 2025, arXiv:2507.18071, eq. 5), with the
    settings' KL penalty and entropy bonus.
    """

    def ratios(logprobs: Tensor, old: Tensor, rows: Tensor, mask: Tensor | None) -> Tensor:
        return sequence_ratio(logprobs, old, columns.lengths[rows], mask)

    return _PolicyLoss(columns, ctx, ratios, _clipped_surrogate(ctx))


def cispo(columns: Columns, ctx: OpContext[PolicyGradient]) -> Loss:
    """Log-probability of each token, weighed by its clipped importance ratio and its advantage, with the settings' KL
    penalty and entropy bonus (MiniMax 2025, arXiv:2506.13585, eq. 4)."""
    low, high = _clip_range(ctx)

    def surrogate(r: Tensor, logprobs: Tensor, advantages: Tensor) -> Tensor:
        return clipped_weight_loss(r, logprobs, advantages, low, high)

    return _PolicyLoss(columns, ctx, _token_ratio, surrogate)


def loss_weights(columns: Columns, ctx: OpContext[PolicyGradient]) -> Tensor:
    """Each response token's weight in the loss, by the settings' aggregation: float [A]."""
    longest = ctx.spec.longest_response
    return token_weights(columns.lengths, ctx.settings.loss_aggregation, columns.mask, constant=longest)


def tokens_of_teachers(columns: Columns, spec: CommonSpec) -> dict[str, Tensor]:
    """Tokens of the responses of each teacher that has any, bool [A], by the name of its divergence in the metrics."""
    if TEACHER not in columns:
        return {}
    numbers, names = to_tokens(columns[TEACHER], columns.lengths), enumerate(teachers_of(spec))
    tokens = {teacher_kl(teacher): numbers == number for number, teacher in names}
    return {name: of for name, of in tokens.items() if bool(of.any())}


def _token_ratio(logprobs: Tensor, old: Tensor, _rows: Tensor, _mask: Tensor | None) -> Tensor:
    return ratio(logprobs, old)


def _clip_range(ctx: OpContext[PolicyGradient]) -> tuple[float, float]:
    low, high = ctx.settings.clip_ratio, ctx.settings.clip_ratio_high
    return low, low if high is None else high


def _clipped_surrogate(ctx: OpContext[PolicyGradient]) -> Surrogate:
    low, high = _clip_range(ctx)

    def surrogate(r: Tensor, _logprobs: Tensor, advantages: Tensor) -> Tensor:
        return clipped_surrogate(r, advantages, low, high, ctx.settings.dual_clip)

    return surrogate


def comparable_tokens(columns: Columns, ctx: OpContext) -> Tensor:
    """Tokens whose sampler is compared with the policy of the loss, bool [A]: in a step's first update the policy
    before it, whose log-probabilities no node before has computed."""
    return comparable(columns["versions"], ctx.step, keep=ctx.spec.rollout.in_flight == "keep")


def sampler_agreement(
    columns: Columns, compared: Tensor, index: Tensor, logprobs: Tensor
) -> dict[str, Tensor]:
    """Agreement metrics of a micro-batch's part of the tokens `compared`, bool [A]; none where there are none.

    `index` int64 [A_mb]: the micro-batch's tokens among all; `logprobs` [A_mb]: the policy's, without a gradient.
    """
    if not (count := int(compared.sum())):
        return {}
    same = compared[index].nonzero()[:, 0]
    sampled = to_device(columns["sampled_logprobs"][index[same]], logprobs.device)
    return agreement(logprobs[to_device(same, logprobs.device)], sampled, count)


class _Tokens:
    """Response tokens of a micro-batch: the policy's output and their part of each column, [A_mb] on its device."""

    def __init__(self, columns: Columns, output: Tensor, micro: MicroBatch, weights: Tensor) -> None:
        self._columns = columns
        self.micro, self.index, self.device = micro, micro.response_index, output.device
        self.weight = self.of(weights)
        self.top: Tensor | None = None
        if REFERENCE_TOP in columns:
            output, self.top = output[:, :2], output[:, 2:]
        self.logprobs, self.entropy = output.unbind(-1)
        self.new = self.logprobs.detach()

    def of(self, values: Tensor) -> Tensor:
        """[A, ...] of the minibatch -> [A_mb, ...]."""
        return to_device(values[self.index], self.device)

    def column(self, name: str) -> Tensor:
        return self.of(self._columns[name])


class _PolicyLoss:
    """Sum of the terms of a minibatch's tokens, each weighed; called with one of its micro-batches at a time."""

    def __init__(
        self, columns: Columns, ctx: OpContext[PolicyGradient], ratios: Ratios, surrogate: Surrogate
    ) -> None:
        self._columns, self._ctx, self._ratios, self._surrogate = columns, ctx, ratios, surrogate
        self._weights = loss_weights(columns, ctx)
        # Weights of the metrics, whatever the loss's aggregation: over all tokens where the mask counts none.
        counted = None if columns.mask is None or not bool(columns.mask.any()) else columns.mask
        self._shares = token_weights(columns.lengths, "token", counted)
        self._count = max(1, int(columns.lengths.sum()))
        self._given = to_tokens(columns[GIVEN] > 0, columns.lengths) if GIVEN in columns else None
        self._compared = None if "logprobs" in columns else comparable_tokens(columns, ctx)
        if self._compared is not None and self._given is not None:
            self._compared = self._compared & ~self._given
        teachers = tokens_of_teachers(columns, ctx.spec)
        self._teachers = {name: of / of.sum() for name, of in teachers.items()}

    def __call__(self, output: Tensor, micro: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        columns, settings = self._columns, self._ctx.settings
        tokens = _Tokens(columns, output, micro, self._weights)
        old, corrected = self._old_logprobs(tokens), self._corrected(tokens)
        total, metrics = self._surrogate_term(tokens, old, corrected)
        if "kl_cov" in columns:  # Cui et al. 2025 (arXiv:2505.22617), KL-Cov, with a coefficient of 1
            covariant = corrected * tokens.column("kl_cov")
            total = total + (covariant * token_kl_k3(old, tokens.logprobs)).sum()
        if tokens.top is not None:
            divergence, of_divergence = self._divergence_term(tokens, tokens.top)
            total, metrics = total + divergence, metrics | of_divergence
        if settings.kl_penalty == "loss" and "reference_logprobs" in columns:
            total = total + self._kl_term(tokens, old)
        if settings.entropy_coefficient:
            total = total - entropy_coefficient(self._ctx) * (tokens.weight * tokens.entropy).sum()
        return total, metrics | self._agreement(tokens)

    def _old_logprobs(self, tokens: _Tokens) -> Tensor:
        """Log-probabilities before the step; the present ones where that is now, and of answers that nobody sampled."""
        if self._compared is not None:
            return tokens.new
        old = tokens.column("logprobs")
        return old if self._given is None else torch.where(tokens.of(self._given), tokens.new, old)

    def _corrected(self, tokens: _Tokens) -> Tensor:
        """The weights of the policy's own terms, which leave tokens out and correct for their sampler."""
        weight = tokens.weight
        for name in ("importance_weights", "entropy_mask"):
            if name in self._columns:
                weight = weight * tokens.column(name)
        return weight * ~tokens.column("clip_cov") if "clip_cov" in self._columns else weight

    def _surrogate_term(
        self, tokens: _Tokens, old: Tensor, corrected: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mask = None if self._columns.mask is None else tokens.of(self._columns.mask)
        ratios = self._ratios(tokens.logprobs, old, tokens.micro.rows, mask)
        of_tokens = self._surrogate(ratios, tokens.logprobs, tokens.column("advantages"))
        share, constant = tokens.of(self._shares), ratios.detach()
        return (corrected * of_tokens).sum(), {
            "clip_fraction": (share * outside_clip(constant, *_clip_range(self._ctx))).sum(),
            "update_kl": (share * token_kl_k3(old, tokens.new)).sum(),
            "entropy": tokens.entropy.detach().sum() / self._count,
            "ratio_mean": (share * constant).sum(),
        }

    def _divergence_term(self, tokens: _Tokens, top: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Divergence from the teacher over its most probable tokens, whose log-probabilities in the policy are `top`
        [A_mb, K]."""
        settings = self._ctx.settings
        beta = settings.beta if isinstance(settings, Distillation) else 1.0
        teacher = to_device(top_logprobs_of(self._columns[REFERENCE_TOP][tokens.index]), tokens.device)
        divergence = tokens.weight * top_divergence(top, teacher, beta)
        reverse = top_divergence(top.detach(), teacher, 1.0)
        return kl_coefficient(self._ctx) * divergence.sum(), self._mean_kl(tokens, reverse)

    def _kl_term(self, tokens: _Tokens, old: Tensor) -> Tensor:
        settings = self._ctx.settings
        kl = kl_estimate(tokens.logprobs, tokens.column("reference_logprobs"), settings.kl_estimator)
        if settings.kl_corrected:
            kl = ratio(tokens.logprobs, old) * kl
        return kl_coefficient(self._ctx) * (tokens.weight * kl).sum()

    def _agreement(self, tokens: _Tokens) -> dict[str, Tensor]:
        """Metrics of the policy before the step, where no node before has computed them."""
        if self._compared is None:
            return {}
        metrics = sampler_agreement(self._columns, self._compared, tokens.index, tokens.new)
        if "reference_logprobs" in self._columns:
            metrics |= self._mean_kl(tokens, tokens.new - tokens.column("reference_logprobs"))
        return metrics

    def _mean_kl(self, tokens: _Tokens, kl: Tensor) -> dict[str, Tensor]:
        """The mean over all tokens, and over those of each teacher."""
        of_teachers = {name: (kl * tokens.of(share)).sum() for name, share in self._teachers.items()}
        return {"kl_mean": kl.sum() / self._count, **of_teachers}
