"""Scores of functions in processes of their own, of models, and of both."""

import asyncio
import itertools
import re
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch
from tests.support.tiny.models import byte_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.models.pretrained.create import create_tokenizer
from rlhf_trainer.models.pretrained.load import positions_of
from rlhf_trainer.process.imports import import_function
from rlhf_trainer.process.usage import Usage
from rlhf_trainer.scoring import call_queue, function_pool
from rlhf_trainer.scoring.function_pool import FunctionPool
from rlhf_trainer.scoring.messages import ScoreReport
from rlhf_trainer.scoring.rewards import (
    Function,
    Functions,
    ModelScorer,
    WeightedModel,
    forward_scores,
    texts,
    texts_of_tokens,
    to_float32,
)
from rlhf_trainer.tensors.records import Sequences

TOKENIZER = byte_tokenizer()
EOS = TOKENIZER.eos_token_id
TEXTS = [("good ", "morning"), ("a ", "b"), ("bad ", "day to you all"), ("x", "yz")]
ROWS = [{"prompt": prompt, "grade": i} for i, (prompt, _) in enumerate(TEXTS)]
WHERE = "spec.reward.functions[0].function"


def ids(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]


SEQUENCES = Sequences.pack([(ids(prompt), [*ids(answer), EOS]) for prompt, answer in TEXTS])


