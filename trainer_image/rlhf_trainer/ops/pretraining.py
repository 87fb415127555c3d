"""A language-modelling loss on pretraining rows, mixed into the policy's updates (PPO-ptx, Ouyang et al. 2022)."""

from dataclasses import replace

from torch import Tensor

from ..maths.losses import token_weights
from ..tensors.batches import Loss, MicroBatch
from ..tensors.columns import Columns
from ..tensors.packed import to_device
from ..tensors.records import Sequences


def mixed(own: Sequences, loss: Loss, text: Columns, coefficient: float) -> tuple[Sequences, Loss]:
    """The sequences of one update, and `loss` of its `own` ones plus coefficient x mean negative log-likelihood, in
    nats, of the response tokens of `text` that are in its mask.

    Source: Ouyang et al. 2022 (arXiv:2203.02155), eq. 2, the term with gamma. Log-probabilities are at the sampling
    temperature, as in the policy loss.
    """
    rows, tokens = len(own), int(own.response_lengths.sum())
    weights = token_weights(text.lengths, "token", text.mask)

    def both(output: Tensor, micro: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        mine = micro.response_index < tokens
        inner = replace(micro, rows=micro.rows[micro.rows < rows], response_index=micro.response_index[mine])
        value, statistics = loss(output[to_device(mine.nonzero()[:, 0], output.device)], inner)
        logprobs = output[to_device((~mine).nonzero()[:, 0], output.device)]
        logprobs = logprobs[:, 0] if logprobs.ndim == 2 else logprobs
        weight = to_device(weights[micro.response_index[~mine] - tokens], output.device)
        likelihood = -(weight * logprobs).sum()
        return value + coefficient * likelihood, {**statistics, "pretraining_loss": likelihood}

    return Sequences.join([own, text.sequences]), both
