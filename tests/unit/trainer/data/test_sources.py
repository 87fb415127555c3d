"""Sources of a dataset: files and objects of a store, read row by row, and mixed."""

import csv
import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import obstore
import pyarrow
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download
from obstore.store import from_url
from pyarrow import parquet
from tests.support.servers.hub import Hub, hub
from tests.support.servers.seaweed import Seaweed
from tests.unit.api.manifests import job, unchecked

from rlhf_api.dataset.row_files import RowFile
from rlhf_api.dataset.rows import PromptRow
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.rules.check import check
from rlhf_api.sections.data import Source
from rlhf_trainer.data import hub as hub_split
from rlhf_trainer.data.copies import local_file
from rlhf_trainer.data.dataset import Dataset, open_dataset, open_datasets, stream
from rlhf_trainer.roles.trainer import check_same_rows

ROWS = [{"prompt": f'p{i} "[{{,"\\ \u2028 \U0001f600', "more": {"n": [i, [{}]]}} for i in range(5)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rlhf" / "data"


def write(file: Path, rows: list[dict[str, object]]) -> str:
    if file.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=2)
    elif file.suffix in (".csv", ".tsv"):
        with file.open("w", newline="") as text:
            table = csv.DictWriter(text, [*rows[0]], delimiter="\t" if file.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n\n" for row in rows))
    return str(file)


def opened(*sources: Source, samples: int | None = None) -> Dataset:
    return open_dataset(sources, "prompts", samples)


def prompts(rows: Dataset) -> list[str]:
    return [row.prompt for row in rows if isinstance(row, PromptRow)]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet", "rows.csv", "rows.tsv"])
def test_rows_are_the_same_in_every_format(tmp_path, name):
    rows = [dict(row) for row in ROWS]
    if name not in ("rows.jsonl", "rows.json"):
        for row in rows:
            row["more"] = {"n": [1]} if name == "rows.parquet" else 'a, "b"\tand\na line'
    dataset = opened(Source(path=write(tmp_path / name, rows)))
    assert [row.model_dump() for row in dataset] == rows
    assert dataset[3].model_dump() == rows[3], "in any order"


def test_one_line_of_json_holds_a_list_too(tmp_path):
    file = tmp_path / "rows.json"
    for text, count in ((json.dumps(ROWS), 5), ('\ufeff[{"prompt":"a"}]\n', 1)):
        file.write_text(text)
        assert len(opened(Source(path=str(file)))) == count


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"prompt": "a"},]', r"rows\[1\]: is not valid JSON"),
        ('[{"prompt": "a"} {"prompt": "b"}]', r"rows\[0\]: is not valid JSON: Extra data"),
        ('[{"prompt": "a"}] []', "rows: is not valid JSON: Extra data"),
        ('[{"prompt": "a"}, 5]', r"rows\[1\]: a row must be an object; it is a single value"),
        ('[{"prompt": "a"}, {"prompt": "b"', "rows: is not valid JSON"),
        ('{"prompt": "a"}\n\n{"prompt": 3}\n', "rows:3: prompt: must be a valid string; got 3"),
        ("[ ]", "rows: has no rows"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(tmp_path, text, words):
    file = tmp_path / "rows"
    file.write_text(text)
    with pytest.raises(InvalidJob, match=words):
        opened(Source(path=str(file))).check()


def test_parquet_counts_rows_and_is_copied_once(tmp_path, cache):
    bad = write(tmp_path / "rows.parquet", [{"prompt": "a"}, {"prompt": None}])
    dataset = opened(Source(path=bad))
    with pytest.raises(InvalidJob, match=r"rows.parquet\[1\]: prompt: is missing; the row has no fields"):
        dataset.check()
    (before,) = cache.glob("*.jsonl")
    opened(Source(path=bad))
    assert list(cache.glob("*.jsonl")) == [before]
    write(tmp_path / "rows.parquet", [{"prompt": "changed since"}])
    assert prompts(opened(Source(path=bad))) == ["changed since"]
    Path(bad).write_text("none")
    with pytest.raises(InvalidJob, match=r"rows.parquet: is not a Parquet file: "):
        opened(Source(path=bad))


def test_a_directory_of_parquet_files_is_no_file(tmp_path, cache):  # noqa: ARG001
    """As Spark writes one."""
    (tmp_path / "rows.parquet").mkdir()
    with pytest.raises(InvalidJob, match=r"rows.parquet: cannot be read: Is a directory"):
        opened(Source(path=str(tmp_path / "rows.parquet")))


def test_all_files_that_cannot_be_read_are_named(tmp_path):
    sources = [Source(path=str(tmp_path / name)) for name in ("a.jsonl", "b.parquet")]
    with pytest.raises(InvalidJob) as caught:
        opened(*sources)
    assert [problem.message for problem in caught.value.problems] == [
        "cannot be read: No such file or directory"
    ] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prompt,answer\na,b\nc\n",
            "rows.csv[1]: is not CSV: the row that ends in line 3 has 1 values, and the first",
        ),
        ("prompt,prompt\na,b\n", "rows.csv[0]: is not CSV: the first line names the column 'prompt' twice"),
        ('prompt\n"a\n', "rows.csv[0]: is not CSV: unexpected end of data"),
        ("prompt\n\xff\n", "rows.csv[0]: is not CSV: 'utf-8' codec can't decode"),
        ("question\na\n", "rows.csv[0]: prompt: is missing; the row has 'question'"),
        ("prompt\n", "rows.csv: has no rows"),
    ],
)
def test_bad_csv_is_named_by_its_line(tmp_path, text, message):
    (tmp_path / "rows.csv").write_text(text, encoding="latin-1")
    with pytest.raises(InvalidJob) as caught:
        list(opened(Source(path=str(tmp_path / "rows.csv"))))
    (problem,) = map(str, caught.value.problems)
    assert message in problem


