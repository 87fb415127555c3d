"""ZeRO-3's partitions on a disk, of which DeepSpeed keeps one element in memory: no state is loaded into that."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_trainer.models.state import load_training_state, training_state

SHAPE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}


def test_a_partition_that_is_away_is_not_filled_with_its_first_element(trained):
    engine = trained(LlamaForCausalLM(LlamaConfig(**SHAPE)), zero_optimization={"stage": 3})
    state = {name: tensor.clone() for name, tensor in training_state(engine)}
    first = next(engine.unwrapped.parameters())
    first.ds_tensor.data = torch.tensor(1.0)  # what DeepSpeed leaves once it is written
    with pytest.raises(AssertionError, match="Number of elements do not match"):
        load_training_state(engine, state.__getitem__)
