"""Openings of environments as tokens."""

from typing import Any

import pytest
from tests.unit.trainer.environments.test_tail import FORGED, STABLE, TOKENIZERS
from transformers import PreTrainedTokenizerBase

from rlhf_api.sections.data import Data
from rlhf_trainer.data.chat import special_tokens
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.environments.adapter import Unfit
from rlhf_trainer.environments.rendering import Rendering
from rlhf_trainer.tensors.records import Prompt

SYSTEM, USER = ({"role": role, "content": f"{role}:"} for role in ("system", "user"))
OPENINGS: dict[str, Any] = {
    "messages": lambda text: {"messages": [SYSTEM, {"role": "user", "content": text}]},
    "text": lambda text: {"text": text},
    "added text": lambda text: {"text": text, "added": True},
}


def opened(
    tokenizer: PreTrainedTokenizerBase, opening: dict[str, Any], prompt: list[Any] | str, most: int = 9999
) -> list[int]:
    data = Data(train=("unused",), maxPromptLength=most)
    rendering = Rendering(tokenizer, data, (), StopStrings(tokenizer, ()), ())
    whole = {"messages": None, "text": None, "added": False, "tools": None, **opening}
    return [*rendering.open(Prompt("0/0", (1,), {"prompt": prompt}), whole).tokens]


@pytest.mark.parametrize("name", STABLE)
@pytest.mark.parametrize("kind", OPENINGS)
def test_an_opening_that_quotes_special_tokens_forges_no_turn(name: str, kind: str) -> None:
    tokenizer = TOKENIZERS[name]()
    special = special_tokens(tokenizer)
    made, honest = (opened(tokenizer, OPENINGS[kind](text), [SYSTEM, USER]) for text in (FORGED, "yes"))
    assert [i for i in made if i in special] == [i for i in honest if i in special]
    assert tokenizer.decode(made) == tokenizer.decode(honest).replace("yes", FORGED), "it is read as it was"


@pytest.mark.parametrize("name", STABLE)
def test_special_tokens_of_the_rows_own_messages_are_what_they_are(name: str) -> None:
    """They are the user's, who may begin a turn of the model so."""
    tokenizer = TOKENIZERS[name]()
    end = tokenizer.convert_ids_to_tokens(max(special_tokens(tokenizer)))
    row = [{"role": "user", "content": f"a{end}\U000f0000b"}]
    plain, quoting = (opened(tokenizer, {"text": text, "added": True}, row) for text in ("c", f"c{end}"))
    (number,) = tokenizer(str(end), add_special_tokens=False)["input_ids"]
    assert plain.count(number) == quoting.count(number) > 0
    assert "\U000f0000b" in tokenizer.decode(quoting)


NO_TOOLS = [{"type": "function"}]


@pytest.mark.parametrize(
    ("opening", "prompt"),
    [
        ({"text": "\ud800"}, [USER]),
        ({"text": "\ud800"}, "user:"),
        ({"messages": [USER], "tools": NO_TOOLS}, [USER]),
        ({"tools": NO_TOOLS}, [USER]),
    ],
    ids=["half of a character", "half of one after text", "tools with messages", "tools alone"],
)
def test_an_opening_that_no_template_renders_costs_its_episode_alone(
    opening: dict[str, Any], prompt: list[Any] | str
) -> None:
    tokenizer = TOKENIZERS["ChatML"]()
    offered = "{% for tool in tools or [] %}{{ tool.function.name + ' ' }}{% endfor %}"
    tokenizer.chat_template = offered + str(tokenizer.chat_template)
    with pytest.raises(Unfit):
        opened(tokenizer, opening, prompt)


def test_an_opening_that_is_too_long_loses_its_oldest_turns() -> None:
    tokenizer = TOKENIZERS["ChatML"]()
    turns = [{"role": role, "content": f"{role} {FORGED}"} for role in ("user", "assistant")]
    last = {"role": "user", "content": FORGED}
    short = opened(tokenizer, {"messages": [SYSTEM, last]}, [USER])
    assert opened(tokenizer, {"messages": [SYSTEM, *turns, last]}, [USER], most=len(short)) == short
