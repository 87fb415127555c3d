"""Checks of the models that a manifest names: directories, names of the hub, what vLLM serves, layers of adapters."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rlhf_api.contract.run import role_views, roles_of
from rlhf_api.contract.teachers import model_field, named_models
from rlhf_api.errors.problem import Problem
from rlhf_api.estimate.model_files import matrices, tensor_names, token_ids, tokens_differ
from rlhf_api.estimate.serving import on_vllm
from rlhf_api.estimate.sizes import LOADED
from rlhf_api.graph import CRITIC
from rlhf_api.host.foreign_files import READ_ERRORS, read_json
from rlhf_api.host.model_directory import directory_problem
from rlhf_api.roles import Role
from rlhf_api.rules.engines.vllm_options import engine_problems
from rlhf_api.rules.vision import policy_problems
from rlhf_api.sections.lora import is_named, shortest_target
from rlhf_api.sections.model import is_of_part
from rlhf_api.spec import Spec

_WEIGHTS = ("*.safetensors", "*.bin")
_TOKENIZER = ("tokenizer*", "vocab*", "*.model", "tekken*")
"""Files that Transformers reads weights, or tokenizers of any kind, from."""
_OF_RUN = re.compile(r"((?:.*/)?runs/[^/]+)/(?:policy|critic)/?")
"""Pattern of the path of a job's models in its default work directory."""
_HUB = "https://huggingface.co/"
_HUB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


def model_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of models that are neither a directory nor a hub's; of models and options that the installed vLLM does
    not have."""
    yield from mistyped(spec)
    yield from _images(spec)
    yield from _engines(spec)


def _images(spec: Spec) -> Iterator[Problem]:
    """Problems of a policy in a directory that reads images, or of settings of images without one."""
    if spec.model.policy is not None and (file := Path(spec.model.policy, "config.json")).is_file():
        with suppress(*READ_ERRORS):  # reported by `mistyped`
            yield from policy_problems(spec, read_json(file).get("model_type"))


def layer_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of layers named by an adapter, and of frozen parts, for local models; the trainer checks those of all
    others."""
    model = spec.model
    yield from _frozen_parts(spec)
    for used in spec.graph.trained:
        field, lora, named = used.field, model.adapter(used.field), spec.source(used.field)
        if lora is None or named is None:
            continue
        _, name = named
        known = matrices(Path(name))
        for i, target in enumerate(lora.target_modules or ()):
            if known and not any(is_named(layer, target) for layer in known):
                ends = ", ".join(sorted({shortest_target(layer) for layer in known}))
                message = f"no layer of {name!r} is named so; it has {ends}; got {target!r}"
                yield Problem(f"spec.model.lora.{field}.targetModules[{i}]", message)


def _frozen_parts(spec: Spec) -> Iterator[Problem]:
    """Problems of frozen parts that have no parameter."""
    model = spec.model
    names = tensor_names(Path(model.policy)) if model.policy and model.freeze else []
    for i, part in enumerate(model.freeze):
        # Transformers fuses experts under other names; what is tied to the embeddings is in no file.
        fused = any(".experts." in name for name in names)
        if names and not fused and not any(is_of_part(name, part) for name in (*names, "lm_head.weight")):
            known = ", ".join(
                sorted({piece for name in names for piece in name.split(".") if not piece.isdecimal()})
            )
            message = (
                f"no parameter of {model.policy!r} has this in its name; there are {known}; got {part!r}"
            )
            yield Problem(f"spec.model.freeze[{i}]", message)


