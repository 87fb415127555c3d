"""Row types of datasets, and validation messages for rows."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from ..errors.messages import in_our_words
from ..errors.problem import InvalidJob, Problem, kind_of, show
from ..errors.similar import closest
from ..field_types import RowKind
from ..sections.data import argument_problem
from .images import IMAGE, joined, references, split, with_places

NonEmpty = Annotated[str, Field(min_length=1)]


class Message(BaseModel):
    """A turn of a conversation, in the OpenAI format; further fields, such as a tool's name, go to the chat
    template."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    role: NonEmpty
    content: (
        Annotated[str, Field(min_length=0)] | None
    )  # the limit has pydantic refuse text that is no Unicode
    """None for a message of tool calls alone."""

    @model_validator(mode="before")
    @classmethod
    def _add_content(cls, value: Any) -> Any:
        calls = isinstance(value, dict) and value.get("tool_calls") and "content" not in value
        return {**value, "content": None} if calls else value

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and not (
            self.role == "assistant" and (self.model_extra or {}).get("tool_calls")
        ):
            raise ValueError(
                "content must be text; only an assistant's message with tool_calls may have null"
            )
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates read it: fields that are null are left out, but not `content`, which is a list
        of parts if it has images."""
        further = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        content = split(self.content) if self.content and IMAGE in self.content else self.content
        return {"role": self.role, "content": content, **further}


def _kind(value: Any) -> str:
    return "messages" if isinstance(value, list) else "text"


Messages = Annotated[list[Message], Field(min_length=1)]
Text = Annotated[
    Annotated[NonEmpty, Tag("text")] | Annotated[Messages, Tag("messages")], Discriminator(_kind)
]
"""Plain text, or a conversation rendered by a chat template."""


def _asks(prompt: str | list[Message]) -> str | list[Message]:
    if not isinstance(prompt, str) and prompt[-1].role == "assistant":
        raise ValueError(
            "the last message of a prompt must not be the assistant's, as the response follows it"
        )
    return prompt


def _answers(response: str | list[Message]) -> str | list[Message]:
    if not isinstance(response, str) and not response[0].role == response[-1].role == "assistant":
        raise ValueError("the first and the last message of an answer must be the assistant's")
    return response


def _answers_once(response: str | list[Message]) -> str | list[Message]:
    if not isinstance(response, str) and len(response) > 1:
        raise ValueError(f"must be text or one message of the assistant; got {len(response)} messages")
    return _answers(response)


Prompt = Annotated[Text, AfterValidator(_asks)]
Answer = Annotated[Text, AfterValidator(_answers)]
Compared = Annotated[Text, AfterValidator(_answers_once)]


def _flat(value: Any) -> Iterator[str | Message]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _content(part: str | Message) -> str:
    return part if isinstance(part, str) else part.content or ""


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
            raise ValueError("images are read by algorithm sft alone; use that, or remove them")
        named = sum(_content(part).count(IMAGE) for part in self._parts_of("prompt"))
        if named != len(images) or any(IMAGE in _content(part) for part in self._parts_of(*ROW_FIELDS[1:])):
            raise ValueError(
                f"the row has {len(images)} images, and its prompt names {named}: each stands in a message of the "
                "prompt, none in an answer or after it"
            )
        return self

    @property
    def texts(self) -> list[str]:
        """All text that is tokenized, but for that of tools and their calls."""
        texts = (part if isinstance(part, str) else part.content for part in self._parts)
        return [text.replace(IMAGE, "") for text in texts if text is not None]

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


class PromptRow(Row):
    """A prompt for sampled responses."""

    prompt: Prompt


class ImageRow(Row):
    """Base of the rows whose prompts may have images: `images`, in the order in which the messages have their places
    (`images.IMAGE`). A prompt with images is a conversation."""

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


ROW_FIELDS = ("prompt", "answer", "pos_answers", "neg_answers")
"""Fields that training reads, over all row kinds."""
ROW_TYPES: dict[RowKind, type[Row]] = {
    "prompts": PromptRow,
    "responses": AnswerRow,
    "pairs": PairRow,
    "graded": GradedPairRow,
    "labeled": LabeledRow,
}
RENDERED_FIELDS = (*ROW_FIELDS, "messages", "chosen", "rejected", "tools", "chat_template_kwargs")
"""Fields of conversations, over all row kinds, that a chat template reads."""
OTHER_TYPES: dict[RowKind, tuple[str, type[Row]]] = {
    "responses": ("messages", ConversationRow),
    "pairs": ("chosen", PreferenceRow),
    "graded": ("chosen", GradedPreferenceRow),
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


def _row_problem(error: ValidationError, where: str, row: Any, model: type[Row]) -> Problem:
    details = error.errors()[0]
    first, *inner = details["loc"] or ("",)
    # The tag of the union's branch is part of the location, but not a key.
    field = ".".join(
        str(part) for part in (first, *inner) if part is first or part not in ("text", "messages")
    )
    if details["type"] == "missing":
        given, name = details["input"], str(details["loc"][-1])
        known = (model if given is row else Message).model_fields
        others = [key for key in given if isinstance(key, str) and key not in known]
        present = (
            f"; the {'row' if given is row else 'message'} has {', '.join(map(repr, given)) or 'no fields'}"
        )
        meant = "messages" if name == "prompt" and "messages" in others else closest(name, others)
        if meant:
            present += f"; rename {meant!r}"
        elif given is row and given:
            present += f"; spec.data.columns says which of them is the {name}"
        return Problem(f"{where}: {field}", f"is missing{present}")
    got = f"; got {show(details['input'])}" if field else ""
    return Problem(f"{where}: {field}" if field else where, in_our_words(details) + got)


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what is null at any depth of its conversations and tools: tables give each object the keys of all
    the others, so an argument that a tool call lacks is null there."""
    return {key: _filled(value) if key in RENDERED_FIELDS else value for key, value in row.items()}


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(inner) for key, inner in value.items() if inner is not None}
    return [_filled(inner) for inner in value] if isinstance(value, list | tuple) else value


def _renamed(row: dict[str, Any], columns: Mapping[str, str], where: Callable[[], str]) -> dict[str, Any]:
    if (missing := next((column for column in columns.values() if column not in row), None)) is not None:
        has = f"has {', '.join(map(repr, row)) or 'no fields'}"
        raise InvalidJob(
            [Problem(where(), f"there is no {missing!r}, which data.columns names; the row {has}")]
        )
    others = {key: value for key, value in row.items() if key not in columns.values()}
    return others | {field: row[column] for field, column in columns.items()}


def checked_row(
    row: Any,
    kind: RowKind,
    where: Callable[[], str],
    columns: Mapping[str, str] | None = None,
    *,
    of_table: bool = False,
) -> Row:
    """Validates a row, with `columns` read as the fields that they are the values of. `of_table`: what is null in it is
    not there.

    Raises InvalidJob with the field, and with its place, for which `where` is called only then.
    """
    if not isinstance(row, dict):
        raise InvalidJob([Problem(where(), f"a row must be an object; it is {kind_of(row)}")])
    row = _renamed(row, columns, where) if columns else row
    row = without_nulls(row) if of_table else row
    model = row_type(row, kind)
    try:
        return model.model_validate(row)
    except ValidationError as error:
        raise InvalidJob([_row_problem(error, where(), row, model)]) from None