FUNCTIONS = """
def keys(prompts, responses, rows):
    import os
    return [list(os.environ.values()).count("a-secret") for _ in rows]

import ctypes, os, sys, time
from pathlib import Path

import numpy as np


def lengths(_prompts, responses, _rows):
    return [float(len(response)) for response in responses]


def grades(prompts, _responses, rows):
    assert [row["prompt"] for row in rows] == prompts
    print("on stdout, which is not the server's")
    assert sys.stdin.read() == ""
    return np.array([row["grade"] for row in rows], dtype=np.float32)


def raises(_prompts, _responses, rows):
    return [rows[0]["no such key"]]


def one_for_all(prompts, responses, rows): return [1.0]
def by_place(_p, responses, _r): return {i: 0.5 for i in range(len(responses))}
def once_each(_p, responses, _r): return {len(response) / 2 for response in responses}
def raw(_p, responses, _r): return bytes(len(responses))
def raw_to_change(_p, responses, _r): return bytearray(len(responses))
def a_view(_p, responses, _r): return memoryview(bytes(len(responses)))
def masked(_p, responses, _r): return np.ma.array([5.0] * len(responses), mask=[r == "b" for r in responses])
def masked_one(_p, responses, _r): return [np.ma.masked if r == "b" else 1.0 for r in responses]
def nothing(*_): return None
def a_float(*_): return 0.5
def nan(_p, responses, _r): return [float("nan") if r == "b" else 0.0 for r in responses]
def infinite(_p, responses, _r): return [float("inf") if r == "b" else 0.0 for r in responses]
def huge(_p, responses, _r): return [10**400 if r == "b" else 0 for r in responses]
def above_float32(_p, responses, _r): return [-1e39 if r == "b" else 0.0 for r in responses]
class Denying(float):
    def __abs__(self): return 0.0
    def __lt__(self, other): return True
    def __gt__(self, other): return False
    def __repr__(self): return "0.0"
def denied_nan(_p, responses, _r): return [Denying("nan") if r == "b" else 0.0 for r in responses]
def denied_size(_p, responses, _r): return [Denying(-1e39) if r == "b" else 0.0 for r in responses]
def large(_p, responses, _r): return [3.3e38 for _ in responses]
def texts(_p, responses, _r): return ["1" for _ in responses]
def one_text(*_): return "11"
def a_tensor(_p, responses, _r): return __import__("torch").tensor([len(each) / 2 for each in responses])
def arrays(_p, responses, _r): return [np.array(len(each) / 2) for each in responses]
def nan_in_a_tensor(*_): return __import__("torch").tensor([0.0, float("nan")])
def a_number_in_an_array(*_): return np.array(1.0)
def one_by_one(_p, responses, rows):
    yield 1.0
    yield rows[0]["no such key"]
def talkative(_p, responses, _r): raise ValueError("x" * (1 << 27))


def of_tokens(_p, responses, _r, tokens):
    assert ["".join(found) for found in tokens] == responses
    return [[float(len(text)) for text in found] for found in tokens]
def some(_p, responses, _r, tokens): return [[1.0] for _ in tokens]
def not_all_finite(_p, _r, _rows, tokens): return [[float("nan")] * len(found) for found in tokens]
def by_token(_p, responses, _r, tokens): return [dict.fromkeys(range(len(found)), 0.5) for found in tokens]
def several(_p, responses, _r): return [[1.0, 2.0] for _ in responses]
def with_or_without(_p, responses, _r, tokens=None): return [1.0 if tokens is None else 2.0 for _ in responses]


def ends(how):
    def function(_prompts, responses, _rows):
        if "b" in responses:
            how()
        return [1.0 for _ in responses]
    return function


def refused():
    raise ConnectionRefusedError("the judge is away")


def memory():
    raise MemoryError("too much")


def hangs_alone(_prompts, responses, _rows):
    if len(responses) > 1:
        os._exit(3)
    if responses == ["b"]:
        time.sleep(3600)
    return [1.0]


hangs = ends(lambda: time.sleep(3600))
hangs_always = lambda *_: time.sleep(3600)
exits = ends(lambda: os._exit(3))
crashes = ends(lambda: ctypes.string_at(0))
is_killed = ends(lambda: os.kill(os.getpid(), 9))
cannot_connect = ends(refused)
has_no_memory = ends(memory)


def of_a_library(_prompts, responses, _rows):
    return [__import__("json").loads("{") for _ in responses]


class Made:
    def __init__(self):
        pass


def child_hangs(_prompts, responses, rows):
    if os.fork() == 0:
        Path(rows[0]["file"]).write_text(str(os.getpid()))
        time.sleep(3600)
    os.wait()


def forks(_prompts, responses, _rows):
    child = os.fork() == 0
    return [-1.0 if child else float(len(response)) for response in responses]


def fails_once(_prompts, responses, rows):
    file = Path(rows[0]["file"])
    if not file.exists():
        file.touch()
        os._exit(1)
    return [2.0 for _ in responses]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with a module of reward functions: where a job runs."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "functions_of_this_test.py").write_text(FUNCTIONS)
    return folder


@pytest.fixture(scope="module")
def wait():
    """Runs coroutines on one loop in a thread, as the role does; at the end the loop's processes are ended."""
    loop, before = asyncio.new_event_loop(), psutil.Process().children()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(120)
    for child in set(psutil.Process().children()) - set(before):
        child.kill()


