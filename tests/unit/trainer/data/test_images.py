"""Images of rows as they are read: few formats, bounded sizes, from the folder of the rows alone."""

import json
from io import BytesIO
from pathlib import Path

import obstore
import pyarrow as pa
import pytest
from obstore.store import from_url
from PIL import Image
from pyarrow import parquet
from tests.support.servers.seaweed import Seaweed
from tests.support.tiny.models import chat_tokenizer
from tests.support.tiny.vision import tiny_vision, write_images, write_rows
from tests.unit.api.manifests import job

from rlhf_api.contract.run import RunConfig
from rlhf_api.dataset.images import image_bytes
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.data import Data, Source
from rlhf_trainer.data import images
from rlhf_trainer.data.dataset import open_dataset
from rlhf_trainer.data.images import placed, read_image
from rlhf_trainer.models.pretrained.load import load_tokenizer
from rlhf_trainer.models.pretrained.vision import load_reader
from rlhf_trainer.ops.datasets import encode_row
from rlhf_trainer.ops.row_check import RowChecker, check_all


def png(width: int, height: int, **more) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG", **more)
    return file.getvalue()


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return tiny_vision(tmp_path_factory.mktemp("vision") / "policy")


def reader_of(policy: Path, *overrides: str):
    given = ("spec.ppo={}", "spec.algorithm=sft", "spec.sampling={}", f"spec.model={{policy: {policy}}}")
    return load_reader(RunConfig(job="j", spec=job(*given, *overrides).spec, workdir="w"))


@pytest.mark.parametrize(
    ("reference", "folder", "whole"),
    [
        ("a/b.png", "/rows", "/rows/a/b.png"),
        ("/rows/a.png", "/rows", "/rows/a.png"),
        ("a.png", "s3://bucket/rows", "s3://bucket/rows/a.png"),
        ("s3://bucket/rows/a.png", "s3://bucket/rows", "s3://bucket/rows/a.png"),
    ],
)
def test_an_image_lies_in_the_folder_of_its_rows(reference, folder, whole):
    assert placed(reference, folder) == whole


@pytest.mark.parametrize(
    ("reference", "folder", "message"),
    [
        ("../a.png", "/rows", "lies in the folder of its file of rows, /rows"),
        ("/etc/passwd", "/rows", "lies in the folder"),
        ("s3://other/a.png", "s3://bucket/rows", "lies in the folder"),
        ("s3://bucket/rows/../a.png", "s3://bucket/rows", "lies in the folder"),
        ("s3://bucket/rows/a.png", "/rows", "lies in the folder"),
        ("https://example.org/a.png", "/rows", "URL begins with file://, s3://"),
        ("a.png", "", "is given as its bytes"),
    ],
)
def test_an_image_elsewhere_is_refused(reference, folder, message):
    with pytest.raises(ValueError, match=message):
        placed(reference, folder)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "secret.png").write_bytes(png(8, 8))
    (tmp_path / "rows" / "a.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ValueError, match="lies in the folder"):
        placed("a.png", str(tmp_path / "rows"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (png(64, 64)[:60], "is no image of PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no image of PNG, JPEG, WEBP, BMP, GIF$"),
        (png(80, 80), "has 6,400 pixels, and 6,000 are the most"),
        (png(8, 8) + bytes(9000), "is larger than"),
    ],
)
def test_an_image_is_read_within_limits(data, message, monkeypatch):
    monkeypatch.setattr(images, "MOST_PIXELS", 6000)
    monkeypatch.setattr(images, "LARGEST", 8000)
    with pytest.raises(ValueError, match=message):
        read_image(image_bytes(data))
    assert read_image(image_bytes(png(8, 8))).size == (8, 8)


def test_the_pixels_that_pillow_warns_of_are_no_bomb_yet(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    assert read_image(image_bytes(png(8, 8))).size == (8, 8)
    with pytest.raises(ValueError, match="pixels, which are the most"):
        read_image(image_bytes(png(80, 80)))


def test_bytes_of_parquet_are_the_image_of_a_path(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (name,) = write_images(tmp_path, (16, 24))
    row = {"prompt": "how many?", "answer": "three"}
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "images": [name]}))
    stored = {"bytes": (tmp_path / name).read_bytes(), "path": "elsewhere.png"}
    parquet.write_table(pa.Table.from_pylist([{**row, "picture": stored}]), tmp_path / "rows.parquet")
    reader, tokenizer, made = reader_of(policy), load_tokenizer(str(policy)), []
    for file, columns in {"rows.jsonl": None, "rows.parquet": {"images": "picture"}}.items():
        source = Source(path=str(tmp_path / file), columns=columns)
        made += encode_row(open_dataset([source], "responses")[0], "responses", tokenizer, Data(), reader)
    assert made[0].prompt == made[1].prompt
    assert (made[0].pictures[0].patches == made[1].pictures[0].patches).all()


