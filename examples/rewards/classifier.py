"""A reward from a sentiment classifier with two labels: the logit of the positive one, of the text tokenized again.

The classifier is a sequence-classification model of Hugging Face, such as one trained on IMDB: a folder or hub name in
the environment variable CLASSIFIER. Each process of the function loads it once.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

POSITIVE = 1
"""Its label; `config.json` of the classifier says which it is in `id2label`."""


@cache
def loaded() -> tuple[PreTrainedModel, Any]:
    name = os.environ["CLASSIFIER"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForSequenceClassification.from_pretrained(name).to(device).eval()
    return model, AutoTokenizer.from_pretrained(name)


@torch.inference_mode()
def positive(
    prompts: Sequence[str],
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],  # noqa: ARG001
) -> list[float]:
    """Of prompt and response together, as a review is read."""
    model, tokenizer = loaded()
    texts = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    encoded = tokenizer(texts, return_tensors="pt", padding=True, truncation=True).to(model.device)
    return model(**encoded).logits[:, POSITIVE].float().tolist()