@pytest.fixture
def score(folder, wait, monkeypatch):
    """Scores of functions, each `(name, weight)`."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("rlhf_trainer.scoring.call_queue.PAUSE_SECONDS", 0.01)

    async def function(
        name: str, weight: float, timeout: float, retries: int, failure_score: float
    ) -> Function:
        path = f"functions_of_this_test:{name}"
        pool = FunctionPool(WHERE, path, concurrency=2, timeout=timeout, failure_score=failure_score)
        await pool.start()
        return Function(name, weight, retries, pool)

    def scored(
        *entries,
        model=None,
        timeout=60.0,
        seconds=100.0,
        retries=0,
        rows=ROWS,
        times=1,
        fine=False,
        failure_score=0.0,
    ):
        loaded = [wait(function(*entry, timeout, retries, failure_score)) for entry in entries]
        functions = Functions(TOKENIZER, seconds, loaded, fine_grained=fine)
        for _ in range(times):
            scores, report = wait(functions.score(SEQUENCES, rows))
        if model is not None:
            more, also = WeightedModel(*model, fine).score(SEQUENCES, rows)
            scores = scores + more
            report = ScoreReport(failures=report.failures | also.failures, parts=report.parts | also.parts)
        return scores, report

    return scored


def test_functions_see_texts_and_rows_and_are_weighted(score):
    scores, report = score(("lengths", 2.0), ("grades", -1.0))
    assert scores.tolist() == [14.0, 1.0, 26.0, 1.0]
    assert to_float32(scores).dtype == torch.float32
    assert report.failures == {}
    assert {name: part.total for name, part in report.parts.items()} == {"lengths": 24.0, "grades": 6.0}
    assert all(part.seconds > 0 and part.failed == 0 for part in report.parts.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", r"the function raised KeyError: 'no such key' \(.*functions_of_this_test\.py:\d+\)"),
        ("of_a_library", r"the function raised JSONDecodeError: .* \(.*functions_of_this_test\.py:\d+\)$"),
        ("Made", r"the function raised TypeError: .* but 4 were given$"),
        ("one_for_all", "returned 1 scores for 2 responses"),
        ("nothing", "returned a NoneType, not a list of one number for each response"),
        ("a_float", "returned a float, not a list"),
        ("by_place", "returned a dict, not a list"),
        ("once_each", "returned a set, not a list"),
        ("raw", "returned a bytes, not a list"),
        ("raw_to_change", "returned a bytearray, not a list"),
        ("a_view", "returned a memoryview, not a list"),
        ("masked", "finite number; got a masked entry for 'b'"),
        ("masked_one", "finite number; got a masked entry for 'b'"),
        ("denied_nan", "finite number; got NaN for 'b'"),
        ("denied_size", r"must not exceed 3\.4e\+38; got -1e\+39 for 'b'"),
        ("nan", "each score must be a finite number; got NaN for '(b|yz)'"),
        ("infinite", "finite number; got Infinity for '(b|yz)'"),
        ("huge", r"each score must not exceed 3\.4e\+38; got 1000"),
        ("above_float32", r"each score must not exceed 3\.4e\+38; got -1e\+39 for '(b|yz)'"),
        ("texts", "finite number; got '1' for "),
        ("one_text", "returned a str, not a list"),
        ("nan_in_a_tensor", "finite number; got NaN for '(b|yz)'"),
        ("a_number_in_an_array", "returned a ndarray, not a list"),
        ("one_by_one", r"the function raised KeyError: 'no such key' \(.*functions_of_this_test\.py:\d+\)"),
        ("talkative", r"the function raised ValueError: x{2000} \("),
    ],
)
def test_what_functions_get_wrong_is_said_with_the_field(score, name, message):
    """Of two calls, each for two responses, the error of the first to end."""
    with pytest.raises(InvalidJob, match=message) as caught:
        score((name, 1.0))
    assert [problem.where for problem in caught.value.problems] == [WHERE]


def test_large_scores_are_added_without_overflow_and_a_total_that_is_too_large_is_refused(score):
    """3.3e38 is a float32, and 3 x 3.3e38 is none."""
    totals, _ = score(("large", 3.0), ("large", -2.0))
    assert to_float32(totals).tolist() == pytest.approx([3.3e38] * 4)
    totals, _ = score(("large", -3.0))
    with pytest.raises(
        InvalidJob, match=r"^spec\.reward: .* not exceed 3\.4e\+38; got -9\.9e\+38; lower the weights"
    ):
        to_float32(totals)


@pytest.mark.parametrize("name", ["a_tensor", "arrays"])
def test_numbers_may_be_tensors_or_arrays(score, name):
    """A tensor's elements are tensors, over which Python says it can iterate, and cannot."""
    assert score((name, 1.0))[0].tolist() == [len(response) / 2 for _, response in TEXTS]


