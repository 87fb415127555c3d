"""Limits of chat templates, which are programs of whoever made the model: compiling has its own, each rendering has
another, and what is refused is refused with the template's owner, the limit and the remedy."""

from pathlib import Path

import pytest
from tests.support.tiny.models import CHATML, chat_tokenizer
from tests.unit.api.manifests import job
from transformers import PreTrainedTokenizerBase

from rlhf_api.contract.run import RunConfig
from rlhf_api.dataset.chat_template import LARGEST, GivenTemplate
from rlhf_api.dataset.messages import Message
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.data import Data, Source
from rlhf_trainer.commands.inspect_data import problems_of
from rlhf_trainer.data import template_renderer
from rlhf_trainer.data.chat import render
from rlhf_trainer.data.dataset import open_dataset
from rlhf_trainer.ops.row_check import RowChecker, check_all

HI = [Message(role="user", content="Hi")]
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
POWER = "{{ 9**(9**9) }}"
"""A constant, which Jinja computes when it compiles; nothing within Python can end that."""
COMPILING = "the template cannot be compiled: "
RENDERING = "the template refuses "
HOSTILE = {
    POWER: (COMPILING, "it takes more than 5 s of processor time"),
    ENDLESS: (RENDERING, "it takes more than 0.8 s of processor time"),
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}": (
        RENDERING,
        "it takes more than 0.8 s of processor time",
    ),
    "{{ 'a' * 30000000000 }}": (RENDERING, "it takes more than 1024 MiB of memory"),
    "{{ '%20000000000d' % 1 }}": (RENDERING, "it takes more than 1024 MiB of memory"),
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}": (
        RENDERING,
        "it takes more than ",  # 1024 MiB, or first 0.8 s where memory is slow to get
    ),
    "{{ 'a'|center(20000000) }}": (RENDERING, "it makes 20000000 characters"),
    "{{ messages.__class__.__mro__ }}": (RENDERING, "SecurityError"),
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}": (COMPILING, "RecursionError"),
}
OTHERS = "".join(
    f"{{%- if m.role == 'other{i}' %}}{{{{ m.content"
    + "".join(f"|replace('<|t{n}|>', '')" for n in range(24))
    + " }}{%- endif %}"
    for i in range(104)
)
LONG = "{% for m in messages %}" + OTHERS + "{% endfor %}" + CHATML
"""ChatML, and of a hundred other roles the special tokens are taken out: 1.2 s to compile, and to render no time."""


def made(template: str) -> PreTrainedTokenizerBase:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def refusal(tokenizer: PreTrainedTokenizerBase) -> Problem:
    with pytest.raises(InvalidJob) as caught:
        render(tokenizer, HI)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("template", HOSTILE, ids=[text[:40] for text in HOSTILE])
def test_a_models_template_that_would_never_end_is_refused(template: str) -> None:
    """The next conversation is rendered again."""
    begin, reason = HOSTILE[template]
    problem = refusal(made(template))
    assert problem.where == "spec.data.chatTemplate"
    assert problem.message.startswith(begin)
    assert reason in problem.message
    again = made("{{ messages[0].content }}{{ eos_token }}")
    assert render(again, HI) == f"Hi{again.eos_token}"


def test_a_long_template_has_more_time_to_be_compiled_than_to_be_rendered() -> None:
    assert 60 << 10 < len(LONG) < LARGEST
    assert render(made(LONG), HI) == render(chat_tokenizer(), HI)


@pytest.mark.parametrize(("template", "shorter"), [(POWER, ""), (ENDLESS, "shorten the conversation, or ")])
def test_a_template_beyond_a_limit_is_refused_with_where_it_came_from_and_what_to_do(
    template: str, shorter: str
) -> None:
    given, own = made(GivenTemplate(template)), made(template)
    own.name_or_path = "models/policy"
    assert refusal(given).message.endswith(f"; {shorter}give a simpler template")
    assert refusal(own).message.endswith(
        f"; {shorter}give a simpler template than that of the tokenizer 'models/policy': here or, if that is a "
        "reward model, in its files"
    )


def test_what_cannot_be_compiled_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time would take its whole limit, for each row."""
    first = refusal(made(POWER))
    monkeypatch.setattr(template_renderer, "_started", lambda: pytest.fail("starts another process"))
    assert refusal(made(POWER)) == first


def test_what_cannot_be_compiled_is_told_once_and_of_no_row(tmp_path: Path) -> None:
    row = '{"prompt": [{"role": "user", "content": "Hi"}]}\n'
    (tmp_path / "rows.jsonl").write_text(row * 30)
    dataset = open_dataset([Source(path=str(tmp_path / "rows.jsonl"))], "prompts")
    with pytest.raises(InvalidJob) as caught:
        check_all([RowChecker(dataset, "prompts", made("{% for %}"), Data(train=("unused",)))])
    (problem,) = caught.value.problems
    assert str(problem).startswith(
        "spec.data.chatTemplate: the template cannot be compiled: TemplateSyntaxError"
    )


def test_a_manifests_template_is_held_to_the_same_limits(tmp_path: Path) -> None:
    chat_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": [{"role": "user", "content": "Hi"}], "answer": "Yes."}\n'
    )
    given = (f"spec.model.tokenizer={tmp_path}", f"spec.data.train=[{tmp_path}/rows.jsonl]")

    def problems(template: str) -> list[Problem]:
        (tmp_path / "given.jinja").write_text(template)
        more = ("spec.algorithm=sft", "spec.ppo={}", f"spec.data.chatTemplate={tmp_path}/given.jinja")
        return problems_of(RunConfig(job="job", spec=job(*more, *given).spec, workdir=str(tmp_path)))[0]

    assert problems(LONG) == []
    (problem,) = problems(POWER)
    assert problem.message.endswith("processor time; give a simpler template")


def test_the_process_of_a_template_has_no_keys(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-secret")
    with template_renderer._started() as process:
        file = Path(f"/proc/{process.pid}/environ")
        while not (variables := file.read_bytes()):  # the program has not quite begun
            pass
        process.kill()
    assert b"PATH=" in variables
    assert b"a-secret" not in variables
