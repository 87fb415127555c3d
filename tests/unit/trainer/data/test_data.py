"""The order of rows and the tokens of prompts and answers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny.models import byte_tokenizer
from tokenizers.normalizers import Strip
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig

from rlhf_api.dataset.rows import PromptRow
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.data import Data
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.dataset import stream
from rlhf_trainer.data.encode import encode, encode_prompt, end_tokens
from rlhf_trainer.data.prompts import prompts
from rlhf_trainer.data.stream import Mixture, RowStream

TOKENIZER = byte_tokenizer()
TEXT = "the quick brown fox"


@given(st.integers(1, 20), st.integers(0, 99), st.lists(st.integers(0, 25), max_size=6))
def test_every_row_comes_once_an_epoch_however_it_is_taken(count, seed, takes):
    made = stream(range(count), seed)
    taken = [place for n in takes for place in made.take(n)]
    assert taken == stream(range(count), seed).take(sum(takes))
    assert [epoch for epoch, _ in taken] == [i // count for i in range(len(taken))]
    for epoch in range(len(taken) // count):
        rows = [row for e, row in taken if e == epoch]
        assert sorted(rows) == list(range(count))


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 30))
def test_a_position_is_all_there_is_to_resume_from(count, before, after):
    undisturbed = stream(range(count), 3)
    undisturbed.take(before)
    random.seed(before)  # the order is the stream's own
    resumed = stream(range(count), 3)
    resumed.position = undisturbed.position
    assert resumed.take(after) == undisturbed.take(after)


def test_seeds_and_epochs_shuffle_differently():
    one, two = stream(range(50), 1).take(100), stream(range(50), 2).take(50)
    assert [row for _, row in one[:50]] != [row for _, row in two]
    assert [row for _, row in one[:50]] != [row for _, row in one[50:]]


def test_a_stream_goes_back_as_well():
    made = stream(range(7), 0)
    first = made.take(20)
    made.position = 0
    assert made.take(20) == first


@given(st.integers(1, 20), st.lists(st.integers(0, 12), max_size=4), st.integers(0, 30))
def test_a_new_order_changes_what_is_to_come_and_every_row_still_comes_once_an_epoch(count, goes, more):
    made, plain, taken = stream(range(count), 3), stream(range(count), 3), list[tuple[int, int]]()
    for n in goes:
        taken += made.take(n)
        made.reorder(1)
    resumed = stream(range(count), 3)
    resumed.position, resumed.reorders = made.position, made.reorders
    before, after = len(taken), resumed.take(more)
    assert after == made.take(more)
    taken += after
    if goes:
        assert taken[: goes[0]] == plain.take(goes[0]), "what was trained on is as it was"
    for epoch in range(len(taken) // count):
        assert sorted(row for e, row in taken if e == epoch) == list(range(count))
    assert before == made.position - more


def test_a_new_order_is_another_one():
    orders = []
    for times in range(3):
        made = stream(range(50), 3)
        made.take(10)
        made.reorder(times)
        orders.append(made.take(90))
    for rows in (slice(0, 40), slice(40, 90)):
        assert len({tuple(order[rows]) for order in orders}) == 3


def test_the_order_of_one_file_is_that_of_every_release():
    """A checkpoint of an earlier release goes on with the rows that it has not seen."""
    assert [row for _, row in stream(range(10), 3).take(20)] == [
        *(5, 4, 3, 2, 0, 7, 9, 1, 6, 8),
        *(4, 7, 1, 3, 5, 0, 8, 2, 6, 9),
    ]


COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(COUNTS, st.data(), st.integers(80, 120), st.integers(0, 9))
def test_sources_are_mixed_by_weight_and_each_gives_its_rows_equally_often(counts, data, samples, seed):
    weights = [data.draw(st.sampled_from([0.1, 1.0, 2.5])) for _ in counts]
    mixture = Mixture.weighted(counts, weights, samples)
    assert mixture.samples == samples
    for share, weight in zip(mixture.shares, weights, strict=True):
        assert abs(share - samples * weight / sum(weights)) < 1
    drawn = RowStream(mixture, seed)
    taken = drawn.take(3 * samples)
    assert len(set(taken)) == len(taken), "a pass over a source has each row once"
    resumed = RowStream(mixture, seed, position=samples + 1)
    assert resumed.take(samples) == taken[samples + 1 : 2 * samples + 1]
    first = 0
    for count, share in zip(counts, mixture.shares, strict=True):
        of_source = [row for _, row in taken if first <= row < first + count]
        assert len(of_source) == 3 * share
        often = [of_source.count(row) for row in range(first, first + count)]
        assert max(often) - min(often) <= 1
        first += count


def test_an_epoch_without_room_for_a_source_is_refused():
    with pytest.raises(ValueError, match="3 samples an epoch leave none for source 1"):
        Mixture.weighted([9, 9], [9.0, 1.0], 3)


def test_without_weights_every_row_comes_once_an_epoch():
    assert Mixture.weighted([3, 5], None, None) == Mixture((3, 5), (3, 5))
    assert Mixture.weighted([3, 5], None, 16) == Mixture((3, 5), (6, 10))


def test_prompts_keep_their_last_tokens():
    assert TOKENIZER.decode(encode_prompt(TOKENIZER, TEXT, 9).prompt) == "brown fox"
    assert TOKENIZER.decode(encode_prompt(TOKENIZER, TEXT, 99).prompt) == TEXT


def test_answers_end_unless_they_are_cut():
    whole, cut = encode(TOKENIZER, "p", "ab", 9, 3), encode(TOKENIZER, "p", "abc", 9, 3)
    assert whole.response[-1] == TOKENIZER.eos_token_id
    assert (len(whole.response), whole.response_cut) == (3, 0)
    assert (TOKENIZER.decode(cut.response), cut.response_cut) == ("abc", 1)


def test_a_tokenizer_that_ends_each_text_ends_no_prompt():
    """Tokenizers saved with `add_eos_token` append an end token to each text; a prompt must not have it."""
    ending = byte_tokenizer()
    end = (ending.eos_token, ending.eos_token_id)
    ending.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    assert ending("ab")["input_ids"][-1] == end[1]
    assert encode(ending, "ab", "cd", 9, 9) == encode(TOKENIZER, "ab", "cd", 9, 9)
    assert encode_prompt(ending, "ab<eos>", 9).prompt[-1] == end[1], "the row's own stays"


def test_a_prompt_knows_its_row_and_is_unique_in_the_run():
    rows = [PromptRow.model_validate({"prompt": f"p{i}", "grade": i}) for i in range(3)]
    places = stream(range(3), 0).take(7)
    made = prompts(rows, places, TOKENIZER, Data(train=("unused",), maxPromptLength=5))
    assert len({prompt.id for prompt in made}) == 7
    for (epoch, row), prompt in zip(places, made, strict=True):
        assert prompt.id == f"{epoch}/{row}"
        assert prompt.row == {"prompt": f"p{row}", "grade": row}
        assert TOKENIZER.decode(prompt.tokens) == f"p{row}"


def test_a_prompt_without_tokens_is_the_jobs_mistake():
    blank = byte_tokenizer()
    blank.backend_tokenizer.normalizer = Strip()
    with pytest.raises(InvalidJob, match=r"spec\.data: the tokenizer makes no tokens of the prompt '  '"):
        encode_prompt(blank, "  ", 5)


@pytest.mark.parametrize(
    ("named", "expected"),
    [(None, [256]), (256, [256]), (7, [256, 7]), ([7, 256, 9], [256, 7, 9]), ([], [256])],
)
def test_end_tokens_are_the_tokenizers_and_those_that_the_model_repository_names(named, expected):
    assert TOKENIZER.eos_token_id == 256
    assert end_tokens(TOKENIZER, GenerationConfig(eos_token_id=named), Sampling()) == tuple(expected)
    assert end_tokens(TOKENIZER, None, Sampling()) == (256,)


def test_the_manifest_may_name_one_more_end_token():
    assert end_tokens(TOKENIZER, None, Sampling(responseEndId=9)) == (256, 9)
    with pytest.raises(
        InvalidJob, match=r"responseEndId: must be a token of the tokenizer, which has \d+; got 9999"
    ):
        end_tokens(TOKENIZER, None, Sampling(responseEndId=9999))