def test_functions_score_tokens_or_whole_responses(score):
    """A byte is a token here, and so is the end, whose text is empty; a whole response's score is its last token's."""
    lengths = SEQUENCES.response_lengths.tolist()

    def model(*_):
        return torch.full((sum(lengths),), 0.5)

    scores, report = score(("of_tokens", 1.0), ("lengths", 2.0), model=(1.0, model), fine=True)
    assert scores.shape == (sum(lengths),)
    for token_scores, (_, response) in zip(scores.split(lengths), TEXTS, strict=True):
        assert token_scores.tolist() == [*[1.5] * len(response), 0.5 + 2 * len(response)]
    assert report.failures == {}
    assert {name: part.total for name, part in report.parts.items()} == {
        "of_tokens": 24.0,
        "lengths": 24.0,
        "model": 0.5 * sum(lengths),
    }
    assert score(("with_or_without", 1.0), fine=True)[0].sum() == 8
    assert score(("with_or_without", 1.0))[0].tolist() == [1.0] * 4


def test_a_response_without_scores_has_none_for_any_token(score):
    scores, report = score(("exits", 1.0), ("of_tokens", 1.0), fine=True)
    parts = scores.split(SEQUENCES.response_lengths.tolist())
    assert [bool(part.isnan().all()) for part in parts] == [False, True, False, False]
    assert list(report.failures) == [1]


@pytest.mark.parametrize(
    ("name", "message", "fine"),
    [
        ("some", "returned 1 numbers for 8 tokens, of 'morning'; return one for each, or one in all", True),
        ("several", "returned 2 numbers for 8 tokens", True),
        ("not_all_finite", "finite number; got NaN for 'morning'", True),
        ("by_token", "finite number; got .* for 'morning'", True),
        (
            "several",
            "returned several numbers for 'morning'; rewards of tokens need .*fineGrained: true",
            False,
        ),
        ("of_tokens", "needs tokens, .* need spec.reward.fineGrained: true", False),
    ],
)
def test_scores_of_tokens_that_are_none_are_refused(score, name, message, fine):
    with pytest.raises(InvalidJob, match=message):
        score((name, 1.0), fine=fine)


LEARNED = create_tokenizer(["naïve café 東京 "] * 9, 300)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, LEARNED], ids=["bytes", "bpe"])
def test_the_texts_of_tokens_add_up_to_the_response(tokenizer):
    text = "a naïve café, 東京 🎉 now"
    tokens = tokenizer(text)["input_ids"]
    sequences = Sequences.pack(
        [([1], [*tokens, tokenizer.eos_token_id]), ([1], tokens[:-5]), ([1], tokens[:12])]
    )
    _, responses = texts(sequences, tokenizer)
    token_texts = texts_of_tokens(sequences, tokenizer)
    assert ["".join(pieces) for pieces in token_texts] == responses
    assert [len(pieces) for pieces in token_texts] == sequences.response_lengths.tolist()
    assert token_texts[0][-1] == ""


@pytest.mark.parametrize("tokenizer", [TOKENIZER, LEARNED], ids=["bytes", "bpe"])
@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("the end\n", "the end"),
        ("the end\n\n", "the end\n"),
        ("a café東", "a café"),
        ("a\nb", "a\nb"),
        ("naïve. Stop", "naïve. "),
    ],
)
def test_the_text_of_a_response_ends_before_the_stop_string_that_ends_it(tokenizer, response, text):
    """A stop string inside the response, as below `minNewTokens`, stays."""
    stop = ["\n", "東", "Stop", ". Stop"]
    tokens = tokenizer(response)["input_ids"]
    sequences = Sequences.pack([([1], tokens), ([1], [*tokens, tokenizer.eos_token_id])])
    assert texts(sequences, tokenizer, stop)[1] == [text, response]
    pieces, whole = texts_of_tokens(sequences, tokenizer, stop)
    assert ("".join(pieces), "".join(whole)) == (text, response)
    assert (len(pieces), len(whole)) == (len(tokens), len(tokens) + 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exits", "the function's process ended with exit code 3"),
        ("crashes", "the function's process was ended by SIGSEGV"),
        ("is_killed", "the function's process was ended by SIGKILL, maybe for lack of memory"),
        ("cannot_connect", "the function raised ConnectionRefusedError: the judge is away"),
        ("has_no_memory", "the function raised MemoryError: too much"),
    ],
)
def test_one_response_that_a_function_dies_of_costs_that_response(score, name, reason):
    """The others of the same call have their scores, and so have those of the next batch."""
    scores, report = score((name, 1.0), ("lengths", 1.0), retries=1, times=2)
    assert scores[[0, 2, 3]].tolist() == [8.0, 15.0, 3.0]
    assert torch.isnan(scores[1])
    assert list(report.failures) == [1]
    assert report.failures[1].startswith(f"{name}: {reason}")
    assert (report.parts[name].failed, report.parts["lengths"].failed) == (1, 0)


