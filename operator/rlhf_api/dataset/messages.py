"""Messages of conversations, and the texts of rows that are made of them."""

from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from .images import split

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
    image_places: Annotated[tuple[int, ...], Field(strict=False, exclude_if=lambda places: not places)] = ()
    """Offsets in `content` at which the row's images stand, ascending: several may be equal."""

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
        bounds = [0, *self.image_places, len(self.content or "")]
        if bounds != sorted(bounds):
            raise ValueError(f"image_places must ascend within the content; got {self.image_places}")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates read it: fields that are null are left out, but not `content`, which is a list
        of parts if it has images."""
        further = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        content = split(self.content or "", self.image_places) if self.image_places else self.content
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
