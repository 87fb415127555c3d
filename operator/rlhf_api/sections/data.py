"""`spec.data` and `spec.pretraining`: files of rows, their weights, the length of what is read."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue

from ..errors.problem import show
from ..field_types import SCHEMES, Frozen, Positive, PositiveFloat, former


class Source(Frozen):
    """A file of rows, with its share of the mixture."""

    path: str
    """JSONL, JSON, Parquet, CSV or TSV: a path, or the URL of an object (`s3://`, `gs://`, `az://`). Or a split of a
    dataset of the hub, `hf://OWNER/NAME:SPLIT`. Or `package.module:name`, your function that returns a sequence of
    rows."""
    weight: PositiveFloat | None = None
    """Weight of the source: its share of an epoch's samples is this over the sum of all. Set it for every source or for
    none (by rows).
    """
    system_prompt: str | None = None
    """Overrides `data.systemPrompt`; an empty one too."""
    columns: dict[str, str] | None = None
    """Overrides `data.columns`; an empty one too."""
    teacher: str | None = None
    """Teacher of its rows that name none."""


def parsed(text: str) -> Source:
    """Parses `path` or `path::weight`. Raises ValueError unless the weight is a number above 0."""
    path, separator, weight = text.rpartition("::")
    if not separator:
        return Source(path=text)
    number = float(weight)
    if not 0 < number < float("inf"):
        raise ValueError(weight)
    return Source(path=path, weight=number)


def unknown_store(path: str) -> str:
    """Problem of a URL that is not read, such as one of `https://`; '' for any other."""
    scheme, url, _ = path.partition("://")
    if scheme == "hf" and url:
        form = "hf://OWNER/NAME:SPLIT, or hf://OWNER/NAME/CONFIGURATION:SPLIT"
        return "" if HUB_URL.fullmatch(path) else f"must be {form}; got {path!r}"
    stores = ", ".join(f"{known}://" for known in (*SCHEMES, "hf"))
    wrong = f"must be a path, or begin with {stores}; download it first; got {path!r}"
    return wrong if url and scheme not in SCHEMES else ""


HUB_URL = re.compile(
    r"hf://(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(/(?P<configuration>[\w.-]+))?:(?P<split>[\w.-]+)",
    re.ASCII,
)
"""A split of a dataset of the hub."""
SET_HERE = (
    *("messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message"),
    *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
    *("return_assistant_tokens_mask", "tokenizer_kwargs"),
)
"""Arguments of `apply_chat_template` that rows and manifests do not set."""


def argument_problem(arguments: Mapping[str, Any]) -> str:
    """Problem of arguments of a chat template beside the messages; '' if there is none."""
    if name := next((name for name in arguments if name in SET_HERE), ""):
        return f"{name} is no variable of chat templates, but set by the job; remove it"
    tools = arguments.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        return f"tools must be a list of objects; got {show(tools)}"
    return ""


def _arguments(given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if wrong := argument_problem(given):
        raise ValueError(wrong)
    return given


class Curriculum(Frozen):
    """Passes over rows that the policy solves: a row with solve rate s is asked again with probability 1 - s (Kimi Team
    2025, arXiv:2501.12599, "Prioritized Sampling"), and a row that was never asked always."""

    solved_at: float = 1.0
    """Score from which on a response counts as solved."""
    window: int = Field(1, ge=1, le=64)
    """Latest answers to a row, a group of responses each, over which its solve rate is the mean."""
    floor: float = Field(0.1, gt=0, le=1)
    """Lowest probability, at which rows that are always solved are asked again."""


class Data(Frozen):
    """Files of rows: `{prompt, answer}` or `{messages}` for `sft`, `{prompt, chosen, rejected}` or
    `{prompt, pos_answers, neg_answers}` for `reward` and `dpo`, `{prompt, answer, label}` for `kto`, `{prompt, steps,
    labels}` for `process_reward`, `{prompt}` where responses are sampled."""

    train: tuple[str, ...] | None = Field(None, min_length=1)
    """JSONL, JSON, Parquet, CSV or TSV: paths, or URLs (`s3://`, `gs://`, `az://`, `hf://OWNER/NAME:SPLIT`), each alone
    or as `path::weight`."""
    sources: tuple[Source, ...] | None = Field(None, min_length=1)
    """The same as `train`, as objects."""
    samples_per_epoch: Positive | None = None
    """Samples per epoch, drawn from all sources by their weights; the number of rows unless given."""
    system_prompt: str | None = None
    """System prompt of every conversation that has none; a prompt of plain text becomes the user's turn after it."""
    columns: dict[str, str] | None = None
    """Columns of the files, by the field of a row that each is read as, such as `{prompt: question}`; those of
    `evaluation` too."""
    chat_template: str | None = None
    """Chat template of conversations: Jinja, or a file of it; the tokenizer's own unless given."""
    chat_template_kwargs: Annotated[dict[str, JsonValue], AfterValidator(_arguments)] = {}
    """Variables of the chat template, such as `enable_thinking: false`; a row's `chat_template_kwargs` come first."""
    max_prompt_length: Positive = 512
    """Maximum prompt length in tokens."""
    max_response_length: Positive = Field(
        512, validation_alias=former("maxResponseLength", "maxAnswerLength")
    )
    """Maximum response length in tokens, for algorithms that train on given responses."""
    max_pixels: Positive | None = None
    """Pixels that an image is scaled down to; as the processor does unless given."""
    overlong: Literal["refuse", "drop", "cut"] = "refuse"
    """Rows with a longer prompt or response: refuse the job, leave them out, or cut. A prompt keeps its last tokens,
    a conversation its last turns; a response its first tokens, without an end token."""
    step_separator: str = Field("\n", min_length=1, max_length=64)
    """Text that ends each step of a response but the last (docs/guides/data.md#steps-of-a-response)."""
    curriculum: Curriculum | None = None
    """From the second epoch on, fewer of the rows that the policy solves (docs/guides/data.md)."""
    prompts_per_step: Positive = 64
    """Rows drawn for each training step."""

    def training_sources(self) -> tuple[Source, ...]:
        """The sources of a valid section, each with its system prompt."""
        given = self.sources or tuple(map(parsed, self.train or ()))
        usual = {"system_prompt": self.system_prompt, "columns": self.columns}
        return tuple(
            source.model_copy(update={k: v for k, v in usual.items() if getattr(source, k) is None})
            for source in given
        )


class Pretraining(Frozen):
    """A language-modelling loss mixed into each update of a policy whose responses are sampled (PPO-ptx)."""

    data: tuple[str, ...] = Field(min_length=1)
    """Files of rows `{prompt, answer}`."""
    rows_per_update: Positive = 16
    coefficient: PositiveFloat = 0.1
    """Factor of the mean negative log-likelihood of the response's tokens, in nats, added to the policy loss."""