def test_a_function_has_the_users_keys_and_not_the_jobs(score, monkeypatch):
    monkeypatch.setenv("RLHF_TOKEN", "a-secret")
    monkeypatch.setenv("JUDGE_API_KEY", "a-secret")
    assert score(("keys", 1.0))[0].tolist() == [1.0] * len(ROWS)


def test_a_function_that_hangs_is_ended(score):
    scores, report = score(("hangs", 1.0), timeout=5.0)
    assert scores[[0, 2, 3]].tolist() == [1.0, 1.0, 1.0]
    assert report.failures == {1: "hangs: the function took longer than 5 s"}


def test_a_response_that_a_function_computes_on_until_its_timeout_has_a_score(score, monkeypatch):
    """The others end in time, so it is not the function; a retry would take as long."""
    computed = itertools.count(0, 60)
    monkeypatch.setattr(function_pool, "usage", lambda _: Usage(computed=next(computed)))
    scores, report = score(("hangs", 1.0), timeout=5.0, failure_score=-2.0, retries=1)
    assert scores.tolist() == [1.0, -2.0, 1.0, 1.0]
    assert report.failures == {}


def test_a_function_that_computes_too_long_for_every_response_gives_no_score(score, monkeypatch):
    computed = itertools.count(0, 60)
    monkeypatch.setattr(function_pool, "usage", lambda _: Usage(computed=next(computed)))
    scores, report = score(("hangs_always", 1.0), timeout=1.0, failure_score=-2.0)
    assert scores.isnan().all()
    assert set(report.failures.values()) == {"hangs_always: the function took longer than 1 s"}


def test_what_a_hanging_function_started_is_ended_with_it(score, tmp_path):
    rows = [{"file": str(tmp_path / "pid")}] * 4
    score(("child_hangs", 1.0), timeout=5.0, rows=rows)
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + 120
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_child_that_a_function_forks_and_lets_return_replies_to_no_call(score):
    scores, _ = score(("forks", 1.0), times=4)
    assert scores.tolist() == [7.0, 1.0, 14.0, 2.0]


def over_after(monkeypatch, calls: int) -> None:
    """The time of the responses is over once so many calls have ended."""
    ended = list[None]()

    @asynccontextmanager
    async def timeout(seconds):
        assert 0 < seconds <= 10
        async with asyncio.timeout(None) as deadline:

            async def expire() -> None:
                while len(ended) < calls:
                    await asyncio.sleep(0.01)
                deadline.reschedule(0)

            over = asyncio.ensure_future(expire())
            try:
                yield
                ended.append(None)
            finally:
                over.cancel()

    monkeypatch.setattr(call_queue, "asyncio", SimpleNamespace(**{**vars(asyncio), "timeout": timeout}))


def test_a_batch_has_a_deadline_whatever_its_functions_do(score, monkeypatch):
    """Responses that have a score by the deadline keep it."""
    over_after(monkeypatch, calls=1)
    scores, report = score(("hangs", 1.0), seconds=10.0)
    late = "hangs: no score within 10 s (spec.reward.timeoutSeconds)"
    assert report.failures == dict.fromkeys((0, 1), late), "one call of two responses"
    assert scores[2:].tolist() == [1.0, 1.0]


