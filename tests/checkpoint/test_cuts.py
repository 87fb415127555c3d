"""Checkpoints in a directory and in S3: whole or not there, and never worse off for a damaged one."""

import json
import logging
import os
import subprocess
import sys

import obstore
import pytest
import torch

from rlhf_api.problems import InvalidJob
from rlhf_trainer.checkpoint import cuts as module
from rlhf_trainer.checkpoint.cuts import Cuts, DamagedCut
from rlhf_trainer.checkpoint.store import FIRST_PATIENCE, StoreError, _connect


def tensors(step: int) -> dict[str, torch.Tensor]:
    """What changes from step to step, what never does, and an odd dtype."""
    generator = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(30, 7, generator=generator),
        "half": torch.randn(5, generator=generator).bfloat16(),
        "scalar": torch.tensor(step),
    }


def write(cuts: Cuts, step: int):
    frozen = {"embedding": torch.arange(12.0)}
    return cuts.write(
        step,
        {"position": step * 4},
        {"model": tensors(step).items(), "frozen": frozen.items(), "none": {}.items()},
    )


def assert_is(cut, step: int) -> None:
    assert (cut.step, cut.state) == (step, {"position": step * 4})
    found = cut.tensors("model")
    assert found.keys() == tensors(step).keys()
    for name, expected in tensors(step).items():
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name], expected)
    assert cut.tensors("none") == {}


def test_what_was_written_is_read_from_another_process_on(place):
    write(place.cuts, 1)
    write(place.cuts, 12)
    again = Cuts(place.cuts.url)
    assert again.steps() == [1, 12]
    assert_is(again.newest(), 12)
    assert_is(again.open(1), 1)


def test_tensors_spread_over_segments_of_a_bounded_size(place, monkeypatch):
    monkeypatch.setattr(module, "SEGMENT_BYTES", 100)
    many = {f"layer.{i}": torch.full((20,), float(i)) for i in range(9)}
    cut = place.cuts.write(3, {}, {"model": many.items()})
    assert len(cut.groups["model"]) == 5  # 80 bytes each: two fill one
    newest = place.cuts.newest()
    assert all(torch.equal(newest.tensor("model", name), value) for name, value in many.items())


def test_a_large_segment_survives_the_multipart_upload(place):
    large = torch.randn(6_000_000)  # 24 MB: the store's client sends it in parts
    place.cuts.write(1, {}, {"model": {"large": large}.items()})
    assert torch.equal(place.cuts.newest().tensor("model", "large"), large)


def test_unchanged_tensors_are_stored_once(place):
    first, second = write(place.cuts, 1), write(place.cuts, 2)
    assert first.groups["frozen"] == second.groups["frozen"]
    assert len(place.keys("segments")) == 3


@pytest.mark.parametrize("part", ["manifest", "segment"])
def test_a_damaged_cut_is_passed_over_loudly(place, caplog, part):
    write(place.cuts, 1)
    damaged = write(place.cuts, 2)
    place.damage("cuts/00000002.json" if part == "manifest" else damaged.groups["model"][0].key)
    with caplog.at_level(logging.ERROR):
        newest = place.cuts.newest()
    assert_is(newest, 1)
    assert "DAMAGED CHECKPOINT" in caplog.text
    assert "step 2" in caplog.text


def test_no_damaged_byte_of_a_manifest_goes_unnoticed(tmp_path):
    cuts = Cuts(f"file://{tmp_path}")
    write(cuts, 1)
    file = tmp_path / "cuts" / "00000001.json"
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedCut):
            cuts.open(1)
    file.write_bytes(whole)
    assert_is(cuts.newest(), 1)


def test_a_missing_segment_and_a_cut_short_manifest_are_damage_too(place):
    write(place.cuts, 1)
    gone = write(place.cuts, 2).groups["model"][0].key
    write(place.cuts, 3)
    obstore.delete(place.raw, gone)
    obstore.put(place.raw, "cuts/00000003.json", b'{"format": 1, "step"')
    assert_is(place.cuts.newest(), 1)
    with pytest.raises(DamagedCut, match="missing"):
        place.cuts.open(9)


def test_a_cut_of_another_format_is_not_read(place):
    write(place.cuts, 1)
    manifest = module._signed({"format": 2, "step": 2})
    obstore.put(place.raw, "cuts/00000002.json", json.dumps(manifest).encode())
    with pytest.raises(DamagedCut, match="format 2; this version reads 1"):
        place.cuts.open(2)


def test_an_interrupted_write_is_invisible(place):
    write(place.cuts, 1)

    def breaks():
        yield "weight", torch.ones(3)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        place.cuts.write(2, {}, {"model": tensors(2).items(), "critic": breaks()})
    assert len(place.keys("segments")) == 3
    assert place.cuts.steps() == [1]
    assert_is(place.cuts.newest(), 1)
    write(place.cuts, 3)
    place.cuts.retain(2)
    assert len(place.keys("segments")) == 3, (
        "what the interrupted write left is gone: two models, one embedding"
    )


def test_retain_deletes_only_what_nobody_refers_to(place):
    for step in (1, 2, 3, 4):
        write(place.cuts, step)
    place.cuts.retain(2)
    assert place.cuts.steps() == [3, 4]
    for step in (3, 4):
        cut = place.cuts.open(step)
        cut.verify()
        assert_is(cut, step)
    assert len(place.keys("segments")) == 3


def test_saving_goes_on_beside_a_damaged_manifest(place):
    """A run that fell back from step 4 to step 2 and saves step 3 must keep both, and not fall over step 4."""
    write(place.cuts, 2)
    obstore.put(place.raw, "cuts/00000004.json", b"torn")
    assert place.cuts.newest().step == 2
    write(place.cuts, 3)
    place.cuts.retain(2)
    assert place.cuts.steps() == [2, 3]
    assert_is(place.cuts.newest(), 3)


def test_a_new_run_does_not_touch_an_earlier_one(place):
    place.cuts.check_unused()
    write(place.cuts, 1)
    ways = "go on from them with --resume or `spec.checkpoint.resume: true`"
    with pytest.raises(InvalidJob, match=rf"spec.checkpoint.store: .* up to step 1; {ways}"):
        place.cuts.check_unused()
    assert place.cuts.newest().step == 1


def test_a_check_leaves_nothing_behind(place):
    place.cuts.check_writable()
    assert place.keys("") == set()


READ_ONLY = """
import os, sys
from rlhf_api.problems import InvalidJob
from rlhf_trainer.checkpoint.cuts import Cuts
cuts = Cuts(sys.argv[1])
os.setuid(65534)
try:
    cuts.check_writable()
except InvalidJob as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody who may not write")
def test_a_directory_that_cannot_be_written_is_named_before_the_first_step(tmp_path):
    url = f"file://{tmp_path / 'checkpoints'}"
    command = [sys.executable, "-c", READ_ONLY, url]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said.startswith(f"spec.checkpoint.store: cannot use {url}: ")


def test_an_outage_is_not_taken_for_damage(place, monkeypatch):
    """Else a run would fall back to an older cut, or to the start, because the network failed for a moment."""
    if place.cuts.url.startswith("file"):
        return  # a directory has no outage
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(place.cuts._store, "_store", _connect(place.cuts.url, FIRST_PATIENCE))
    with pytest.raises(StoreError, match=r"the checkpoint store fails: .*127\.0\.0\.1:1"):
        place.cuts.newest()
