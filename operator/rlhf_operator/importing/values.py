"""Values of other systems as those of our fields: other words, other units, other types; pure."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlhf_api.dataset.row_files import TABLES
from rlhf_api.errors.similar import plain
from rlhf_api.sections.data import HUB_URL

from .context import Context, NotCarried, whole

Convert = Callable[[str, Any, Context], Any]
"""(last key as `plain` has it, value, context) -> value of our field. Raises NotCarried."""


def _words(table: Mapping[Any, Any]) -> Convert:
    def convert(_name: str, value: Any, _context: Context) -> Any:
        try:
            return table[value]
        except (KeyError, TypeError):
            raise NotCarried(
                f"it is one of {', '.join(map(str, dict.fromkeys(table.values())))} here"
            ) from None

    return convert


_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _dtype(name: str, value: Any, _context: Context) -> Any:
    switched = _DTYPES.get(name)
    if switched and value is not True:
        raise NotCarried("it is off")
    return switched or _DTYPES.get(value, str(value).removeprefix("torch."))


def _steps(name: str, value: Any, context: Context) -> Any:
    if "steps" not in name:
        raise NotCarried("it counts passes or responses; a step takes spec.data.promptsPerStep rows")
    if context.system == "TRL" and context.samples:  # theirs are updates
        updates = context.responses / context.update * context.number("num_iterations", 1)
        return max(1, round(value / updates))
    return value


def _warmup(name: str, value: Any, context: Context) -> Any:
    if "ratio" not in name:
        return value
    steps = context.number("max_steps", context.number("total_training_steps", 0))
    if steps < 1:
        raise NotCarried("it is a share of the steps, whose number is not known")
    return round(value * steps)


def _floor(name: str, value: Any, context: Context) -> Any:
    rate = context.number("lr", context.number("learning_rate", 0))
    if name != plain("min_lr"):
        return value
    if not rate or not isinstance(value, int | float):
        raise NotCarried("it is a share of the learning rate here, which is not known")
    return value / rate


def _micro_batch(name: str, value: Any, _context: Context) -> Any:
    if "token" not in name:
        raise NotCarried("it counts sequences, here it is tokens; its default is for speed alone")
    return value


def _prompts(_name: str, value: Any, context: Context) -> Any:
    if context.system in ("TRL", "prime-rl"):
        raise NotCarried("it is no whole number of prompts")
    return value


def _minibatch(name: str, value: Any, context: Context) -> Any:
    if name == plain("ppo_mini_batch_size"):
        return whole(value * context.group, "ppo_mini_batch_size x n")
    if name in (plain("num_mini_batches"), plain("steps_per_generation")):
        raise NotCarried("it is a number of updates; here it is the responses of one")
    return value


def _trackers(name: str, value: Any, _context: Context) -> Any:
    if name.startswith("use"):
        named = [name.removeprefix("use")] if value else []
    else:
        named = [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
    if "all" in named:
        raise NotCarried("name them")
    known = [each for each in named if each in ("tensorboard", "wandb", "mlflow", "trackio")]
    return [{"kind": each} for each in known]


def _offload(_name: str, value: Any, _context: Context) -> Any:
    if value is not True:
        raise NotCarried("it is off")
    return {"device": "cpu"}


def _every(_name: str, value: Any, _context: Context) -> Any:
    if isinstance(value, int) and value <= 0:
        raise NotCarried("it is off")
    return value


_COLUMNS = {
    plain("label_key"): "answer",
    plain("response_key"): "answer",
    plain("dataset_text_field"): "messages",
    plain("chosen_key"): "chosen",
    plain("rejected_key"): "rejected",
}
"""Names that say which column is read -> the field as which it is; `prompt` for all others."""


def _files(name: str, value: Any, _context: Context) -> Any:
    files = [value] if isinstance(value, str) else value
    if not isinstance(files, list | tuple) or not all(isinstance(file, str) for file in files):
        raise NotCarried("name files, or a function that returns rows")
    split = "test" if name.startswith(("eval", "val")) else "train"
    return [f"hf://{file}:{split}" if _is_of_hub(file) else file for file in files]


def _is_of_hub(name: str) -> bool:
    is_name = HUB_URL.fullmatch(f"hf://{name}:train") and name.count("/") == 1
    return bool(is_name) and not name.endswith((".json", ".jsonl", *TABLES)) and not Path(name).exists()


def _column(name: str, value: Any, _context: Context) -> Any:
    if not isinstance(value, str):
        raise NotCarried("name the columns there")
    field = _COLUMNS.get(name, "prompt")
    if value == field:
        raise NotCarried("it is read from there already")
    return {field: value}


def _rewards(_name: str, _value: Any, _context: Context) -> Any:
    raise NotCarried("write `def score(prompts, responses, rows)` and name it; `rlhf init` writes one")


def _reward_model(_name: str, value: Any, _context: Context) -> Any:
    if isinstance(value, list | tuple) or "," in str(value):
        raise NotCarried("it names several: give each a name in spec.reward.models, and its weight")
    return value


def _name(_name: str, value: Any, _context: Context) -> Any:
    return re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-0123456789")[:40].strip("-")


def _packed(_name: str, value: Any, _context: Context) -> Any:
    if value is True or "flash" in str(value):
        return "packed"
    raise NotCarried("it is left to the job")


def _kl(name: str, value: Any, context: Context) -> Any:
    """The coefficient; of verl, whose two penalties have one each, that of the one that is switched on."""
    if context.system != "verl":
        return value
    switches = {plain("use_kl_loss"), plain("use_kl_in_reward")}
    on = [switch for switch in switches if context.given.get(switch)]
    own = plain("use_kl_loss" if name == plain("kl_loss_coef") else "use_kl_in_reward")
    if on and own not in on:
        raise NotCarried("it is off")
    return value if on else 0


def _kl_in(name: str, value: Any, _context: Context) -> Any:
    if value is not True:
        raise NotCarried("it is off")
    return "loss" if name == plain("use_kl_loss") else "reward"


def _pair_of(place: int) -> Convert:
    """The place of a pair, or a single number as it is."""

    def convert(_name: str, value: Any, _context: Context) -> Any:
        return value[place] if isinstance(value, list | tuple) and len(value) > place else value

    return convert


def _buffer(name: str, value: Any, _context: Context) -> Any:
    """Of a penalty on responses without an end token, the last token that they may have."""
    return 1 if name == plain("missing_eos_penalty") else value


def _rounds(_name: str, value: Any, _context: Context) -> Any:
    return int(value) if isinstance(value, bool | int) else value


def _betas(_name: str, value: Any, context: Context) -> Any:
    if isinstance(value, list | tuple):
        return [*value]
    firsts = context.number("adam_beta1", context.number("betas1", 0.9))
    return [firsts, context.number("adam_beta2", context.number("betas2", 0.999))]


def _moving(_name: str, _value: Any, _context: Context) -> Any:
    raise NotCarried("set it to 1 - alpha / sync steps")


def _raise(reason: str) -> Any:
    raise NotCarried(reason)


CONVERTERS: Mapping[str, Convert] = {
    "metadata.name": _name,
    "spec.steps": _steps,
    "spec.model.dtype": _dtype,
    "spec.model.lora.policy": lambda *_: _raise("spec.model.lora.policy.rank makes it one"),
    "spec.model.reward": _reward_model,
    "spec.data.train": _files,
    "spec.evaluation.data": _files,
    "spec.data.columns": _column,
    "spec.data.promptsPerStep": _prompts,
    "spec.data.overlong": _words(
        {True: "drop", "error": "refuse", **dict.fromkeys(("left", "right", "middle", "keep_end"), "cut")}
    ),
    "spec.optimizer.schedule": _words(
        {
            **dict.fromkeys(("constant", "constant_with_warmup"), "constant"),
            **dict.fromkeys(("linear", "warmup_stable_decay"), "linear"),
            **dict.fromkeys(("cosine", "cosine_with_min_lr"), "cosine"),
        }
    ),
    "spec.optimizer.floor": _floor,
    "spec.optimizer.warmupSteps": _warmup,
    "spec.optimizer.betas": _betas,
    "spec.trainer.microBatchTokens": _micro_batch,
    "spec.trainer.criticMicroBatchTokens": _micro_batch,
    "spec.reference.microBatchTokens": _micro_batch,
    "spec.trainer.gradientCheckpointing": _words({True: "full", 2: "selective", False: "none"}),
    "spec.trainer.attention": _packed,
    "spec.trainer.kernels": _words({True: "liger", False: "torch"}),
    "spec.trainer.deepspeed.zero_optimization.offload_param": _offload,
    "spec.trainer.deepspeed.zero_optimization.offload_optimizer": _offload,
    "spec.trackers": _trackers,
    "spec.reward.functions": _rewards,
    "spec.checkpoint.everySteps": _every,
    "spec.evaluation.everySteps": _every,
    "minibatchSize": _minibatch,
    "klCoefficient": _kl,
    "klIn": _kl_in,
    "klEstimator": _words({"k1": "k1", "kl": "k1", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "k3"}),
    "lossAggregation": _words(
        {
            **dict.fromkeys(("dapo", "bnpo", "cispo", "token-mean", "token"), "token"),
            **dict.fromkeys(("grpo", "seq-mean-token-mean", "sequence"), "sequence"),
            **dict.fromkeys(("dr_grpo", "seq-mean-token-sum-norm", "constant"), "constant"),
        }
    ),
    "normalize": _words({"sum_then_normalize": "sum", "normalize_then_sum": "each"}),
    "clipRatio": _pair_of(0),
    "clipRatioHigh": _pair_of(1),
    "spec.rollout.importanceCap": _pair_of(1),
    "overlongBuffer": _buffer,
    "dynamicSampling": _rounds,
    "referenceEma": _moving,
    "spec.rollout.maxStaleness": _rounds,
    "spec.rollout.importance": lambda _name, value, _: "token" if value is True else value,
}
"""A field's path, or its last key where each algorithm's section has it -> the conversion of values."""
