"""examples/rewards/classifier.py: responses judged by a classifier with two labels and a tokenizer of its own."""

import asyncio
from pathlib import Path

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer
from transformers import BertConfig, BertForSequenceClassification

from rlhf_trainer.models.pretrained.create import create_tokenizer
from rlhf_trainer.scoring.function_pool import FunctionPool
from rlhf_trainer.scoring.rewards import Function, Functions
from rlhf_trainer.tensors.records import Sequences

ROOT = Path(__file__).parents[4]
REVIEWS = [("I saw it and ", "it was gripping."), ("The film ", "bored me."), ("On Monday ", "we laughed.")]


def test_the_reward_is_the_logit_of_the_positive_label(tmp_path, monkeypatch):
    policy, own = byte_tokenizer(), create_tokenizer([a + b for a, b in REVIEWS] * 3, 300)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": len(own), "pad_token_id": own.pad_token_id}
    config = BertConfig(num_labels=2, initializer_range=0.5, **sizes)
    model = BertForSequenceClassification(config).eval()
    for part in (model, own):
        part.save_pretrained(tmp_path)
    monkeypatch.setenv("CLASSIFIER", str(tmp_path))
    monkeypatch.chdir(ROOT)
    sequences = Sequences.pack(
        [(policy(a)["input_ids"], [*policy(b)["input_ids"], policy.eos_token_id]) for a, b in REVIEWS]
    )

    async def scored() -> torch.Tensor:
        where, name = "spec.reward.functions[0].function", "examples.rewards.classifier:positive"
        pool = FunctionPool(where, name, concurrency=1, timeout=120.0)
        await pool.start()
        rewards = Functions(policy, 120.0, [Function("positive", 1.0, 0, pool)])
        scores, report = await rewards.score(sequences, [{"prompt": a} for a, _ in REVIEWS])
        assert report.failures == {}
        return scores

    with torch.no_grad():
        alone = [model(**own(a + b, return_tensors="pt")).logits[0].tolist() for a, b in REVIEWS]
    assert asyncio.run(scored()).tolist() == pytest.approx([positive for _, positive in alone], abs=1e-4)
    assert all(abs(negative - positive) > 0.01 for negative, positive in alone)
