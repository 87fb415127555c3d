"""Check of tokens' weight versions, in responses that went on over new weights, by their log-probabilities."""

from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import mean

import torch

from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response


def errors(
    model: torch.nn.Module, hold: Callable[[int], None], works: Sequence[PartialRollout]
) -> dict[str, float]:
    """Mean differences of log-probabilities to the sampler's: of all tokens; of the last of a version and the first of
    the next; and of the latter as it would be one token later. `hold` gives the model a version."""
    every, right, moved = list[float](), list[float](), list[float]()
    for work in works:
        (response,) = work.responses
        versions = list(response.versions)
        later = [versions[0], *versions[:-1]]
        right_errors, wrong = (
            _errors(model, hold, work.prompt.tokens, response, labels) for labels in (versions, later)
        )
        firsts = [at for at in range(1, len(versions)) if versions[at] != versions[at - 1]]
        every.append(right_errors.mean().item())
        right += [right_errors[at + off].item() for at in firsts for off in (-1, 0)]
        moved += [wrong[at].item() for at in firsts]
    return {"error": mean(every), "error_at_boundaries": mean(right), "error_if_moved": mean(moved)}


@torch.no_grad()
def _errors(
    model: torch.nn.Module,
    hold: Callable[[int], None],
    prompt: Sequence[int],
    response: Response,
    versions: Sequence[int],
) -> torch.Tensor:
    """|log p - log p_sampler| of each token, by the model of its version with the keys and values that earlier ones
    left."""
    device, tokens = next(model.parameters()).device, [*prompt, *response.tokens]
    past, read, chosen_logprobs = None, 0, list[torch.Tensor]()
    for version, same in groupby(versions):
        hold(version)
        end = (read or len(prompt) - 1) + len(list(same))
        fed = torch.tensor([tokens[read:end]], device=device)
        output = model(fed, past_key_values=past, use_cache=True)
        logprobs = output.logits[0, 0 if read else len(prompt) - 1 :].float().log_softmax(-1)
        chosen = torch.tensor(tokens[max(read, len(prompt) - 1) + 1 : end + 1], device=device)
        chosen_logprobs.append(logprobs.gather(1, chosen[:, None])[:, 0].cpu())
        past, read = output.past_key_values, end
    return (torch.cat(chosen_logprobs) - torch.tensor(response.logprobs)).abs()