def tokenizer_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of a critic and a reference in directories whose tokenizer is not the policy's; all others are compared
    when they are loaded."""
    used = {"critic": CRITIC in spec.graph.trained, "reference": Role.REFERENCE in roles_of(spec)}
    for _, where, name in named_models(spec, [field for field, is_used in used.items() if is_used]):
        if difference := _other_tokens(spec, name):
            message = "has another tokenizer than the policy, and would read its tokens as others"
            yield Problem(where, f"{message}: {difference}; got {name!r}")


def critic_from_policy(spec: Spec) -> str | None:
    """A line for a job whose critic would start from the reward model, but for its tokenizer or its scores."""
    field, name = spec.source("critic") or ("policy", "")
    if CRITIC not in spec.graph.trained:
        return None
    if field == "policy" and spec.model.reward is not None:
        setting = "fineGrained" if spec.reward.fine_grained else "stepScores"
        parts = f"{spec.model.reward} scores parts of a response (spec.reward.{setting})"
        return f"the critic starts from the policy: {parts}, and the reward of a part is no value"
    if field != "reward" or not _other_tokens(spec, name):
        return None
    return f"the critic starts from the policy: the tokenizer of {name} is another"


def _other_tokens(spec: Spec, name: str) -> str:
    """A difference of the tokenizer of the model `name` from the policy's, by which it reads other tokens; '' if there
    is none, or one of them is not in a directory."""
    policy = spec.model.tokenizer or spec.model.policy
    both = (None if policy is None else token_ids(Path(policy))), token_ids(Path(name))
    if both[0] is None or both[1] is None:
        return ""
    (ids, merges), (own_ids, own_merges) = both[0], both[1]
    return tokens_differ(ids, own_ids) or ("" if merges == own_merges else "their merges differ")


def mistyped(spec: Spec) -> Iterator[Problem]:
    """Problems of models that are neither a directory in Hugging Face format nor a name of the hub."""
    model, scoring = spec.model, {each.where for each in spec.reward_models}
    for field, where, name in named_models(spec, (*LOADED, "tokenizer")):
        if not Path(name).exists() and not _looks_local(name) and _HUB_NAME.fullmatch(name):
            continue
        required_file = "tokenizer_config.json" if field == "tokenizer" else "config.json"
        if not Path(name).is_dir():
            bare = name.strip().removeprefix(_HUB).rstrip("/")
            hint = f"; did you mean {bare}?" if bare != name and _HUB_NAME.fullmatch(bare) else ""
            if run := _OF_RUN.fullmatch(name):
                hint = f"; a job leaves it in its work directory {run[1]}: run that job to its end first"
            yield Problem(where, f"no such directory, and no hub name (`owner/name`){hint}; got {name!r}")
        elif not (Path(name) / required_file).is_file():
            yield Problem(where, f"must be in Hugging Face format, but has no {required_file}; got {name!r}")
        elif what := directory_problem(Path(name)):
            yield Problem(where, f"{what}; got {name!r}")
        elif field != "tokenizer" and (
            lacks := _lacks(Path(name), alone=field == "policy" and not model.tokenizer)
        ):
            yield Problem(where, f"{lacks}; got {name!r}")
        elif where in scoring and (kinds := _only_causal(Path(name))):
            message = (
                f"is {kinds}, which has no trained head to score with; name one that algorithm reward made"
            )
            yield Problem(where, f"{message}; got {name!r}")


def _lacks(directory: Path, *, alone: bool) -> str:
    """Files that a model's directory lacks, as text, or ''; `alone`: the manifest names no other tokenizer."""
    if not any(file for kind in _WEIGHTS for file in directory.glob(kind)):
        return f"has no weights ({', '.join(_WEIGHTS)})"
    if alone and not any(file for kind in _TOKENIZER for file in directory.glob(kind)):
        return (
            "has no tokenizer (tokenizer.json or the like); copy its files there, or set spec.model.tokenizer"
        )
    return ""


def _only_causal(directory: Path) -> str:
    """The classes of a language model's directory; '' for any other model."""
    named = read_json(directory / "config.json").get("architectures") or ()
    return ", ".join(map(str, named)) if all(str(name).endswith("ForCausalLM") for name in named) else ""


def _looks_local(name: str) -> bool:
    """True for a model name meant as a path; a hub name is `name` or `owner/name`."""
    first, *others = name.split("/")
    if first in ("", ".", "..", "~") or len(others) > 1:
        return True
    return bool(others) and Path(first).is_dir()


def _engines(spec: Spec) -> Iterator[Problem]:
    for role, view in role_views(spec):
        if on_vllm(view, role):
            named, path = view.source(role.row.model or "policy") or ("policy", "")
            yield from engine_problems(view, role, model_field(view, named), path)
