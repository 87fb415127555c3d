"""Losses of preference pairs without a reward model: DPO, with label smoothing, and IPO.

A pair's margin is `implicit_rewards` of the chosen response less that of the rejected one; the share of margins above
0 is the accuracy.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid


def implicit_rewards(logprobs: Tensor, reference_logprobs: Tensor, beta: float) -> Tensor:
    """beta (log p(y) - log q(y)): the reward under which p is the optimal policy, up to a term of the prompt.

    Shapes: two float [P] in nats, summed over the tokens of each response -> [P] in units of reward, same dtype;
    `beta` is reward per nat.
    Source: Rafailov et al. 2023 (arXiv:2305.18290), section 5.1 (r-hat), below eq. 7.
    """
    return beta * (logprobs - reference_logprobs)


def dpo_loss(margins: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """-(1 - s) log sigmoid(margin) - s log sigmoid(-margin), s = `label_smoothing`: the share of wrong labels.

    Shapes: float [P] in units of reward -> [P] in nats, same dtype. Raises ValueError unless 0 <= s < 0.5.
    Source: Rafailov et al. 2023 (arXiv:2305.18290), eq. 7; s Mitchell 2023, "A note on DPO with noisy preferences
    and relationship to IPO" (conservative DPO).
    """
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
