"""`rlhf checkpoint ls|verify|gc`, in a directory and in S3."""

import obstore
import pytest

from rlhf_operator.archive.export import chosen
from rlhf_operator.cli import main
from rlhf_store.archive import Archive
from rlhf_store.manifest import Entry
from rlhf_store.retention import Retention


@pytest.fixture
def rlhf(capsys):
    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = main(["checkpoint", *arguments])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run


def test_ls(place, rlhf):
    assert rlhf("ls", place.url) == (0, [f"{place.url} holds no checkpoint"], "")
    trainer = place.trainer()
    trainer.save(3)
    time = trainer.save(12, reward=0.25).time
    code, (head, three, twelve), _ = rlhf("ls", place.url)
    assert code == 0
    assert head.split() == ["STEP", "TIME", "SIZE", "EVALUATION", "EPOCH", "HEALTH"]
    assert three.split()[0] == "3"
    assert twelve.split() == ["12", time, *three.split()[2:4], "0.25", "1", "good"]


def test_a_directory_may_be_named_as_a_status_names_it(rlhf, tmp_path):
    (folder := tmp_path / "my runs" / "checkpoints").mkdir(parents=True)
    assert rlhf("ls", folder.as_uri()) == (0, [f"{folder.as_uri()} holds no checkpoint"], "")


def test_verify_reads_everything_and_tells_by_its_exit_code(place, rlhf):
    trainer = place.trainer()
    trainer.save(1)
    damaged = trainer.save(2)
    code, lines, _ = rlhf("verify", place.url)
    assert (code, len(lines)) == (0, 2)
    assert lines[1].startswith("step 2: intact, 4 segments, ")
    place.damage(damaged.manifest.groups["model"][0].key)
    code, lines, error = rlhf("verify", place.url)
    assert code == 1
    assert lines[0].startswith("step 1: intact")
    assert lines[1].startswith("step 2: DAMAGED: segment ")
    assert error == "error: 1 checkpoint is damaged; a run goes on from the newest that is intact\n"


def test_what_the_run_deletes_meanwhile_is_not_damaged(place, rlhf, monkeypatch):
    """Its retention goes on while somebody reads the store."""
    trainer = place.trainer(Retention(last=2))
    trainer.save(1)
    trainer.save(2)
    trained = iter((3, 4))

    def entries(archive: Archive) -> list[Entry]:
        cuts = list(archive.read_root()[0].cuts)
        if (step := next(trained, None)) is not None:
            trainer.save(step)
        return cuts

    monkeypatch.setattr(Archive, "entries", entries)
    code, lines, error = rlhf("verify", place.url)
    assert (code, error) == (0, "")
    assert [line[:15] for line in lines] == ["step 1: deleted", "step 2: deleted"]
    place.damage(trainer.told[-1].entry.key)
    code, lines, _ = rlhf("verify", place.url)
    assert code == 1
    assert lines[-1].startswith("step 4: DAMAGED")


def test_ls_leaves_out_what_the_run_deletes_meanwhile(place, rlhf, monkeypatch):
    trainer = place.trainer(Retention(last=1))
    trainer.save(1)
    entries_before = Archive(place.url).entries()
    trainer.save(2)
    listed = iter((entries_before, *[Archive(place.url).entries()] * 2))
    monkeypatch.setattr(Archive, "entries", lambda _archive: next(listed))
    assert rlhf("ls", place.url)[1] == [f"{place.url} holds no checkpoint"]


def test_gc_deletes_what_nobody_refers_to_and_nothing_young(place, rlhf):
    place.trainer(Retention(last=1)).save(1)
    before = place.keys("")
    obstore.put(place.raw, "segments/" + "0" * 64, b"left by an interrupted upload")
    assert rlhf("gc", place.url) == (0, ["deleted 0 objects, 0 B; left 1 younger"], "")
    assert rlhf("gc", place.url, "--older-than=0", "--dry-run")[1] == ["would delete 1 object, 29 B"]
    assert len(place.keys("")) == len(before) + 1
    assert rlhf("gc", place.url, "--older-than=0")[1] == ["deleted 1 object, 29 B"]
    assert place.keys("") == before
    assert rlhf("verify", place.url)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls",), "`checkpoint ls|verify|gc|export STORE` looks into a store"),
        (("ppo", "s3://bucket/x"), "`checkpoint NAME` asks a job"),
        (("ls", "nowhere"), "nowhere: no such directory"),
        (("ls", ".", "3"), "`checkpoint ls STORE` takes no further argument; got 3"),
        (("export", "."), "`checkpoint export STORE STEP|best|latest OUT` needs a step and a folder"),
        (("export", ".", "latest", "/"), "/: is there already; name another folder"),
    ],
)
def test_what_does_not_go_together(rlhf, arguments, message):
    code, lines, error = rlhf(*arguments)
    assert (code, lines) == (2, [])
    assert message in error
    assert len(error.splitlines()) == 1


def test_export_names_the_steps_that_are_there(directory, rlhf, tmp_path):
    trainer = directory.trainer()
    trainer.save(3)
    trainer.save(12)
    for step, lack in (("4", "of step 4"), ("best", "with an evaluation")):
        code, lines, error = rlhf("export", directory.url, step, str(tmp_path / "out"))
        assert (code, lines) == (2, [])
        assert error == f"error: {directory.url}: has no checkpoint {lack}; it has those of steps: 3, 12\n"


def test_the_best_of_equal_evaluations_is_the_newest_as_retention_has_it(directory):
    trainer = directory.trainer()
    for step, reward in ((1, 0.5), (2, 0.5), (3, None), (4, 0.25)):
        trainer.save(step, reward=reward)
    entries = Archive(directory.url).entries()
    assert chosen(entries, "best", "a store").step == 2
    assert chosen(entries, "latest", "a store").step == 4
    assert [entry.step for entry in Retention(last=1, best=1).keep(entries)] == [2, 4]
