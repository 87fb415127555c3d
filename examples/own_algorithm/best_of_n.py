"""Best-of-n supervised learning: the policy learns the best of the responses that it gave to each prompt, by their
likelihood (RAFT: Dong et al. 2023, arXiv:2304.06767).

A whole algorithm: its settings, its graph, one compute function, one loss. The manifest names `ALGORITHM`.
"""

import torch

from rlhf_api import (
    POLICY,
    SEQUENCES,
    Algorithm,
    CommonSpec,
    Compute,
    Frozen,
    Generate,
    Graph,
    Positive,
    Score,
    Train,
)
from rlhf_trainer.extend import Columns, Loss, OpContext, to_tokens


class Settings(Frozen):
    """`spec.custom.settings`, in camelCase there."""

    keep: Positive = 1
    """Responses to each prompt that are learned from, the best ones."""
    minibatch_size: Positive = 64
    """Responses of one optimizer update, over all ranks; those that are not learned from count too."""
    epochs: Positive = 1
    """Passes over each step's responses."""


def graph(spec: CommonSpec, settings: Settings) -> Graph:  # noqa: ARG001
    """Sampled, scored, the best chosen, trained on."""
    return Graph(
        (
            Generate(),
            Score(),
            Compute(
                name="choose",
                function=f"{__name__}:keep_best",
                reads=("scores", "position"),
                writes=("chosen",),
            ),
            Train(
                name="train_policy",
                model=POLICY,
                loss=f"{__name__}:likelihood_of_chosen",
                reads=(SEQUENCES, "chosen"),
                minibatch_size=settings.minibatch_size,
                epochs=settings.epochs,
            ),
        )
    )


def keep_best(columns: Columns, ctx: OpContext[Settings]) -> Columns:
    """`chosen`: 1 for the best responses to each prompt, else 0: float32 [N]."""
    scores, position = columns["scores"], columns["position"]
    chosen = torch.zeros_like(scores)
    for prompt in position.unique():
        rows = (position == prompt).nonzero().squeeze(1)
        best = scores[rows].topk(min(ctx.settings.keep, len(rows))).indices
        chosen[rows[best]] = 1.0
    return columns.with_rows(chosen=chosen)


def likelihood_of_chosen(columns: Columns, ctx: OpContext[Settings]) -> Loss:  # noqa: ARG001
    """Mean negative log-likelihood of the chosen responses' tokens, in nats.

    `columns` are those of a minibatch; the function that is returned sees its micro-batches one by one, and their
    losses add up to the minibatch's. So each token's weight is made here, once.
    """
    weights = to_tokens(columns["chosen"], columns.lengths)
    weights = weights / weights.sum().clamp(min=1)

    def loss(logprobs, micro):
        weight = weights[micro.response_index].to(logprobs.device)
        return -(weight * logprobs).sum(), {"chosen_share": (weight > 0).sum() / len(weights)}

    return loss


ALGORITHM = Algorithm(name="best_of_n", settings=Settings, graph=graph)