def test_images_of_a_store_lie_beside_their_rows_there(policy, tmp_path, seaweed: Seaweed, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    store = from_url(seaweed.url("images/sets"), client_options={"allow_http": True})
    rows = write_rows(tmp_path)
    for file in tmp_path.glob("*.*"):
        obstore.put(store, file.name, file.read_bytes())
    reader, tokenizer = reader_of(policy), load_tokenizer(str(policy))
    here, there = (
        [
            encode_row(row, "responses", tokenizer, Data(), reader)[0]
            for row in open_dataset([source], "responses")
        ]
        for source in (Source(path=str(rows)), Source(path=seaweed.url("images/sets/rows.jsonl")))
    )
    assert [made.prompt for made in here] == [made.prompt for made in there]
    for one, other in zip(here, there, strict=True):
        assert all((a.patches == b.patches).all() for a, b in zip(one.pictures, other.pictures, strict=True))
    with pytest.raises(ValueError, match="there is no such object"):
        read_image(seaweed.url("images/sets/none.png"))


def test_an_image_takes_the_tokens_of_its_pixels_and_no_more_than_the_job_allows(policy, tmp_path):
    dataset, tokenizer = (
        open_dataset([Source(path=str(write_rows(tmp_path)))], "responses"),
        load_tokenizer(str(policy)),
    )
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for overrides, tokens in {(): [4, 0, 22, 12], ("spec.data.maxPixels=256",): [4, 0, 5, 2]}.items():
        reader = reader_of(policy, *overrides)
        made = [encode_row(row, "responses", tokenizer, Data(), reader)[0] for row in dataset]
        assert [each.prompt.count(pad) for each in made] == tokens
        pictures = [(each.prompt, picture) for each in made for picture in each.pictures]
        for prompt, picture in pictures:
            run = [token == pad for token in prompt[picture.start - 1 : picture.start + picture.tokens + 1]]
            assert run == [False, *[True] * picture.tokens, False]


def check(policy: Path, folder: Path, rows: list[dict], **data):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset, settings = open_dataset([Source(path=str(folder / "rows.jsonl"))], "responses"), Data(**data)
    (fitting,) = check_all(
        [RowChecker(dataset, "responses", load_tokenizer(str(policy)), settings, reader_of(policy))]
    )
    return fitting


def test_the_rows_whose_images_cannot_be_read_are_named_before_a_model_is_loaded(policy, tmp_path):
    (name,) = write_images(tmp_path, (16, 16))
    (tmp_path / "cut.png").write_bytes((tmp_path / name).read_bytes()[:90])
    row = {"prompt": "q", "answer": "a"}
    wrong = [{**row, "images": ["none.png"]}, {**row, "images": ["cut.png"]}, {**row, "images": ["../a.png"]}]
    text = {"prompt": "<|image_pad|>", "answer": "a", "images": [name]}
    with pytest.raises(InvalidJob) as caught:
        check(policy, tmp_path, [{**row, "images": [name]}, *wrong, text])
    missing, cut, outside, token = map(str, caught.value.problems)
    assert f"rows.jsonl:2: prompt: {tmp_path}/none.png: cannot be read: No such file" in missing
    assert f"rows.jsonl:3: prompt: {tmp_path}/cut.png: is no image of PNG" in cut
    assert "rows.jsonl:4: images: an image lies in the folder" in outside
    assert "writes 2 of '<|image_pad|>' for 1 images" in token


def test_a_row_with_images_is_never_cut(policy, tmp_path):
    (name,) = write_images(tmp_path, (64, 64))
    rows = [{"prompt": "q", "answer": "a", "images": [name]}, {"prompt": "q", "answer": "a"}]
    fitting = check(policy, tmp_path, rows, overlong="cut", maxPromptLength=40)
    assert fitting.left_out == [0]


def test_a_policy_that_reads_no_images_is_told_which_do(tmp_path):
    rows = open_dataset([Source(path=str(write_rows(tmp_path)))], "responses")
    with pytest.raises(
        InvalidJob, match=r"spec.model.policy: a row has 1 images, which policies of type qwen3_vl read"
    ):
        encode_row(rows[0], "responses", chat_tokenizer(), Data())


def test_a_picture_that_was_changed_changes_the_checksum_of_the_rows(policy, tmp_path):
    row = {"prompt": "q", "answer": "a", "images": ["a.png"]}
    sums = list[int]()
    for color in ("red", "red", "blue"):
        Image.new("RGB", (16, 16), color).save(tmp_path / "a.png")
        sums.append(check(policy, tmp_path, [row, {"prompt": "q", "answer": "a"}]).images)
    assert sums[0] == sums[1] != sums[2]
    assert check(policy, tmp_path, [{"prompt": "q", "answer": "a"}]).images == 0
