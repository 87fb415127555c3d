"""Fingerprints of what a model serves: every byte of it, once, whatever its layout, and some at a time."""

import pytest
import torch
from torch import Tensor, nn

from rlhf_trainer.engines.vllm.weights.served import Served, fingerprint, parts
from rlhf_trainer.weights.buckets import Bucket, Spec
from rlhf_trainer.weights.digest import Digest, lanes


class Tied(nn.Module):
    """One weight under two names, one transposed, and one of an odd number of bytes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(8, 4))
        self.head = nn.Parameter(self.embedding.data)
        self.turned = nn.Parameter(torch.randn(6, 4).t())
        self.odd = nn.Parameter(torch.randn(3).bfloat16())


def served(model: nn.Module, *arrived: tuple[str, Tensor, Tensor]) -> Served:
    proof = Served(model)
    proof.loaded(3, arrived)
    return proof


def test_every_memory_of_a_model_is_a_part_and_shared_memory_is_one():
    assert [(part.name, part.nbytes) for part in parts(Tied())] == [
        ("embedding", 128),
        ("turned", 96),
        ("odd", 6),
    ]


def test_a_fingerprint_is_the_hash_that_the_digest_is_made_of():
    tensor = torch.randn(16)
    words = tensor.view(torch.int32)
    assert torch.equal(fingerprint(tensor), lanes(words))
    digest = Digest()
    digest.update(Bucket((Spec("w", "float32", (16,)),), tensor.view(torch.uint8)))
    assert torch.equal(torch.cat(digest._lanes), lanes(words))
    assert torch.equal(fingerprint(tensor.view(4, 4).t()), lanes(words)), "of the memory, not of its order"


@pytest.mark.parametrize(
    ("name", "at", "part"),
    [
        ("embedding", (7, 3), "embedding"),
        ("head", (0, 0), "embedding"),
        ("turned", (3, 5), "turned"),
        ("odd", 2, "odd"),
    ],
)
def test_a_change_of_any_byte_after_the_proof_is_found(name, at, part):
    model = Tied()
    proof = served(model)
    assert proof.prove()
    proof.recheck()
    assert proof.changed is None
    with torch.no_grad():
        model.get_parameter(name)[at] += 0.5
    proof.recheck()
    assert proof.changed == f"{part} is no longer what was loaded as weight version 3"


def test_another_tensor_in_a_parameter_s_place_is_found():
    model = Tied()
    proof = served(model)
    proof.prove()
    model.turned = nn.Parameter(model.turned.detach() * 2)
    proof.recheck()
    assert proof.changed is not None


def test_what_was_loaded_is_compared_with_what_arrived_in_the_model_s_dtype():
    model, came = Tied(), torch.tensor([0.1, float("nan"), 0.3])
    with torch.no_grad():
        model.odd.copy_(came)
    good = served(model, ("a", model.odd.data, came))
    assert good.prove()
    assert good.changed is None
    bad = served(model, ("a", model.odd.data, came), ("b", model.odd.data, came + 1))
    assert bad.prove()
    assert bad.changed == "b is not what arrived as weight version 3"


def test_each_call_takes_a_part_at_least_and_all_come_in_turn():
    model = Tied()
    proof = served(model, ("odd", model.odd.data, model.odd.data))
    assert [proof.prove(1) for _ in range(5)] == [False] * 4 + [True]
    with torch.no_grad():
        model.turned += 1
    proof.recheck(1)
    assert proof.changed is None, "the embedding is as it was"
    proof.recheck(1)
    assert proof.changed is not None
    first = proof.changed
    with torch.no_grad():
        model.embedding += 1
    proof.recheck()
    proof.loaded(4, ())
    assert proof.changed == first, "it stays said"


def test_looking_again_ends_a_proof_that_is_not_done():
    model = Tied()
    proof = served(model, ("odd", model.odd.data, torch.zeros(3)))
    proof.recheck(1)
    assert proof.changed == "odd is not what arrived as weight version 3"
