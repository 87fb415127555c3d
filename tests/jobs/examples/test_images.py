"""examples/images as a user runs it: a model that reads images, made from scratch, counts squares that it has not
seen."""

from io import BytesIO

import torch
from examples.images import squares
from PIL import Image
from tests.support.rlhf import ROOT, lines, succeed
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer


def test_it_learns_to_count(tmp_path):
    done = succeed(ROOT / "examples" / "images" / "sft.yaml", tmp_path / "run")
    losses = [line["loss"] for line in lines(done.workdir / "evaluation.jsonl")]
    assert losses[-1] < 0.1 < 1 < losses[0], "nats a token; a guess of the number has 0.9"
    folder = done.workdir / "policy"
    model, tokenizer = (
        AutoModelForImageTextToText.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    processor, token = AutoImageProcessor.from_pretrained(folder, backend="pil"), model.config.image_token_id
    right, rows = 0, squares.heldout()
    for row in (rows[i] for i in range(20)):
        images = processor(images=[Image.open(BytesIO(row["images"][0]))], return_tensors="pt")
        text = f"<|vision_start|>{'<|image_pad|>' * 4}<|vision_end|>{row['prompt']}"
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            made = model.generate(
                input_ids=ids,
                **images,
                mm_token_type_ids=(ids == token).int(),
                max_new_tokens=4,
                do_sample=False,
            )
        right += tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True) == row["answer"]
    assert right >= 18
