"""Metrics of a step: of its responses, from the columns that its algorithm has, and of GPU memory."""

import torch
from torch import Tensor

from rlhf_api.graph import ENVIRONMENT_REWARD

from ..maths.agreement import agreement
from ..maths.importance import effective_share
from ..maths.kl import token_kl
from ..tensors.columns import Columns


def step_metrics(columns: Columns, compared: Tensor | None = None) -> dict[str, float]:
    """Reward, KL and lengths of a batch of responses, and the agreement of generators and trainer on the tokens
    `compared`, bool [A], whose log-probabilities both computed with the same weights."""
    metrics: dict[str, float] = {}
    if "scores" in columns:
        scores = columns["scores"].double()  # the sum of large float32 scores may be infinite
        metrics |= {"reward_mean": float(scores.mean()), "reward_std": float(scores.std(correction=0))}
    if "logprobs" in columns and "reference_logprobs" in columns:
        metrics["kl_mean"] = float(token_kl(columns["logprobs"], columns["reference_logprobs"]).mean())
    metrics |= _lengths(columns.lengths)
    metrics |= _of_episodes(columns)
    metrics["finished_share"] = float(columns["finished"].float().mean())
    if "values" in columns and "returns" in columns:
        residual = (columns["returns"] - columns["values"]).var(correction=0)
        spread = columns["returns"].var(correction=0)
        metrics["value_explained_variance"] = float(1 - residual / spread) if spread > 0 else 0.0
    if "logprobs" in columns and compared is not None and bool(compared.any()):
        pair = columns["logprobs"][compared], columns["sampled_logprobs"][compared]
        metrics |= {name: float(value) for name, value in agreement(*pair, len(pair[0])).items()}
    if "importance_weights" in columns:
        metrics["importance_effective_share"] = float(effective_share(columns["importance_weights"]))
    return metrics


def _of_episodes(columns: Columns) -> dict[str, float]:
    """Turns, branches and rewards of episodes, and the tokens that the environment replied with."""
    if ENVIRONMENT_REWARD not in columns:
        return {}
    sequences = columns.sequences
    replies, branches = sequences.after_lengths - columns.lengths, sequences.branches
    return {
        "turns_mean": float(columns["turns"].double().mean()),
        "branches_mean": 0.0 if branches is None else int(branches.sum()) / len(sequences),
        "context_tokens_mean": float(replies.double().mean()),
        "reward_environment_mean": float(columns[ENVIRONMENT_REWARD].double().mean()),
    }


def _lengths(lengths: Tensor) -> dict[str, float]:
    """Mean and percentiles of the responses' lengths; a percentile is the length of a response."""
    p50, p99 = torch.quantile(
        lengths.double(), torch.tensor([0.5, 0.99]).double().to(lengths.device), interpolation="higher"
    ).tolist()
    mean = float(lengths.float().mean())
    return {"response_length_mean": mean, "response_length_p50": p50, "response_length_p99": p99}


def gpu_memory(device: torch.device) -> dict[str, float]:
    """Memory of this rank's GPU since the last call: peak memory allocated, in 10^9 bytes, and how many allocations
    failed until the allocator had given back what it keeps. Empty on a CPU."""
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device)
    retries = torch.cuda.memory_stats(device).get("num_alloc_retries", 0)
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.reset_accumulated_memory_stats(device)
    return {"memory_peak_gigabytes": peak / 1e9, "memory_retries": float(retries)}