def test_what_was_scored_alone_keeps_its_score_when_the_time_is_over(score, monkeypatch):
    """The others of its call may hang for all of it. Two calls of two responses die, then three alone end."""
    over_after(monkeypatch, calls=5)
    scores, report = score(("hangs_alone", 1.0), seconds=10.0)
    assert scores[[0, 2, 3]].tolist() == [1.0, 1.0, 1.0]
    assert list(report.failures) == [1]


def test_a_failure_is_tried_again(score, tmp_path):
    rows = [{"file": str(tmp_path / f"tried-{i // 2}")} for i in range(4)]
    scores, report = score(("fails_once", 1.0), retries=0, rows=rows)
    assert (scores.tolist(), report.failures) == ([2.0] * 4, {})
    alone = [{"file": str(tmp_path / f"alone-{i}")} for i in range(4)]
    _, report = score(("fails_once", 1.0), retries=0, rows=alone)
    assert report.failures, "the second of each call failed once, alone"
    alone = [{"file": str(tmp_path / f"again-{i}")} for i in range(4)]
    scores, report = score(("fails_once", 1.0), retries=1, rows=alone)
    assert (scores.tolist(), report.failures) == ([2.0] * 4, {})


def test_a_function_that_cannot_be_imported_ends_the_role(score):
    with pytest.raises(InvalidJob, match="'functions_of_this_test:no_such' cannot be imported: AttributeErr"):
        score(("no_such", 1.0))


def test_a_function_whose_process_ends_over_its_import_is_named(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "ends_over_its_import.py").write_text("raise SystemExit(3)\n")
    pool = FunctionPool(WHERE, "ends_over_its_import:f", concurrency=1, timeout=60.0)
    words = (
        f"{WHERE}: 'ends_over_its_import:f' was not imported: the function's process ended with exit code 3"
    )
    with pytest.raises(RuntimeError, match=re.escape(words)):
        asyncio.run(pool.start())


def test_a_models_score_that_is_not_finite_is_a_failure_and_not_a_score(score):
    def broken(_sequences, _rows):
        return torch.tensor([1.0, float("nan"), 2.0, float("inf")])

    scores, report = score(("lengths", 1.0), model=(2.0, broken))
    assert scores[[0, 2]].tolist() == [9.0, 18.0]
    assert torch.isnan(scores[[1, 3]]).all()
    assert report.failures == dict.fromkeys((1, 3), "model: its score is not finite")
    assert (report.parts["model"].total, report.parts["model"].failed) == (3.0, 2)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:f", "'no_such_module:f' cannot be imported: ModuleNotFoundError"),
        ("json:no_such_function", "cannot be imported: AttributeError"),
        ("json:decoder", "is a module, not a function"),
    ],
)
def test_a_function_that_is_not_there(path, message):
    with pytest.raises(InvalidJob, match=message) as caught:
        import_function(path, WHERE)
    assert caught.value.problems[0].where == WHERE


@pytest.fixture(scope="module")
def model() -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.3,
        num_labels=1,
        pad_token_id=None,
    )
    return LlamaForSequenceClassification(config).eval()


def model_scorer(model, own, budget=60, stop=()) -> ModelScorer:
    scores = forward_scores(model, budget, own.pad_token_id)
    return ModelScorer(scores, positions_of(model.config), TOKENIZER, own, stop)


def one_by_one(model, rows: list[list[int]]) -> list[float]:
    with torch.no_grad():
        return [model(torch.tensor([row])).logits.item() for row in rows]


def test_a_model_scores_as_it_does_alone(model):
    rows = [SEQUENCES.row(i).tolist() for i in range(4)]
    for budget in (1, 40, 1000):
        scores = model_scorer(model, byte_tokenizer(), budget)(SEQUENCES, ROWS)
        assert scores.tolist() == pytest.approx(one_by_one(model, rows), abs=1e-5)


def finished(sequences: Sequences, ended: bool = True) -> Sequences:
    return replace(sequences, finished=torch.full((len(sequences),), ended))


