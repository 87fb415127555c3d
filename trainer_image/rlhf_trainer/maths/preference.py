"""Losses of preference pairs without a reward model: DPO and SimPO, with label smoothing and a margin, IPO and ORPO.
And of answers that are judged alone: KTO.

A pair's margin is the reward of the chosen response less that of the rejected one; the share of margins above 0 is the
accuracy. The reward is `implicit_rewards` where there is a reference, else beta times the mean log-probability of a
response's tokens.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def implicit_rewards(logprobs: Tensor, reference_logprobs: Tensor, beta: float) -> Tensor:
    """beta (log p(y) - log q(y)): the reward under which p is the optimal policy, up to a term of the prompt.

    Shapes: two float [P] in nats, summed over the tokens of each response -> [P] in units of reward, same dtype;
    `beta` is reward per nat.
    Source: Rafailov et al. 2023 (arXiv:2305.18290), section 4 (r-hat), below eq. 7.
    """
    return beta * (logprobs - reference_logprobs)


def dpo_loss(margins: Tensor, label_smoothing: float = 0.0, target: float = 0.0) -> Tensor:
    """-(1 - s) log sigmoid(margin - t) - s log sigmoid(t - margin), s = `label_smoothing`: the share of wrong labels;
    t = `target`: the margin above which a pair counts less than one of even odds.

    Of the implicit rewards of DPO, t is the offset of ODPO; of beta times mean log-probabilities, it is SimPO's gamma.
    Shapes: float [P] in units of reward -> [P] in nats, same dtype. Raises ValueError unless 0 <= s < 0.5.
    Source: Rafailov et al. 2023 (arXiv:2305.18290), eq. 7; s Mitchell 2023, "A note on DPO with noisy preferences
    and relationship to IPO" (conservative DPO); t Amini et al. 2024 (arXiv:2402.10571), ODPO, and Meng et al. 2024
    (arXiv:2405.14734), eq. 6 (SimPO).
    """
    margins = margins - target
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label smoothing must be at least 0 and below 0.5; got {label_smoothing}")
    loss = -logsigmoid(margins)
    if label_smoothing == 0:
        return loss
    return (1 - label_smoothing) * loss - label_smoothing * logsigmoid(-margins)


def ipo_loss(margins: Tensor, beta: float) -> Tensor:
    """(h - 1 / (2 beta))^2, where h = margin / beta is the difference of the two log-ratios.

    beta is the paper's tau. The loss also penalises h above 1 / (2 beta), where DPO's margin grows without bound.
    Shapes: float [P] in units of reward, of `implicit_rewards` with the same `beta` > 0 -> [P] in nats squared, same
    dtype. The paper sums log-probabilities over a response; others divide them by its length first.
    Source: Azar et al. 2023 (arXiv:2310.12036), eq. 17.
    """
    return (margins / beta - 1 / (2 * beta)).square()


def mismatched_divergence(log_ratios: Tensor) -> Tensor:
    """max(0, mean of log p(y') - log q(y')) over answers y' to other prompts: KTO's biased estimate z0 of KL(p || q).

    Shapes: float [M] in nats, summed over the tokens of each answer, M >= 1 -> [] in nats, same dtype.
    Source: Ethayarajh et al. 2024 (arXiv:2402.01306), section 4.1.
    """
    return log_ratios.mean().clamp(min=0)


def kto_loss(
    log_ratios: Tensor, baseline: Tensor, labels: Tensor, beta: float, weights: tuple[float, float]
) -> Tensor:
    """w (1 - sigmoid(y beta (r - z0))) of each answer with log-ratio r and label y, w = `weights` of desirable answers
    (y = 1) and undesirable ones (y = -1): the loss of an answer saturates on both sides, as Kahneman and Tversky's
    value does.

    Shapes: `log_ratios` log p(y) - log q(y) and z0 = `baseline`, float [N] in nats, `labels` float [N] of 1 and -1 ->
    [N] without a unit, same dtype; `beta` is reward per nat. z0 has no gradient.
    Source: Ethayarajh et al. 2024 (arXiv:2402.01306), section 4.1 (L_KTO, with lambda_y the weights).
    """
    desirable, undesirable = weights
    share = torch.sigmoid(-labels * beta * (log_ratios - baseline.detach()))
    return torch.where(labels > 0, desirable * share, undesirable * share)


_SURE = -1e-7
"""The highest mean log-probability whose odds are told apart: those of 0 are infinite."""


def odds_ratio_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(log odds(chosen) - log odds(rejected)), odds(p) = p / (1 - p) of p = exp(mean log-probability).

    Shapes: two float [P] in nats per token, at most 0 -> [P] in nats, same dtype.
    Source: Hong et al. 2024 (arXiv:2403.07691), eq. 4, 5 and 7 (ORPO; eq. 6 adds the chosen responses' likelihood).
    """
    return -logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def _log_odds(x: Tensor) -> Tensor:
    near = x.clamp(max=_SURE)
    return near - torch.log(-torch.expm1(near))