def test_columns_are_read_as_the_fields_they_are_named_for(tmp_path):
    """The former name of a column is no field any more; others stay for rewards, and each source may have its own."""
    one = write(tmp_path / "one.jsonl", [{"question": "a", "prompt": "an id", "level": 1}])
    turns = [
        {"role": "user", "content": "b", "name": None},
        {"role": "assistant", "content": "c", "name": "x"},
    ]
    two = write(tmp_path / "two.parquet", [{"turns": turns}])
    spec = job(
        "spec.algorithm=sft",
        "spec.ppo={}",
        "spec.data.columns={answer: level, prompt: question}",
        f"spec.data.sources=[{{path: {one}}}, {{path: {two}, columns: {{messages: turns}}}}]",
        "spec.data.train=",
    ).spec
    first, second = spec.data.training_sources()
    (row,) = open_dataset([first.model_copy(update={"columns": {"prompt": "question"}})], "prompts")
    assert row.model_dump() == {"prompt": "a", "level": 1}
    (row,) = open_dataset([second], "responses")
    assert row.prompt[0].for_template() == {"role": "user", "content": "b"}
    with pytest.raises(
        InvalidJob, match=r"one.jsonl:1: there is no 'turns', which data.columns names; the row has 'q"
    ):
        list(open_dataset([Source(path=one, columns={"prompt": "turns"})], "prompts"))
    with pytest.raises(InvalidJob, match=r"there is no '', which data\.columns names"):
        list(open_dataset([Source(path=one, columns={"prompt": ""})], "prompts"))


