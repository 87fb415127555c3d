"""Files of a stranger: manifests and models' directories. Each ends in one clear refusal, in a few seconds of computing
and one gigabyte; none hangs, and nothing outside a model's directory is read."""

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.manifests import document, job

from rlhf_api.dataset.chat_template import LARGEST, template_problems
from rlhf_api.dataset.row_files import RowFile
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.model_files import matrices, model_sizes
from rlhf_api.host.model_directory import directory_problem
from rlhf_api.host.strict_yaml import documents, dumped
from rlhf_api.manifest.load import load

CPU_SECONDS, MEMORY = 5, 1 << 30


def limited(act: Callable[[], Any], more: int = CPU_SECONDS) -> str:
    """The result of `act`, or its InvalidJob, in a child process of limited computing time and memory."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # no return to the test runner, whatever happens
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # for one that waits and does not compute
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + more
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        try:
            outcome = str(act())
        except InvalidJob as error:
            outcome = str(error)
        except BaseException as error:
            outcome = f"CRASH {type(error).__name__}: {error}"
        os.write(write, outcome.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        outcome = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"was ended: {os.waitstatus_to_exitcode(status)}"
    return outcome


def powers(lines: int, width: int = 1) -> str:
    first = "a: &a0 {" + ", ".join(f"k{i}: 1" for i in range(width)) + "}\n"
    return first + "\n".join(f"z{i}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 4)}]}}" for i in range(lines))


MANIFESTS = {
    "merge keys of merge keys": (powers(20), "<< merges more than 10,000 keys"),
    "merge keys of wide objects": (powers(10, width=50), "<< merges more than 10,000 keys"),
    "a merge of itself": ("a: &a {<<: *a}", "is nested too deeply"),
    "lists, 60,000 deep": ("a: " + "[" * 60_000, "is nested too deeply"),
    "aliases of aliases": (
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "\n".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [" + ", ".join([f"*{chr(97 + i)}"] * 9) + "]" for i in range(12)
        ),
        "holds more than 1,000,000 values",
    ),
    "a key of 30 MB": ("x" * 30_000_000 + ": 1", "is larger than 1 MiB"),
    "a number of 100,000 digits": ("a: " + "9" * 100_000, "does not fit its type"),
    "a number of a million binary digits": ("a: 0b" + "1" * 1_000_000, "is no RLHFJob"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(tmp_path: Path, name: str) -> None:
    text, words = MANIFESTS[name]
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert words in limited(lambda: load(file))


def test_includes_of_includes(tmp_path: Path) -> None:
    for i in range(8):
        (tmp_path / f"{i}.yaml").write_text("include: [" + ", ".join([f"{i + 1}.yaml"] * 12) + "]")
    (tmp_path / "8.yaml").write_text(dumped(document()))
    assert limited(lambda: load(tmp_path / "0.yaml").metadata.name) == "job", "each is read once"
    (tmp_path / "0.yaml").write_text("include: [" + ", ".join(["8.yaml"] * 1001) + "]")
    assert "more than 1000 files are included" in limited(lambda: load(tmp_path / "0.yaml"))
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "0.yaml").write_text("include: [pipe.yaml]")
    assert "pipe.yaml is not a file" in limited(lambda: load(tmp_path / "0.yaml"))
    (tmp_path / "0.yaml").write_text("include: [/dev/zero]")
    assert "/dev/zero is not a file" in limited(lambda: load(tmp_path / "0.yaml"))
    assert "is larger than 1 MiB" in limited(lambda: load(Path("/dev/zero")))


def tensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


DEEP = b"[" * 200_000 + b"]" * 200_000
LONG = b'{"a": {"dtype": "F32", "shape": [' + b",".join([b"9" * 4000] * 6000) + b'], "data_offsets": [0, 0]}}'
MANY = (
    b'{"a": {"dtype": "F32", "shape": [' + b",".join([b"9" * 18] * 100_000) + b'], "data_offsets": [0, 0]}}'
)
OUTSIDE = tensors(b'{"x.weight": {"dtype": "F32", "shape": [3, 3], "data_offsets": [0, 36]}}')
CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}).encode()
MODELS: dict[str, tuple[dict[str, bytes | None], str]] = {
    "a configuration 200,000 deep": (
        {"config.json": DEEP},
        "its config.json cannot be read: is nested too deeply",
    ),
    "a configuration that is a list": ({"config.json": b"[]"}, "its config.json is not an object"),
    "a width of 4,000 digits": ({"config.json": b'{"hidden_size": ' + b"9" * 4000 + b"}"}, "beyond 64 bits"),
    "layers without end": ({"config.json": b'{"num_hidden_layers": 1000000000}'}, "more than 10,000 layers"),
    "attention of another repository": (
        {"config.json": b'{"text_config": {"_attn_implementation": "evil/kernel"}}'},
        "names code of another repository",
    ),
    "an adapter of another model": ({"adapter_config.json": b"{}"}, "would load another model"),
    "a pipe": ({"model.safetensors": None}, "neither a file nor a directory"),
    "a pipe as configuration": ({"config.json": None}, "neither a file nor a directory"),
    "an index of files elsewhere": (
        {"model.safetensors.index.json": b'{"weight_map": {"a": "../outside.safetensors"}}'},
        "which is not a file beside it",
    ),
    "an index of an absolute path": (
        {"model.safetensors.index.json": b'{"weight_map": {"a": "/outside.safetensors"}}'},
        "which is not a file beside it",
    ),
    "an index 200,000 deep": ({"model.safetensors.index.json": DEEP}, "is nested too deeply"),
    "an index without names": ({"model.safetensors.index.json": b"[]"}, "index.json cannot be read"),
    "a header 200,000 deep": ({"model.safetensors": tensors(b'{"a": ' + DEEP + b"}")}, ""),
    "a shape of 6,000 numbers of 4,000 digits": ({"model.safetensors": tensors(LONG)}, ""),
    "a shape of 100,000 numbers": ({"model.safetensors": tensors(MANY)}, ""),
    "a header of exabytes": ({"model.safetensors": b"\xff" * 8}, ""),
}
"""Files, None for a pipe, and what is said before anything is loaded; the headers of weights show when they are."""


@pytest.mark.parametrize("name", MODELS)
def test_directories_of_models(tmp_path: Path, name: str) -> None:
    files, words = MODELS[name]
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "outside.safetensors").write_bytes(OUTSIDE)
    for file, content in {"config.json": CONFIG, **files}.items():
        if content is None:
            os.mkfifo(model / file)
        else:
            (model / file).write_bytes(content)
    outcome = limited(lambda: directory_problem(model))
    assert words in outcome
    assert bool(outcome) == bool(words)
    spec = job(f"spec.model.policy={model}").spec
    assert "CRASH" not in limited(lambda: model_sizes(spec))
    assert limited(lambda: matrices(model)) == "[]"


TEMPLATES = {
    "a power": ("{{ 9**(9**9) }}", ""),
    "a repetition": ("{{ 'a' * 10**11 }}", ""),
    "a format": ("{{ '%20000000000d' % 1 }}", ""),
    "a filter": ("{{ 'a'|center(20000000000) }}", ""),
    "parentheses, 3,000 deep": ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "is nested too deeply"),
    "no Jinja": ("{% for %}", "is not a Jinja template: line 1"),
    "an unknown filter": ("{{ 'a'|scream }}", "No filter named 'scream'"),
    "filters to the limit": ("{{a|e}}" * (LARGEST // 7), ""),
    "filters beyond it": ("{{a|e}}" * LARGEST, "is larger than 64 KiB"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates(name: str) -> None:
    """They are read here, and rendered only in a process of limited time and memory (see test_template_limits.py)."""
    text, words = TEMPLATES[name]
    outcome = limited(lambda: "".join(map(str, template_problems(text))), 2)
    assert words in outcome
    assert bool(outcome) == bool(words)


def test_a_template_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("a" * (LARGEST + 1))
    assert "is larger than 64 KiB" in limited(lambda: template_problems(str(tmp_path / "long")))
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in limited(lambda: template_problems(str(tmp_path / "pipe")))
    assert "is not a regular file" in limited(lambda: template_problems("/dev/zero"))


def test_rows_of_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for file in (tmp_path / "pipe.jsonl", Path("/dev/zero")):
        assert limited(lambda: RowFile(file, "prompts")) == f"{file}: is not a regular file"  # noqa: B023


@pytest.mark.parametrize("begin", [b"", b'{"prompt": "a"}\n', b"[1, "])
def test_a_row_without_an_end(tmp_path: Path, begin: bytes) -> None:
    """Files with holes, of 3 GB and, where they are mapped, of 66 MB."""
    file = tmp_path / "rows.jsonl"
    file.write_bytes(begin)
    os.truncate(file, 66 << 20 if begin.startswith(b"[") else 3 << 30)
    assert "is larger than 64 MiB" in limited(lambda: list(RowFile(file, "prompts").each()))


def test_these_limits_end_what_computes_for_ever() -> None:
    """The tests above would show it."""
    with pytest.raises(AssertionError, match="was ended: -"):
        limited(lambda: sum(iter(int, 1)), 1)
    assert "CRASH MemoryError" in limited(lambda: len(bytearray(2 * MEMORY)))
    assert documents("a: {b: 1, <<: {c: 2}}", "x") == [{"a": {"b": 1, "c": 2}}]