def test_a_model_with_another_vocabulary_reads_an_end_where_the_rollout_ended(model):
    """Not where the last token is special: `responseEndId` may be none, and a response may be cut off behind one."""
    own = create_tokenizer([a + b for a, b in TEXTS] * 3, 290)
    (prompt, answer), newline = TEXTS[0], ids("\n")
    for tokens, ended in (([*ids(answer), *newline], True), ([*ids(answer), TOKENIZER.pad_token_id], False)):
        sequences = finished(Sequences.pack([(ids(prompt), tokens)]), ended)
        text = texts(sequences, TOKENIZER)[1][0]
        row = [*own(prompt)["input_ids"], *own(text)["input_ids"], *[own.eos_token_id] * ended]
        scores = model_scorer(model, own)(sequences, ROWS[:1])
        assert scores.tolist() == pytest.approx(one_by_one(model, [row]), abs=1e-5)


def test_a_model_with_another_vocabulary_reads_the_text(model):
    own = create_tokenizer([a + b for a, b in TEXTS] * 3, 290)
    cut = Sequences.pack([(ids(prompt), ids(answer)) for prompt, answer in TEXTS])
    for sequences, end in ((finished(SEQUENCES), [own.eos_token_id]), (finished(cut, False), [])):
        rows = [[*own(a)["input_ids"], *own(b)["input_ids"], *end] for a, b in TEXTS]
        assert any(len(row) != len(ids(a + b)) + len(end) for row, (a, b) in zip(rows, TEXTS, strict=True))
        scores = model_scorer(model, own)(sequences, ROWS)
        assert scores.tolist() == pytest.approx(one_by_one(model, rows), abs=1e-5)


def test_a_model_with_another_vocabulary_reads_the_last_branch(model):
    own, earlier = create_tokenizer([a + b for a, b in TEXTS] * 3, 290), ids("earlier")
    pairs = [([*earlier, *ids(prompt)], [*ids(answer), EOS]) for prompt, answer in TEXTS[:2]]
    sequences = finished(Sequences.pack([(ids("where "), before + after) for before, after in pairs]))
    flags = [
        [i < len(earlier) or i >= len(before) for i in range(len(before + after))] for before, after in pairs
    ]
    begins = [[i == len(earlier) for i in range(len(each))] for each in flags]
    sampled, branches = (torch.tensor([*itertools.chain(*each)]) for each in (flags, begins))
    scores = model_scorer(model, own)(replace(sequences, sampled=sampled, branches=branches), ROWS[:2])
    rows = [[*own(a)["input_ids"], *own(b)["input_ids"], own.eos_token_id] for a, b in TEXTS[:2]]
    assert scores.tolist() == pytest.approx(one_by_one(model, rows), abs=1e-5)


def test_a_stop_string_is_an_end_to_a_model_with_another_vocabulary(model):
    own = create_tokenizer([a + b for a, b in TEXTS] * 3, 290)
    sequences = Sequences.pack([(ids(prompt), ids(answer + "##")) for prompt, answer in TEXTS])
    rows = [[*own(a)["input_ids"], *own(b)["input_ids"], own.eos_token_id] for a, b in TEXTS]
    scores = model_scorer(model, own, stop=["##"])(finished(sequences), ROWS)
    assert scores.tolist() == pytest.approx(one_by_one(model, rows), abs=1e-5)


def test_what_another_vocabulary_makes_too_long_loses_its_beginning(model):
    own = create_tokenizer(["unrelated"], 300)
    own.add_tokens(["<unused>"])
    sequences = Sequences.pack([(ids("p" * 30), [*ids("an answer"), EOS])])
    row = [*own("p" * 30)["input_ids"], *own("an answer")["input_ids"], own.eos_token_id][-32:]
    scores = model_scorer(model, own)(finished(sequences), ROWS[:1])
    assert scores.tolist() == pytest.approx(one_by_one(model, [row]), abs=1e-5)
