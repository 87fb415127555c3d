"""Images of rows: their places in a prompt, and the jobs that are refused with a policy that reads them."""

import json
from pathlib import Path

import pytest
from tests.unit.api.manifests import job

from rlhf_api.dataset.checked_row import checked_row
from rlhf_api.dataset.images import image_bytes
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.rules.vision import policy_problems
from rlhf_operator.local.preflight.models import model_problems

TEXT, PICTURE = {"type": "text", "text": "how many?"}, {"type": "image"}
ZERO = "spec.trainer.deepspeed.zero_optimization"
GRPO = ("spec.ppo={}", "spec.algorithm=grpo", "spec.grpo={minibatchSize: 16}", "spec.model={policy: p}")
GRPO = (*GRPO, "spec.sampling={responsesPerPrompt: 2}")
SFT = ("spec.ppo={}", "spec.algorithm=sft", "spec.sampling={}", "spec.model={policy: p}")


def user(content):
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("how many?", [PICTURE, PICTURE, TEXT]),
        ([user("how many?")], [PICTURE, PICTURE, TEXT]),
        ([user([PICTURE, TEXT, PICTURE])], [PICTURE, TEXT, PICTURE]),
    ],
)
def test_images_stand_where_the_prompt_names_them_or_before_its_text(prompt, parts):
    row = checked_row(
        {"prompt": prompt, "answer": "3", "images": ["a.png", "b.png"]}, "responses", lambda: "row"
    )
    assert [message.for_template() for message in row.prompt] == [{"role": "user", "content": parts}]
    assert row.is_conversation
    assert row.texts == ["how many?", "3"], "a tokenizer is made of these"


@pytest.mark.parametrize(
    ("given", "references"),
    [
        ("a.png", ["a.png"]),
        ([{"bytes": None, "path": "a.png"}], ["a.png"]),
        ([{"bytes": b"png", "path": "a.png"}], [image_bytes(b"png")]),
        ([b"png"], ["data:;base64,cG5n"]),
    ],
)
def test_an_image_is_a_path_or_bytes(given, references):
    assert checked_row({"prompt": "q", "answer": "a", "images": given}, "responses", str).images == references


@pytest.mark.parametrize("images", [{}, {"images": ["a.png"]}])
def test_any_character_of_a_text_is_text(images):
    every = "".join(map(chr, (*range(0xE000, 0xF900), 0xFFFD, 0xFFFE)))
    row = checked_row({"prompt": [user(every)], "answer": every, **images}, "responses", str)
    content = [PICTURE, {"type": "text", "text": every}] if images else every
    assert [message.for_template()["content"] for message in row.prompt] == [content]
    assert row.texts == [every, every]


def test_a_row_without_images_is_as_it_was_written():
    row = {"prompt": "q", "answer": "a"}
    assert checked_row({**row, "images": []}, "responses", str).model_dump() == row


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ({"prompt": [user([PICTURE])], "answer": "a", "images": ["a", "b"]}, "responses", "has 2 images, and its mess"),
        ({"prompt": "q", "answer": "a", "images": [3]}, "responses", "an image is a path, a URL, bytes"),
        ({"prompt": [user([{"type": "video"}])], "answer": "a", "images": ["a"]}, "responses", "got 'video'"),
        (
            {"prompt": [{**user("q"), "image_places": [1]}], "answer": "a"},
            "responses",
            "has 0 images, and its prompt names 1",
        ),
        (
            {"prompt": [{**user("q"), "image_places": [2]}], "answer": "a", "images": ["a"]},
            "responses",
            "image_places must ascend within the content",
        ),
        ({"answer": "a", "images": ["a"]}, "responses", "prompt: is missing"),
        (
            {
                "messages": [user("q"), {"role": "assistant", "content": "a"}, user([PICTURE]), *[
                    {"role": "assistant", "content": "b"}
                ]],
                "images": ["a"],
            },
            "responses",
            "none in an answer or after it",
        ),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "images": ["a"]}, "pairs", "read where responses are"),
        ({"prompt": "q", "answer": "a", "label": True, "images": ["a"]}, "labeled", "read where responses are"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_by_name(row, kind, message):
    with pytest.raises(InvalidJob, match=message):
        checked_row(row, kind, lambda: "row")


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        ((), "spec.algorithm"),
        ((*SFT, "spec.model.lora={policy: {rank: 2}}"), "spec.model.lora.policy"),
        ((*GRPO, "spec.environment={path: 'a:b'}"), "spec.environment"),
        ((*GRPO, "spec.model.reward=r"), "spec.model.reward"),
        ((*GRPO, "spec.model.reference=p", "spec.reference.engine=vllm"), "spec.reference.engine"),
        ((*GRPO, "spec.replay.maxReplayEpisode=2"), "spec.replay.maxReplayEpisode"),
        ((*SFT, f"{ZERO}={{stage: 3}}"), f"{ZERO}.stage"),
        ((*SFT, f"{ZERO}={{stage: 2}}", "spec.model.trainVision=true"), f"{ZERO}.stage"),
        (
            (*SFT, "spec.trainer={sequenceParallelSize: 2, processesPerReplica: 2}"),
            "spec.trainer.sequenceParallelSize",
        ),
    ],
)  # fmt: skip
def test_a_policy_that_reads_images_is_refused_where_it_cannot_be_trained(overrides, where):
    spec = job(*overrides).spec
    assert [problem.where for problem in policy_problems(spec, "qwen3_vl")] == [where]
    settings = ["spec.model.trainVision"] if spec.model.train_vision else []
    assert [problem.where for problem in policy_problems(spec, "qwen3")] == settings


@pytest.mark.parametrize("setting", ["spec.model.trainVision=true", "spec.data.maxPixels=64"])
def test_settings_of_images_need_a_policy_that_reads_them(setting, tmp_path: Path):
    for kind, problems in {"llama": [setting.partition("=")[0]], "qwen3_vl": []}.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        (tmp_path / "model.safetensors").touch()
        (tmp_path / "tokenizer.json").touch()
        spec = job(*SFT, f"spec.model.policy={tmp_path}", setting).spec
        assert [problem.where for problem in model_problems(spec)] == problems
