"""A share of the prompts is trained on with their rows' answers: which ones, what is learned, what is counted."""

import math
import statistics

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer, chat_tokenizer
from tests.unit.trainer.training.running import RANKS, Job, resumed_is_whole
from tests.unit.trainer.training.test_learning import most_probable
from torch import Tensor

from rlhf_api.dataset.messages import Message
from rlhf_api.dataset.rows import AnswerRow
from rlhf_api.graph import GIVEN
from rlhf_api.sections.data import Data
from rlhf_trainer.data.prompts import is_given, prompts
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.rollout.responses import collected
from rlhf_trainer.tensors.records import Sequences

SHARE = 0.25
ROWS = [AnswerRow(prompt=f"p{i}", answer="high") for i in range(10)]
ALONE = (
    *("spec.model.reward=null", "spec.reward={}"),
    "spec.sampling={maxNewTokens: 5, responsesPerPrompt: 1}",
)
TOKENS = byte_tokenizer()
HIGH = torch.tensor([*TOKENS("high")["input_ids"], TOKENS.eos_token_id])


def job(more: str = "", share: float = SHARE, teacher: object = most_probable) -> Job:
    settings = f"minibatchSize: 8, teacherTopK: 128, givenShare: {share}{more}"
    longest = ("spec.data.maxResponseLength=5",) if share else ()
    return Job("distillation", settings, *ALONE, *longest, rows=ROWS, refer=teacher)


def answers(sequences: Sequences) -> list[list[int]]:
    lengths = sequences.prompt_lengths.tolist()
    return [sequences.row(i)[n:].tolist() for i, n in enumerate(lengths)]


def test_the_share_is_exact_in_any_steps_and_falls_on_every_place_of_a_step():
    for share in (0.1, 0.25, 1 / 3, 0.7):
        drawn = [is_given(at, share) for at in range(4000)]
        for begin in range(0, 300, 7):
            for count in (8, 50, 1000):
                assert abs(sum(drawn[begin : begin + count]) - count * share) < 1
    assert not any(is_given(at, 0.0) for at in range(100))


def test_given_prompts_have_the_answers_of_their_rows_and_the_others_are_sampled():
    made = job()
    for step in range(4):
        made.task.publish(step)
        metrics = made.task.collect(step)
        columns = made.task._pending.columns
        given = columns[GIVEN].bool().tolist()
        assert given == [is_given(at, SHARE) for at in columns["position"].tolist()]
        assert metrics["given_share"] == SHARE
        for response, is_answer in zip(answers(columns.sequences), given, strict=True):
            assert (response == HIGH.tolist()) == is_answer
        sampled = [
            len(r) for r, is_answer in zip(answers(columns.sequences), given, strict=True) if not is_answer
        ]
        assert metrics["response_length_mean"] == pytest.approx(statistics.fmean(sampled))
        assert metrics["tokens"] == sum(map(len, answers(columns.sequences)))
        made.task.train(step)
    shown = made.task.samples(4)
    assert shown
    assert all(sample.response != "high" for sample in shown), "people read what the policy said"
    assert len(made.positions("trained")) == 4 * 8


@pytest.mark.parametrize("more", ["", ", epochs: 2, beta: 0.5", ", minibatchSize: 4"])
def test_a_resumed_run_takes_the_same_rows_and_equals_the_whole_one(more):
    whole = resumed_is_whole(lambda: job(more), 3, 6)
    assert [line["given_share"] for line in whole.lines] == [SHARE] * 6


def test_the_loss_is_the_divergence_at_each_place_of_sampled_and_given_responses():
    """Of a step, by plain forward passes; nothing else moves the policy, whatever a sampler is said to have given."""
    made = job()
    made.task.publish(0)
    made.task.collect(0)
    sequences, teacher = made.task._pending.columns.sequences, math.log(9 / (9 * 128 + 130))
    assert GIVEN in made.task._pending.columns
    total, count = 0.0, 0
    for i, prompt in enumerate(sequences.prompt_lengths.tolist()):
        with torch.no_grad():
            logits = made.initial(sequences.row(i)[None]).logits[0, prompt - 1 : -1].double()
        low = logits.log_softmax(-1)[:, :128]
        rest = (1 - low.exp().sum(-1)).log()
        others = math.log(1 - 128 * math.exp(teacher))
        total += float((low.exp() * (low - teacher)).sum() + (rest.exp() * (rest - others)).sum())
        count += len(logits)
    line = made.task.train(0)
    assert line["loss"] == pytest.approx(total / count, rel=1e-4)
    assert line["kl_mean"] == pytest.approx(total / count, rel=1e-4)
    assert line["ratio_mean"] == pytest.approx(1.0)
    assert line["update_kl"] == pytest.approx(0.0, abs=1e-9)
    assert line["logprob_difference_max"] < 1e-4, "which sampled tokens alone have"


def certain_after_high(sequences: Sequences, _rows: object) -> Tensor:
    """A teacher who is certain of each next token of the answer that rows give, and of no other one's."""
    places = []
    for response in answers(sequences):
        for token in response:
            sure = math.log(0.9) if response == HIGH.tolist() else math.log(1 / 258)
            row = [(sure if k == 0 else math.log(1e-6), float((token + k) % 258)) for k in range(128)]
            places.append([p for p, _ in row] + [float(k) for _, k in row])
    return torch.tensor(places)


def likelihood(made: Job) -> float:
    """Of the answer, after a prompt."""
    tokens = torch.cat([torch.tensor(TOKENS("p3")["input_ids"]), HIGH])[None]
    with torch.no_grad():
        logprobs = made.models["policy"].unwrapped(tokens).logits[0].log_softmax(-1)
    return float(logprobs[1:-1].gather(-1, HIGH[:, None]).sum())


def test_what_the_student_would_never_sample_is_learned_from_given_answers():
    """At the forward divergence: without them nobody shows it the answer."""
    with_given = job(", beta: 0", 0.5, certain_after_high).steps(0, 12)
    without = job(", beta: 0", 0.0, certain_after_high).steps(0, 12)
    assert "given_share" not in without.lines[0]
    assert likelihood(with_given) > likelihood(without) + 5


def test_of_a_given_conversation_the_turns_of_the_assistant_alone_are_compared():
    def message(role: str, content: str) -> Message:
        return Message(role=role, content=content)

    tokenizer = chat_tokenizer()
    answer = [message("assistant", "one"), message("user", "more"), message("assistant", "two")]
    row = AnswerRow(prompt=[message("user", "count")], answer=answer)
    (prompt,) = prompts([row], [(0, 0)], tokenizer, Data(maxResponseLength=64), {0})
    work = PartialRollout.begin(prompt, 1, version=7)
    assert work.is_complete
    (part,) = [collected(RANKS, 1, Responses(work.rollouts()), {"0/0": 5}).episode]
    columns = part.columns
    sampled = columns.sequences.tokens[columns.sequences.prompt_lengths[0] :][columns.sequences.sampled]
    end = "<|im_end|>"
    assert tokenizer.decode(sampled) == f"one{end}two{end}"
    assert columns["versions"].tolist() == [7] * len(sampled)
    assert columns["finished"].tolist() == [True]
    assert columns[GIVEN].tolist() == [1.0]


def test_an_answer_that_is_cut_has_not_ended():
    rows = [AnswerRow(prompt="p", answer="a long one")]
    (prompt,) = prompts(rows, [(0, 0)], TOKENS, Data(maxResponseLength=4), {0})
    (rollout,) = PartialRollout.begin(prompt, 1).rollouts()
    assert (TOKENS.decode(rollout.tokens), rollout.finished) == ("a lo", False)
