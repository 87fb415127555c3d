"""Losses and scores of steps of responses, from a process reward model."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def step_likelihood_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """-(y log p + (1 - y) log(1 - p)) in nats, p = sigmoid(score): the negative log-likelihood of a step that is right
    with probability y, mostly 0 or 1.

    Shapes: `scores`, log-odds, and `labels` in 0 ... 1, float [S] -> [S], same dtype.
    Source: Lightman et al. 2023 (arXiv:2305.20050), section 2.6, and Uesato et al. 2022 (arXiv:2211.14275); with soft
    labels Wang et al. 2023 (arXiv:2312.08935).
    """
    return binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")


RESPONSE_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda probabilities: probabilities.prod(),
    "min": lambda probabilities: probabilities.min(),
    "last": lambda probabilities: probabilities[-1],
}
"""Score of a response, of the probabilities that its steps are right, [S] with S >= 1 -> []: the product, that all are
(Lightman et al. 2023, section 2.6); the minimum (Wang et al. 2023); the last one (Snell et al. 2024,
arXiv:2408.03314)."""
