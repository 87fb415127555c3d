"""Values beyond the bounds of all fields are refused with their place and size, without a CRD too."""

import pytest
from tests.unit.api.manifests import document

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import parse
from rlhf_api.rules import size_limits

TEXT, ITEMS, KEYS = "x" * (size_limits.TEXT + 1), ["x"] * (size_limits.ITEMS + 1), range(size_limits.KEYS + 1)


def with_spec(section: str, value: object) -> dict:
    made = document()
    made["spec"][section] = value
    return made


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (
            with_spec("model", {"policy": "p", "reward": TEXT}),
            "spec.model.reward: must have at most 4096 char",
        ),
        (with_spec("data", {"train": ITEMS}), "spec.data.train: must have at most 4096 items; got 4097"),
        (with_spec("data", {"train": ["x", TEXT]}), "spec.data.train[1]: must have at most 4096 characters"),
        (
            with_spec("env", {f"A{i}": "x" for i in KEYS}),
            "spec.env: must have at most 256 keys",
        ),
        (with_spec("env", {"A": TEXT}), "spec.env.A: must have at most 4096 characters"),
        (
            with_spec("generator", {"engineArguments": {f"a{i}": 1 for i in KEYS}}),
            "spec.generator.engineArguments: must have at most 256 keys",
        ),
        (
            with_spec("trainer", {"deepspeed": {"optimizer": {"type": TEXT}}}),
            "spec.trainer.deepspeed.optimizer.type: must have at most 4096 characters; got 4097: 'xxx",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_beyond_the_bounds_of_all_fields_is_refused(manifest: dict, problem: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse(manifest)
    assert any(str(p).startswith(problem) for p in caught.value.problems), caught.value


def test_what_is_within_them_is_not() -> None:
    parse(with_spec("model", {"policy": "p", "reward": TEXT[1:]}))
    parse(with_spec("env", {f"A{i}": "x" * 900 for i in KEYS[1:]}))
    parse(with_spec("env", {"A": TEXT[1:]}))


def test_free_form_contents_have_no_bounds() -> None:
    """A script in a template is as long as Kubernetes lets it be."""
    container = {"name": "setup", "image": "i", "args": [TEXT]}
    parse(with_spec("pods", {"template": {"spec": {"initContainers": [container]}}}))