def test_a_split_of_the_hubs_is_its_parquet_files_and_is_read_from_the_last_copy_without_the_hub(
    tmp_path, cache, monkeypatch, caplog
):
    folders = [tmp_path / "hub" / part for part in ("main/train", "main/test", "other/test")]
    for i, folder in enumerate(folders):
        folder.mkdir(parents=True)
        write(folder / "0000.parquet", [{"prompt": f"{i}"}])
    write(folders[0] / "0001.parquet", [{"prompt": "more"}])
    train = Source(path="hf://team/rows:train")
    with hub(Hub({"team/rows": tmp_path / "hub"})) as served:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub_split, "HfApi", lambda: HfApi(endpoint=served.url))
        monkeypatch.setattr(hub_split, "hf_hub_download", partial(hf_hub_download, endpoint=served.url))
        assert prompts(opened(train)) == prompts(opened(train)) == ["0", "more"]
        assert served.sent == {"0000.parquet": 1, "0001.parquet": 1}
        assert prompts(opened(Source(path="hf://team/rows/other:test"))) == ["2"]
        for path, message in (
            (
                "hf://team/rows:test",
                "has the split 'test' in several configurations; there is hf://team/rows/main:test, ",
            ),
            (
                "hf://team/rows:none",
                "has no such split; there is hf://team/rows/main:test, hf://team/rows/main:train, ",
            ),
            ("hf://team/others:train", "the hub does not serve it: "),
        ):
            with pytest.raises(InvalidJob) as caught:
                opened(Source(path=path))
            assert str(caught.value).startswith(f"{path}: {message}")
    served.url = "http://127.0.0.1:9"  # connections that are there would still be answered
    assert {file.suffix for file in cache.iterdir()} == {".jsonl", ".last", ".lock"}
    assert prompts(opened(train)) == ["0", "more"]
    assert "hf://team/rows:train: the hub cannot be reached" in caplog.text
    with pytest.raises(
        InvalidJob, match=r"cannot be reached: .*; set HF_ENDPOINT to a mirror, or download its files"
    ):
        opened(Source(path="hf://team/rows/main:test"))


def test_a_store_that_is_not_read_is_told_as_by_validate():
    for path, message in (
        (
            "https://there/rows.jsonl",
            "must be a path, or begin with file://, s3://, gs://, az://, hf://; download it",
        ),
        (
            "hf://datasets/owner/name/train.jsonl",
            "must be hf://OWNER/NAME:SPLIT, or hf://OWNER/NAME/CONFIGURATION:SPLIT",
        ),
    ):
        with pytest.raises(InvalidJob) as caught:
            open_dataset([Source(path=path)], "prompts")
        (problem,) = map(str, caught.value.problems)
        assert message in problem


def test_every_files_first_bad_row_is_named_and_the_first_conversation_told(tmp_path):
    good = write(tmp_path / "good.jsonl", [{"prompt": "a"}, {"prompt": [{"role": "user", "content": "b"}]}])
    plain = write(tmp_path / "plain.jsonl", [{"prompt": "a"}])
    assert opened(Source(path=plain)).check() is None
    assert opened(Source(path=plain), Source(path=good)).check() == f"{good}:3"
    assert opened(Source(path=plain, systemPrompt="S")).check() == f"{plain}:1"
    bad = [write(tmp_path / f"{i}.jsonl", [{"prompt": "a"}, {}, {}]) for i in range(2)]
    with pytest.raises(InvalidJob) as caught:
        opened(*(Source(path=path) for path in bad)).check()
    assert [p.where for p in caught.value.problems] == [f"{path}:3: prompt" for path in bad]


def test_sources_have_shares_and_system_prompts_of_their_own(tmp_path):
    paths = [write(tmp_path / f"{i}.jsonl", [{"prompt": f"{i}{j}"} for j in range(6)]) for i in range(2)]
    made = opened(
        Source(path=paths[0], weight=3.0), Source(path=paths[1], weight=1.0, systemPrompt="S"), samples=8
    )
    taken = [made[row] for _, row in stream(made, 0).take(24)]
    assert sum(row.is_conversation for row in taken) == 6
    assert {row.texts[0] for row in taken if row.is_conversation} == {"S"}
    assert len({row.texts[-1] for row in taken}) == 12
    with pytest.raises(InvalidJob, match=r"samplesPerEpoch: 1 samples an epoch leave none for source 1"):
        opened(Source(path=paths[0], weight=9.0), Source(path=paths[1], weight=1.0), samples=1)


def test_held_out_prompts_have_the_system_prompt_of_the_rest(tmp_path):
    rows = write(tmp_path / "rows.jsonl", [{"prompt": "a", "answer": "b"}])
    overrides = (
        f"spec.data.train=[{rows}]",
        "spec.data.systemPrompt=S",
        f"spec.evaluation={{data: [{rows}], function: a:b}}",
        f"spec.pretraining={{data: [{rows}]}}",
    )
    datasets = open_datasets(job(*overrides).spec).each
    assert [dataset[0].texts for dataset in datasets] == [["S", "a"], ["S", "a"], ["a", "b"]]


