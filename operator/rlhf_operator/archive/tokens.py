"""Reads the tokens of one response, with the log-probabilities of each, from a store's checkpoints: of any response
from the episodes, which are Parquet, of a sample also from what is JSON."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from math import exp, isfinite
from typing import TYPE_CHECKING, Any

from rlhf_api.contract.sample_tokens import FILE, TOKENS, VALUES, ResponseTokens, StepTokens
from rlhf_api.contract.samples import Sample
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.replay import EPISODES
from rlhf_store.errors import DamagedSnapshot

from .episode_file import EpisodeFile
from .open_store import package

if TYPE_CHECKING:
    from rlhf_store.archive import Archive, Snapshot

_TOKENIZER = "export/policy/tokenizer.json"
_WHO = ("prompt_id", "response")
_LONG = 1000
"""Characters of a response by which it is known: a sample has only the begin of a very long one."""
_MOST_BYTES = 8 << 20
"""Of the samples' tokens of a step, all of which are parsed for one of them."""
_parsing = threading.Lock()
"""One at a time: what somebody wrote may be twenty times as large in memory."""
_LATER = 16
"""Checkpoints after a step that may still hold its episode in their replay windows, and are tried."""
Token = dict[str, Any]


def read_tokens(checkpoints: "Archive", sample: Sample, number: int = 0) -> list[Token]:
    """The tokens of a sample's response; `number`: of equal responses to the same prompt before it. Each has `text`,
    `id`, the keys of VALUES and, where there are both log-probabilities, `ratio`, old to sampled, and `kl`. Raises
    InvalidJob if no checkpoint has it any more."""
    name = f"{EPISODES}{sample.step:08d}.parquet"
    for snapshot in _snapshots_from(checkpoints, sample.step):
        if name in snapshot.blobs and (row := _find_row(snapshot, name, sample, number)) is not None:
            return _describe_all(snapshot, row)
    message = (
        f"no checkpoint has the tokens of step {sample.step}: each has those of its newest episode, and of "
        "the window of spec.replay"
    )
    raise InvalidJob([Problem(checkpoints.store.url, message)])


def read_sample_tokens(checkpoints: "Archive", sample: Sample, number: int) -> list[Token]:
    """The same of a sample of a checkpoint's own step, from JSON alone; `number`: its place among the samples of the
    step. Raises InvalidJob if no checkpoint has it any more."""
    for snapshot in _snapshots_from(checkpoints, sample.step):
        response = _find_response(snapshot, number) if snapshot.step == sample.step else None
        if response is not None and response.prompt_id == sample.prompt_id:
            pieces = zip(response.texts, response.columns.get(TOKENS, ()), strict=False)
            return [_describe(response.columns, index, text) for index, (text, _) in enumerate(pieces)]
    message = (
        "no checkpoint has the tokens of this sample: each has those of the first samples of its own step"
    )
    raise InvalidJob([Problem(f"step {sample.step}", message)])


def _find_response(snapshot: "Snapshot", number: int) -> ResponseTokens | None:
    if not 0 < sum(part.size for part in snapshot.parts(FILE)) <= _MOST_BYTES:
        return None
    content = snapshot.blob(FILE)
    with _parsing:
        try:
            responses = StepTokens.model_validate_json(content).responses
        except ValueError:
            return None
        return responses[number] if number < len(responses) else None


def read_row_tokens(snapshot: "Snapshot", file: EpisodeFile, row: int) -> list[Token]:
    """The same of a row of an episode of the snapshot. Raises InvalidJob for what cannot be read."""
    return _describe_all(snapshot, file.read_row(row, _columns_of(file)))


def _describe_all(snapshot: "Snapshot", row: dict[str, Any]) -> list[Token]:
    texts = _decode(snapshot, row[TOKENS])
    return [_describe(row, index, text) for index, text in enumerate(texts)]


def _snapshots_from(checkpoints: "Archive", step: int) -> Iterator["Snapshot"]:
    """The checkpoints of this step and of the next ones, without those that the run deletes meanwhile."""
    for entry in [entry for entry in checkpoints.entries() if entry.step >= step][:_LATER]:
        try:
            yield checkpoints.open(entry)
        except DamagedSnapshot:
            continue


def _find_row(snapshot: "Snapshot", name: str, sample: Sample, number: int) -> dict[str, Any] | None:
    file, row = EpisodeFile(snapshot, name), 0
    for group in range(file.groups):
        for prompt_id, response in zip(
            *(file.read_group(group, _WHO)[key].to_pylist() for key in _WHO), strict=True
        ):
            if prompt_id == sample.prompt_id and _is_response(response, sample.response):
                if number == 0:
                    return file.read_row(row, _columns_of(file))
                number -= 1
            row += 1
    return None


def _columns_of(file: EpisodeFile) -> tuple[str, ...]:
    """Those of each token that the job has."""
    return (TOKENS, *(column for column in VALUES.values() if column in file.columns))


def _is_response(whole: str, text: str) -> bool:
    """True if the text is the response, or the begin of a long one, which is all of it that a sample has."""
    return whole == text or (len(text) >= _LONG and whole.startswith(text[:_LONG]))


def _decode(snapshot: "Snapshot", ids: Sequence[int]) -> list[str]:
    """The text of each token; that of a character of several tokens is with its last one. `#ID` without a
    tokenizer."""
    try:
        library = package("tokenizers")
        tokenizer = library.Tokenizer.from_str(snapshot.blob(_TOKENIZER).decode())
        stream = library.decoders.DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, each) or "" for each in ids]
    except Exception:  # not installed, or none that it reads: its errors have no type of their own
        return [f"#{each}" for each in ids]


def _describe(row: Mapping[str, Any], index: int, text: str) -> Token:
    token: Token = {"text": text, "id": row[TOKENS][index]}
    for key, column in VALUES.items():
        values = row.get(column)
        token[key] = values[index] if values is not None and index < len(values) else None
    token["mask"] = token["mask"] is not False
    if not token["mask"]:  # of an environment's reply, which nothing sampled
        token |= dict.fromkeys(VALUES.keys() - {"mask"})
    token["ratio"] = _ratio(token["old"], token["logprob"])
    current = token["old"] if token["old"] is not None else token["logprob"]
    token["kl"] = None if None in (current, token["reference"]) else current - token["reference"]
    return token


def _ratio(old: float | None, sampled: float | None) -> float | None:
    if old is None or sampled is None or not isfinite(difference := old - sampled) or difference > 80:
        return None
    return exp(difference)
