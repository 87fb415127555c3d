"""A whole iteration at several bounds of staleness: the trainer on one GPU, a vLLM generator on another, or both on one
that CUDA_VISIBLE_DEVICES names twice.

    .venv/bin/python benchmarks/jobs/iteration.py [--shape qwen2.5-1.5b] [--staleness 0 1 4] [--steps 10]

A model of random weights whose generation configuration names so many end tokens that responses end at a constant rate:
exponential lengths of about `--mean` tokens, cut at `--longest`. Each bound is a run of its own from the same manifest.
Prints where the time of the steps after the first went, tokens a second, and the ratio to the first bound.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

AGREEMENT = ("logprob_difference", "ratio_outside_share", "importance_effective_share", "grad_norm")
PHASES = ("generate", "score", "train", "broadcast")


def length(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],  # noqa: ARG001
) -> list[float]:
    """Short responses are better: a reward that costs nothing."""
    return [1 / (1 + text.count(" ") / 100) for text in responses]


def make_model(folder: Path, shape: str, mean: int) -> None:
    # torch sees no GPU where one is named twice.
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        os.environ["CUDA_VISIBLE_DEVICES"] = named.split(",")[0]
    import torch

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from benchmarks.generators.serving import SHAPES
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    hidden, inner, layers, heads, key_heads, size, tied = SHAPES[shape]
    config = LlamaConfig(  # whose tokenizer may be of any class
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=key_heads, vocab_size=size, tie_word_embeddings=tied, max_position_embeddings=4096,
        bos_token_id=None, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    with torch.device("cuda" if cuda else "cpu"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16 if cuda else torch.float32)
    model.generation_config.eos_token_id = random.Random(0).sample(range(2, size), max(1, size // mean))
    words = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(size)}, unk_token="<1>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<0>", pad_token="<1>", unk_token="<1>"
    ).save_pretrained(folder)
    model.save_pretrained(folder)
    if named:
        os.environ["CUDA_VISIBLE_DEVICES"] = named


def make_prompts(file: Path, size: int, longest: int) -> None:
    dice = random.Random(0)
    rows = [
        {
            "prompt": " ".join(
                f"<{dice.randrange(2, size)}>" for _ in range(dice.randint(longest // 4, longest))
            )
        }
        for _ in range(4096)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def manifest(folder: Path, options: argparse.Namespace, staleness: int) -> Path:
    spec = {
        "algorithm": options.algorithm,
        "seed": 1,
        "steps": options.steps + 1,  # the last of which would be saved
        "model": {"dtype": options.dtype, "policy": str(folder / "model")},
        "data": {
            "train": [str(folder / "prompts.jsonl")],
            "maxPromptLength": options.prompt,
            "promptsPerStep": options.responses // options.group,
        },
        "sampling": {"maxNewTokens": options.longest, "responsesPerPrompt": options.group},
        options.algorithm: {"klCoefficient": 0.0, "minibatchSize": options.responses // 2},
        "reward": {"functions": [{"function": "benchmarks.jobs.iteration:length"}]},
        "optimizer": {"learningRate": 1e-6},
        "rollout": {"maxStaleness": staleness, **({"importance": "token"} if staleness else {})},
        "checkpoint": {"everySteps": options.steps + 1},
    }
    document = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": f"staleness-{staleness}"},
        "spec": spec,
    }
    file = folder / f"staleness-{staleness}.yaml"
    file.write_text(json.dumps(document))  # YAML as well
    return file


def figures(metrics: Path, warm: int) -> dict[str, float]:
    """Means over the timed steps."""
    from ahead import idle

    rows = [json.loads(line) for line in metrics.read_text().splitlines()][warm:]
    seconds = sum(row["seconds"] for row in rows)
    return {
        "steps": len(rows),
        "seconds": seconds / len(rows),
        **{phase: sum(row[f"{phase}_seconds"] for row in rows) / len(rows) for phase in PHASES},
        "tokens": sum(row["tokens"] for row in rows) / len(rows),
        "tokens/s": sum(row["tokens"] for row in rows) / seconds,
        "generator idle": idle(rows) / seconds,
        "trainer idle": sum(row["trainer_idle_share"] * row["seconds"] for row in rows) / seconds,
        "memory GB": max(row.get("memory_peak_gigabytes", 0) for row in rows),
        "oldest": max(row.get("staleness_max", 0) for row in rows),
        **{name: max(row[name] for row in rows) for name in AGREEMENT if name in rows[0]},
    }


def main() -> None:
    from launch import rlhf_steps

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="qwen2.5-1.5b", help="of benchmarks/generators/serving.py")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--algorithm", choices=("ppo", "grpo"), default="ppo")
    parser.add_argument("--group", type=int, default=1, help="responses to a prompt")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--responses", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--mean", type=int, default=400)
    parser.add_argument(
        "--warm", type=int, default=3, help="first steps that are not timed: kernels are compiled"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the logs and metrics of the runs")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="more of the manifest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", options.shape, options.mean)
        size = json.loads((folder / "model/config.json").read_text())["vocab_size"]
        make_prompts(folder / "prompts.jsonl", size, options.prompt)
        first = None
        for staleness in options.staleness:
            workdir = folder / f"run-{staleness}"
            job = manifest(folder, options, staleness)
            try:
                rlhf_steps(job, workdir, options.set, sys.stderr, options.steps)
            finally:
                if options.keep and workdir.exists():
                    shutil.copytree(workdir, options.keep / job.stem, dirs_exist_ok=True)
            measured = figures(workdir / "metrics.jsonl", options.warm)
            first = first or measured["tokens/s"]
            words = {name: round(value, 4) for name, value in measured.items()}
            print(
                json.dumps(
                    {"staleness": staleness, **words, "ratio": round(measured["tokens/s"] / first, 3)}
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
