"""PPO: experience from rollouts and scores, and the losses of policy and critic. Pure."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rlhf_api.spec import PPO

from ..batches import Loss, MicroBatch
from ..maths.advantages import generalized_advantages, whiten
from ..maths.agreement import mean_abs_difference, ratio_outside
from ..maths.kl import token_kl, token_kl_k3, token_rewards
from ..maths.losses import clipped, clipped_policy_loss, clipped_value_loss, token_weights
from ..records import Experience, Sequences


def build_experience(
    sequences: Sequences,
    *,
    sampled_logprobs: Tensor,
    versions: Tensor,
    logprobs: Tensor,
    reference_logprobs: Tensor,
    values: Tensor,
    scores: Tensor,
    ppo: PPO,
) -> Experience:
    """Token rewards (KL penalty, score at the last answer token), their generalized advantages, whitened.

    Arrays are response-aligned float32 [A] (`versions` int64), `scores` float32 [N]; see `records.Experience`.
    """
    lengths = sequences.response_lengths
    rewards = token_rewards(token_kl(logprobs, reference_logprobs), scores, lengths, ppo.kl_coefficient)
    advantages, returns = generalized_advantages(rewards, values, lengths, ppo.gamma, ppo.gae_lambda)
    return Experience(
        sequences=sequences,
        sampled_logprobs=sampled_logprobs,
        logprobs=logprobs,
        reference_logprobs=reference_logprobs,
        values=values,
        advantages=whiten(advantages) if ppo.whiten_advantages else advantages,
        returns=returns,
        versions=versions,
        scores=scores,
    )


def minibatches(count: int, ppo: PPO, seed: int) -> Iterator[Tensor]:
    """Rows of each minibatch, `ppo.epochs` times over all rows, shuffled by `seed`; a short rest joins the last."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(ppo.epochs):
        order = torch.randperm(count, generator=generator)
        whole = max(1, count // ppo.minibatch_size)
        for i in range(whole):
            yield order[i * ppo.minibatch_size : (i + 1) * ppo.minibatch_size if i < whole - 1 else count]


def policy_loss(experience: Experience, ppo: PPO) -> Loss:
    """The clipped policy loss of one minibatch, as micro-batches' weighted sums."""
    weights = token_weights(experience.sequences.response_lengths, ppo.loss_aggregation)

    def loss(logprobs: Tensor, micro: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        index, device = micro.response_index, logprobs.device
        weight, old = weights[index].to(device), experience.logprobs[index].to(device)
        per_token = clipped_policy_loss(
            logprobs, old, experience.advantages[index].to(device), ppo.clip_ratio
        )
        new = logprobs.detach()
        return (weight * per_token).sum(), {
            "clip_fraction": (weight * clipped(new, old, ppo.clip_ratio)).sum(),
            "update_kl": (weight * token_kl_k3(old, new)).sum(),
        }

    return loss


def critic_loss(experience: Experience, ppo: PPO) -> Loss:
    """The clipped value loss of one minibatch, as micro-batches' weighted sums."""
    weights = token_weights(experience.sequences.response_lengths, ppo.loss_aggregation)

    def loss(values: Tensor, micro: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        index, device = micro.response_index, values.device
        old, returns = experience.values[index].to(device), experience.returns[index].to(device)
        per_token = clipped_value_loss(values, old, returns, ppo.clip_value or None)
        return (weights[index].to(device) * per_token).sum(), {}

    return loss


def figures(experience: Experience, finished: Tensor) -> dict[str, float]:
    """What a step logs of its experience; `finished` bool [N]: answers that ended by themselves."""
    lengths = experience.sequences.response_lengths
    kl = token_kl(experience.logprobs, experience.reference_logprobs)
    residual = (experience.returns - experience.values).var(correction=0)
    spread = experience.returns.var(correction=0)
    return {
        "reward_mean": float(experience.scores.mean()),
        "reward_std": float(experience.scores.std(correction=0)),
        "kl_mean": float(kl.mean()),
        "answer_length_mean": float(lengths.float().mean()),
        "finished_share": float(finished.float().mean()),
        "value_explained_variance": float(1 - residual / spread) if spread > 0 else 0.0,
        "logprob_difference": float(mean_abs_difference(experience.logprobs, experience.sampled_logprobs)),
        "ratio_outside_share": float(ratio_outside(experience.logprobs, experience.sampled_logprobs)),
    }
