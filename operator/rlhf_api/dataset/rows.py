"""Row types of datasets."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..errors.problem import show
from ..field_types import RowKind
from ..sections.data import argument_problem
from .images import joined, references, with_places
from .messages import Answer, Compared, Message, Messages, Prompt


def _flat(value: Any) -> Iterator[str | Message]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


class Row(BaseModel):
    """Base of the row types. Further fields are kept: reward functions get the whole row."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    @model_validator(mode="after")
    def _has_arguments(self) -> Self:
        if self.is_conversation:
            self.template_arguments({})
        return self

    @model_validator(mode="after")
    def _has_places_of_images(self) -> Self:
        images: Any = getattr(self, "images", ()) or ()
        if images and "images" not in type(self).model_fields:
            message = "images are read where responses are sampled or imitated"
            raise ValueError(f"{message}; use algorithm sft, grpo or another one of these, or remove them")
        named = self._images_named("prompt")
        if named != len(images) or self._images_named(*ROW_FIELDS[1:]):
            raise ValueError(
                f"the row has {len(images)} images, and its prompt names {named}: each stands in a message of the "
                "prompt, none in an answer or after it"
            )
        return self

    @property
    def texts(self) -> list[str]:
        """All text that is tokenized, but for that of tools and their calls."""
        texts = (part if isinstance(part, str) else part.content for part in self._parts)
        return [text for text in texts if text is not None]

    def template_arguments(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the chat template besides the messages: the row's `tools` and the entries of its
        `chat_template_kwargs`, either of which may be JSON text, before `defaults`. Raises ValueError where they are
        not."""
        given = self.model_extra or {}
        own = _decoded("chat_template_kwargs", given, dict)
        tools = _decoded("tools", given, list)
        arguments = {**defaults, **(own or {}), **({} if tools is None else {"tools": tools})}
        if wrong := argument_problem(arguments):
            raise ValueError(wrong)
        return arguments

    @property
    def is_conversation(self) -> bool:
        """True if a chat template is needed to render any part of the row."""
        return any(isinstance(part, Message) for part in self._parts)

    @property
    def _parts(self) -> Iterator[str | Message]:
        return self._parts_of(*ROW_FIELDS)

    def _images_named(self, *names: str) -> int:
        return sum(len(part.image_places) for part in self._parts_of(*names) if isinstance(part, Message))

    def _parts_of(self, *names: str) -> Iterator[str | Message]:
        known, kind = type(self).model_fields, type(self)
        for name in names:
            if name in known or hasattr(kind, name):
                yield from _flat(getattr(self, name))


def _decoded(name: str, fields: Mapping[str, Any], kind: type[Any]) -> Any:
    """A field that is a list or an object, or JSON text of one, since columns of Parquet have one type."""
    value = fields.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = fields[name]
    if value is not None and not isinstance(value, kind):
        required = "a list of objects" if kind is list else "an object"
        raise ValueError(f"{name} must be {required}, or JSON text of it; got {show(value)}")
    return value


class ImageRow(Row):
    """Base of the rows whose prompts may have images: `images`, in the order of their places in the messages. A prompt
    with images is a conversation."""

    images: Annotated[list[str], Field(exclude_if=lambda images: not images)] = []

    @model_validator(mode="before")
    @classmethod
    def _place_images(cls, row: Any) -> Any:
        asking = "messages" if "messages" in cls.model_fields else "prompt"
        if not isinstance(row, dict) or not row.get("images") or asking not in row:
            return row
        images = references(row["images"])
        read: dict[str, Callable[[Any], Any]] = {
            "answer": joined,
            asking: partial(with_places, images=len(images)),
        }
        return {**row, **{name: read[name](row[name]) for name in read if name in row}, "images": images}


class PromptRow(ImageRow):
    """A prompt for sampled responses."""

    prompt: Prompt


class AnswerRow(ImageRow):
    """A prompt with its response, for supervised fine-tuning."""

    prompt: Prompt
    answer: Answer


class ConversationRow(ImageRow):
    """A whole conversation, for supervised fine-tuning on each of the assistant's turns."""

    messages: Messages

    @model_validator(mode="after")
    def _has_turns(self) -> Self:
        if self._first in (0, len(self.messages)) or self.messages[-1].role != "assistant":
            roles = ", ".join(message.role for message in self.messages)
            raise ValueError(
                f"a conversation must not begin with the assistant and must end with the assistant; got {roles}"
            )
        return self

    @property
    def _first(self) -> int:
        roles = [message.role for message in self.messages]
        return roles.index("assistant") if "assistant" in roles else len(roles)

    @property
    def prompt(self) -> list[Message]:
        """The messages before the assistant's first turn."""
        return self.messages[: self._first]

    @property
    def answer(self) -> list[Message]:
        """The assistant's first turn and all that follow."""
        return self.messages[self._first :]


class LabeledRow(Row):
    """A prompt with an answer that is desirable, or not."""

    prompt: Prompt
    answer: Compared
    label: bool


class PairRow(Row):
    """A prompt with responses of which `pos_answers[i]` is preferred to `neg_answers[i]`."""

    prompt: Prompt
    pos_answers: Annotated[list[Compared], Field(min_length=1)]
    neg_answers: Annotated[list[Compared], Field(min_length=1)]

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        if len(self.pos_answers) != len(self.neg_answers):
            raise ValueError(
                f"pos_answers and neg_answers must be equally long; got {len(self.pos_answers)} "
                f"and {len(self.neg_answers)}"
            )
        return self


class PreferenceRow(Row):
    """A prompt with two responses, of which `chosen` is preferred."""

    prompt: Prompt
    chosen: Compared
    rejected: Compared

    @property
    def pos_answers(self) -> list[str | list[Message]]:
        return [self.chosen]

    @property
    def neg_answers(self) -> list[str | list[Message]]:
        return [self.rejected]


Margin = Annotated[float, Field(allow_inf_nan=False)]
"""By how much the preferred response is better: a number, in units of reward."""


class GradedPairRow(PairRow):
    """A `PairRow` with the margin of all of its pairs."""

    margin: Margin


class GradedPreferenceRow(PreferenceRow):
    """A `PreferenceRow` with its margin."""

    margin: Margin


def _not_blank(step: str) -> str:
    if not step.strip():
        raise ValueError(f"a step must have text; got {show(step)}")
    return step


Steps = Annotated[list[Annotated[str, Field(min_length=1), AfterValidator(_not_blank)]], Field(min_length=1)]
"""Texts of the steps of a response, none of them blank."""
StepLabel = Annotated[
    float,
    BeforeValidator(lambda label: float(label) if isinstance(label, bool) else label),
    Field(ge=0, le=1),
]
"""True or 1 for a right step, false or 0 for a wrong one; between them a probability, as of rollouts from the step."""


class StepsRow(Row):
    """A prompt with a response in steps, each with a label."""

    prompt: Prompt
    steps: Steps
    labels: list[StepLabel]

    @model_validator(mode="after")
    def _has_a_label_for_each(self) -> Self:
        _check_numbers("steps", self.steps, self.labels)
        return self


class CompletionsRow(Row):
    """The same, whose steps are named as in TRL's data sets."""

    prompt: Prompt
    completions: Steps
    labels: list[StepLabel]

    @property
    def steps(self) -> list[str]:
        return self.completions

    @model_validator(mode="after")
    def _has_a_label_for_each(self) -> Self:
        _check_numbers("completions", self.completions, self.labels)
        return self


def _check_numbers(name: str, steps: Sequence[str], labels: Sequence[float]) -> None:
    if len(steps) != len(labels):
        raise ValueError(f"{name} and labels must be equally long; got {len(steps)} and {len(labels)}")


ROW_FIELDS = ("prompt", "answer", "pos_answers", "neg_answers", "steps")
"""Fields that training reads, over all row kinds."""
ROW_TYPES: dict[RowKind, type[Row]] = {
    "prompts": PromptRow,
    "responses": AnswerRow,
    "pairs": PairRow,
    "graded": GradedPairRow,
    "labeled": LabeledRow,
    "stepwise": StepsRow,
}
RENDERED_FIELDS = (*ROW_FIELDS, "messages", "chosen", "rejected", "tools", "chat_template_kwargs")
"""Fields of conversations, over all row kinds, that a chat template reads."""
OTHER_TYPES: dict[RowKind, tuple[str, type[Row]]] = {
    "responses": ("messages", ConversationRow),
    "pairs": ("chosen", PreferenceRow),
    "graded": ("chosen", GradedPreferenceRow),
    "stepwise": ("completions", CompletionsRow),
}
"""Alternative row types of a kind, by a field that only they have."""


def row_type(row: dict[str, Any], kind: RowKind) -> type[Row]:
    """The row type that a row is most likely meant to be."""
    usual = ROW_TYPES[kind]
    mark, other = OTHER_TYPES.get(kind, ("", usual))
    its_own = usual.model_fields.keys() - {"prompt", *other.model_fields}
    return other if mark in row and not its_own & {*row} else usual


def prompt_field(row: Row) -> str:
    """The field with the prompt."""
    return "messages" if isinstance(row, ConversationRow) else "prompt"


def with_system_prompt(row: Row, text: str) -> Row:
    """The row as a conversation that begins with a system prompt, unless it has one."""
    name = prompt_field(row)
    prompt: str | list[Message] = getattr(row, name)
    messages = [Message(role="user", content=prompt)] if isinstance(prompt, str) else prompt
    if messages[0].role == "system":
        return row
    return row.model_copy(update={name: [Message(role="system", content=text), *messages]})
