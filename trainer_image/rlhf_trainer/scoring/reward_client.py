"""Client of the reward role: retries responses that could not be scored, then reports them; they never get a score of
zero.
"""

import hashlib
import json
import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_api.numbers import LARGEST_SCORE

from ..dispatch.roster import Stopped
from ..process import progress
from ..tensors.records import Sequences
from .client import ACTIVITY_LENGTH, Scorer
from .messages import parse_report, places
from .questions import Question

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
"""Retry interval while the job is paused, seconds."""
POLL_SECONDS = 0.2

Rows = Sequence[Mapping[str, Any]]


class Unscored(RuntimeError):
    """Too many responses could not be scored (the manifest's limit), for too long."""


class RewardClient:
    """Scores a batch, with NaN for responses that could not be scored, if they are few enough of the step's so far: its
    batches may be one prompt's alone.

    If they are too many, the job is paused and only they are retried, until enough of them have a score.

    Functions, which wait more than they compute, score each response from `begin` on; the model scores a batch in
    micro-batches once all of it is there.
    """

    def __init__(
        self,
        array: str,
        *,
        functions: tuple[str, Scorer] | None,
        model: tuple[str, Scorer] | None,
        max_failed_share: float,
        patience: float,
        stopping: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        """`array`: `scores` or `token_scores`; `functions`, `model`: the part of a message, and who is asked for it;
        `patience`: seconds without progress after which a paused job fails, 0: it is never paused; `report` sets
        fields of the status."""
        self._array, self._functions, self._model = array, functions, model
        self._max_failed_share, self._patience = max_failed_share, patience
        self._stopping, self._report = stopping, report
        self._begun = defaultdict[bytes, deque[Question]](deque)
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._scored: Counter[str] = Counter()
        self._requested = 0
        self.failures: Mapping[int, str] = {}
        """Responses of the newest batch without a score: row -> reason."""
        self.scores: dict[str, Tensor] = {}
        """Each reward's scores of the newest batch, before its weight, by its name: float32 [N], NaN for none."""

    def begin(self, one: Sequences, row: Mapping[str, Any]) -> None:
        """Has the functions score a response that has ended, which a later batch will have. On any thread."""
        if self._functions is not None:
            (key,) = _keys(one, [row])
            self._begun[key].append(self._send(one, row))

    def forget_begun(self) -> None:
        """Forgets the responses that were begun and that no batch will have."""
        self._begun.clear()

    def ask(self, sequences: Sequences, rows: Rows) -> Tensor:
        """The array over all sequences, float64, as weighted sums: NaN where a response has no score.

        Raises:
            Unscored: the job was paused, and nothing more could be scored for too long.
            InvalidJob, Unavailable, ScoringFailed, Stopped: as `Scorer.wait` does.
        """
        scores = torch.full(
            (len(places(self._array, sequences, torch.arange(len(sequences)))),), math.nan
        ).double()
        waiting, failures, progressed = list(range(len(sequences))), dict[int, str](), time.monotonic()
        self.scores = {}
        dropped, requested = self._sums["responses_dropped"], self._requested + len(sequences)
        while waiting:
            failures = self._round(sequences, rows, scores, waiting)
            if dropped + len(failures) <= self._max_failed_share * requested:
                break
            progressed = time.monotonic() if len(failures) < len(waiting) else progressed
            waiting = sorted(failures)
            words = f"{len(failures)} of {len(sequences)} responses have no score ({_first(failures)})"
            if not self._patience or time.monotonic() > progressed + self._patience:
                allowed = f"spec.reward.maxFailedShare {self._max_failed_share:g} allows fewer"
                waited = f", and {self._patience:g} s have brought none" if self._patience else ""
                raise Unscored(f"{words}; {allowed}{waited}")
            log.warning("paused: %s; scoring again", words)
            self._report(f"paused: {words}"[:ACTIVITY_LENGTH])
            self._pause()
            self._report("scoring")
        for reason, count in Counter(failures.values()).items():
            log.warning("%d of %d responses have no score: %s", count, len(sequences), reason)
        self._requested += len(sequences)
        self._sums["responses_dropped"] += len(failures)
        self.failures = failures
        return scores

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the batches since the last call: for each reward the mean score before its weight, the number of
        responses it failed to score and its seconds of work, as `reward_<name>_mean`, `_failed` and `_seconds`; and
        `responses_dropped`, the number of responses left without a score, and `responses_dropped_share`, of all."""
        means = {
            f"{n}_mean": self._sums.pop(f"{n}_total") / count for n, count in self._scored.items() if count
        }
        metrics = {k: v for k, v in self._sums.items() if not k.endswith("_total")} | means
        if self._requested:
            metrics["responses_dropped_share"] = self._sums["responses_dropped"] / self._requested
        self._sums.clear()
        self._scored.clear()
        self._requested = 0
        return metrics

    def _send(self, one: Sequences, row: Mapping[str, Any]) -> Question:
        assert self._functions is not None
        part, scorer = self._functions
        return scorer.send(Question(one, self._array, [row], {"part": part}))

    def _round(
        self, sequences: Sequences, rows: Rows, scores: Tensor, waiting: Sequence[int]
    ) -> dict[int, str]:
        """Requests the rows `waiting` and writes their scores into `scores`; returns those without a score, row ->
        reason. Reports are added up in the order of the rows, whenever they came."""
        index, failures = torch.tensor(waiting), dict[int, str]()
        batch = sequences.select(index)
        total = torch.zeros(len(places(self._array, batch, torch.arange(len(batch)))), dtype=torch.float64)

        def add(chunk: Sequence[int], header: Mapping[str, Any]) -> None:
            report = parse_report(header, len(chunk))
            failures.update({waiting[chunk[place]]: reason for place, reason in report.failures.items()})
            for name, part in report.parts.items():
                self._sums[f"reward_{name}_total"] += part.total
                self._sums[f"reward_{name}_failed"] += part.failed
                self._sums[f"reward_{name}_seconds"] += part.seconds
                self._scored[f"reward_{name}"] += len(chunk) - part.failed
                own = self.scores.setdefault(name, torch.full((len(sequences),), math.nan))
                for place, score in zip(chunk, part.scores, strict=False):
                    # A weight may make one small that float32 does not hold.
                    own[waiting[place]] = (
                        math.nan if score is None else max(-LARGEST_SCORE, min(score, LARGEST_SCORE))
                    )

        of_rows, questions = [rows[row] for row in waiting], list[Question]()
        try:
            if self._functions is not None:
                questions = [
                    self._take_begun(key) or self._send(batch.select(torch.tensor([i])), row)
                    for i, (key, row) in enumerate(zip(_keys(batch, of_rows), of_rows, strict=True))
                ]
            if self._model is not None:
                part, scorer = self._model
                total += scorer.ask(batch, self._array, of_rows, add, part=part)
            if self._functions is not None:
                self._functions[1].wait(questions)
        except BaseException:
            self._begun.clear()
            raise
        replies = [question.reply.result() for question in questions]
        if replies:
            total += torch.cat([values for values, _ in replies])
        for i, (_, header) in enumerate(replies):
            add([i], header)
        scores[places(self._array, sequences, index)] = total
        return failures

    def _take_begun(self, key: bytes) -> Question | None:
        begun = self._begun.get(key)
        if not begun:
            return None
        question = begun.popleft()
        if not begun:
            del self._begun[key]
        return question

    def _pause(self) -> None:
        until = time.monotonic() + AGAIN_SECONDS
        while time.monotonic() < until:
            if self._stopping():
                raise Stopped("stopped while the job was paused, since responses could not be scored")
            progress.sign()
            time.sleep(POLL_SECONDS)


def _keys(sequences: Sequences, rows: Rows) -> Iterator[bytes]:
    """Digests of each prompt, its response and its row, by which a batch finds what was begun."""
    tokens = sequences.tokens.split(sequences.lengths.tolist())
    flags: Sequence[Tensor | None] = [None] * len(sequences)
    if sequences.sampled is not None:
        flags = sequences.sampled.split(sequences.after_lengths.tolist())
    lengths = sequences.prompt_lengths.tolist()
    for own, length, sampled, row in zip(tokens, lengths, flags, rows, strict=True):
        digest = hashlib.blake2b(own.numpy().tobytes(), digest_size=16)
        digest.update(f"{length}/{json.dumps(row)}".encode())
        if (
            sampled is not None and not sampled.all()
        ):  # a batch has flags where any of its responses needs them
            digest.update(sampled.numpy().tobytes())
        yield digest.digest()


def _first(failures: Mapping[int, str]) -> str:
    """The most frequent reason."""
    return Counter(failures.values()).most_common(1)[0][0]