def test_rows_are_not_held_in_memory(tmp_path):
    file = tmp_path / "rows.jsonl"
    with file.open("w") as lines:
        for i in range(100_000):
            lines.write(f'{{"prompt": "{i:0200d}"}}\n')
    rows = RowFile(file, "prompts")
    assert len(rows._starts) * rows._starts.itemsize < 1_000_000 < file.stat().st_size
    assert rows[99_999].texts == [f"{99_999:0200d}"]


def test_objects_of_a_store_are_read_through_a_copy(tmp_path, cache, seaweed: Seaweed, monkeypatch):
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    store, url = (
        from_url(seaweed.url("data/sets"), client_options={"allow_http": True}),
        seaweed.url("data/sets/"),
    )
    big = [{"prompt": "x" * 1000 + str(i)} for i in range(20_000)]  # more than one part
    obstore.put(store, "rows.jsonl", Path(write(tmp_path / "rows.jsonl", big)).read_bytes())
    obstore.put(store, "rows.parquet", Path(write(tmp_path / "rows.parquet", big[:3])).read_bytes())
    assert prompts(opened(Source(path=f"{url}rows.jsonl"))) == [row["prompt"] for row in big]
    assert prompts(opened(Source(path=f"{url}rows.parquet"))) == [row["prompt"] for row in big[:3]]
    copies = {file: file.stat().st_mtime_ns for file in cache.glob("*.jsonl")}
    opened(Source(path=f"{url}rows.jsonl"))
    assert {file: file.stat().st_mtime_ns for file in cache.glob("*.jsonl")} == copies
    obstore.put(store, "rows.jsonl", b'{"prompt": "a"}\n{}\n')
    with pytest.raises(InvalidJob, match=rf"{url}rows.jsonl:2: prompt: is missing"):
        opened(Source(path=f"{url}rows.jsonl")).check()
    with pytest.raises(InvalidJob, match=rf"{url}no.jsonl: cannot be read: there is no such object"):
        local_file(f"{url}no.jsonl")


MIXED = "spec.data={sources: [{path: a, weight: 1, systemPrompt: S}, {path: b, weight: 2}], systemPrompt: T}"


def test_sources_in_the_manifest():
    assert job(
        "spec.data.train=[a, 'b::c.jsonl::0.5']".replace("a, ", "'a::1', ")
    ).spec.data.training_sources() == (
        Source(path="a", weight=1.0),
        Source(path="b::c.jsonl", weight=0.5),
    )
    assert job(MIXED, "spec.data.promptsPerStep=8").spec.data.training_sources() == (
        Source(path="a", weight=1.0, systemPrompt="S"),
        Source(path="b", weight=2.0, systemPrompt="T"),
    )


def test_an_empty_system_prompt_of_a_source_takes_the_place_of_the_others():
    empty = MIXED.replace("S", "''")
    assert [source.system_prompt for source in job(empty).spec.data.training_sources()] == ["", "T"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "spec.data.train=['a::x']",
            "spec.data.train[0]: must be a path, or path::weight with a number above 0",
        ),
        (
            "spec.data.train=['a::0']",
            "spec.data.train[0]: must be a path, or path::weight with a number above 0",
        ),
        ("spec.data.train=['a::nan']", "spec.data.train[0]: must be a path, or path::weight"),
        ("spec.data.train=['a::1', b]", "spec.data.train[1]: has no weight, and others have"),
        ("spec.data.train=null", "spec.data: needs exactly one of train (paths) and sources"),
        ("spec.data.sources=[{path: a}]", "spec.data: needs exactly one of train (paths) and sources"),
    ],
)
def test_sources_that_do_not_go_together(override, message):
    (problem,) = check(unchecked(override))
    assert str(problem).startswith(message)


class Counted:
    """A sequence that makes its rows, and says when."""

    asked: list[int] = []

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, object]:
        Counted.asked.append(index)
        return {"prompt": f"p{index}"} if index < 2 else {"answer": 2}


def no_rows() -> None:
    raise FileNotFoundError("corpus.bin")


def test_rows_of_a_function_of_ones_own_are_read_when_they_are_needed():
    path = f"{__name__}:Counted"
    rows = open_dataset([Source(path=path, weight=2.0)], "prompts", 6)
    assert (len(rows), Counted.asked) == (3, [])
    assert isinstance(rows[1], PromptRow)
    assert (rows[1].prompt, Counted.asked) == ("p1", [1, 1])
    with pytest.raises(InvalidJob, match=rf"{path}\[2\]"):
        rows.check()


