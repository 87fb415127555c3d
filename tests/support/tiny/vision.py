"""A tiny model that reads images, made from a configuration, with rows to train it on."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from rlhf_api.sections.model import CreateModel
from rlhf_trainer.training.assembly import create

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% if m.role == 'assistant' %}<eos>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
CONFIG = {
    "text_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [8, 4, 4],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 4,
        "temporal_patch_size": 1,
        "spatial_merge_size": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    },
    "tie_word_embeddings": True,
}


def tiny_vision(folder: Path) -> Path:
    """Saves the model, its tokenizer with TEMPLATE, and its processor."""
    folder.mkdir(parents=True)
    made = {"modelType": "qwen3_vl", "config": CONFIG, "tokenizer": {"vocabSize": 280}}
    create(folder, CreateModel.model_validate(made), ["how many squares are there?"], 1)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def write_images(folder: Path, *sizes: tuple[int, int]) -> list[str]:
    """Names of new images of noise, of these widths and heights."""
    noise = np.random.default_rng(0)
    names = [f"{i}.png" for i in range(len(sizes))]
    for name, (width, height) in zip(names, sizes, strict=True):
        Image.fromarray(noise.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / name)
    return names


def write_rows(folder: Path) -> Path:
    """A file of rows, with an image, without, and with two between the text; the images lie beside it."""
    small, tall, wide = write_images(folder, (16, 16), (16, 40), (32, 24))
    parts = [
        {"type": "text", "text": "a "},
        {"type": "image"},
        {"type": "text", "text": " b "},
        {"type": "image"},
    ]
    rows = [
        {"prompt": "how many?", "answer": "three", "images": [small]},
        {"prompt": [{"role": "user", "content": "how many?"}], "answer": "none"},
        {"prompt": [{"role": "user", "content": parts}], "answer": "fifty one", "images": [tall, wide]},
        {"prompt": "and here?", "answer": "one", "images": wide},
    ]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