def shuffled() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [{"prompt": f"p{i}"} for i in range(100)]
    random.shuffle(rows)
    return rows


def ranks_agree(source: Source, change: Callable[[], object]) -> None:
    """Rank 0 reads the source, then rank 1, after `change`."""
    sent: list[object] = []

    def share(make):
        sent.append(make())
        return sent[0]

    for rank in (0, 1):
        check_same_rows(SimpleNamespace(rank=rank, share=share), opened(source).checksums())
        change()


@pytest.mark.parametrize("seed", [0, 1], ids=["the same rows", "another order"])
def test_a_rank_whose_function_returned_other_rows_than_rank_0_s_is_told(seed):
    source = Source(path=f"{__name__}:shuffled")
    random.seed(0)
    refusal = pytest.raises(
        InvalidJob, match=f"{source.path}: rank 1 of the trainer read other rows than rank 0"
    )
    with refusal if seed else nullcontext():
        ranks_agree(source, lambda: random.seed(seed))


def test_a_rank_whose_node_has_another_copy_of_a_file_is_told(tmp_path):
    file = tmp_path / "rows.jsonl"
    source = Source(path=write(file, [{"prompt": "a"}, {"prompt": "b"}]))
    ranks_agree(source, lambda: None)
    with pytest.raises(InvalidJob, match=f"{file}: rank 1 .* give every node the same file"):
        ranks_agree(source, lambda: write(file, [{"prompt": "a"}, {"prompt": "c"}]))


def splits() -> dict[str, object]:
    return {"train": [{"prompt": "a"}], "test": []}


class Unsized:
    def __len__(self) -> int:
        raise RuntimeError("streamed")

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"prompt": "a"}


def dated() -> list[dict[str, object]]:
    return [{"prompt": "a", "day": date(2026, 1, 2)}, {"prompt": "b", "image": {b"png"}}]


def test_rows_of_a_function_are_what_reward_functions_can_be_sent():
    rows = opened(Source(path=f"{__name__}:dated"))
    assert rows[0].model_dump() == {"prompt": "a", "day": "2026-01-02"}, "as of a Parquet file"
    with pytest.raises(
        InvalidJob, match=r"dated\[1\]: cannot be JSON: a set is not a JSON value; leave that"
    ):
        rows.check()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_rows", "has no rows: FileNotFoundError: corpus.bin"),
        ("missing", "cannot be imported"),
        ("write", "has no rows: TypeError"),
        ("list", "has no rows"),
        ("dict", "got dict"),
        ("splits", "must return a sequence of rows, with len() and [i]; got dict of 'train', 'test'"),
        ("Unsized", "has no rows: RuntimeError: streamed"),
        ("object", "must return a sequence of rows, with len() and [i]; got object"),
    ],
)
def test_a_function_that_has_none(name: str, message: str):
    path = f"{'builtins' if name in ('list', 'dict', 'object') else __name__}:{name}"
    with pytest.raises(InvalidJob) as raised:
        open_dataset([Source(path=path)], "prompts")
    assert message in str(raised.value)


@pytest.mark.parametrize("shape", ["lines", "list"])
def test_a_row_that_is_changed_after_the_file_was_opened_is_told(tmp_path, shape):
    """Offsets of the former file would give parts of rows, or silently other rows; what is appended does no harm."""

    def write(*prompts: str) -> None:
        lines = [json.dumps({"prompt": prompt}) for prompt in prompts]
        text = "\n".join(lines) if shape == "lines" else f"[{' ,'.join(lines)}]"
        file.write_text(text)

    file = tmp_path / "rows"
    write("one", "two")
    rows = RowFile(file, "prompts")
    write("one", "two", "three")
    assert [row.prompt for row in rows] == ["one", "two"]
    write("one", "owt")
    assert rows[0].prompt == "one"
    with pytest.raises(InvalidJob, match=r"rows, row 1: changed after the file was opened"):
        rows[1]
    write("o")
    with pytest.raises(InvalidJob, match="row 0: changed after the file was opened"):
        rows[0]
