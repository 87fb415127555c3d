"""vLLM's options in `engineArguments`: those that the job owns, that are refused, and that were tried."""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from ...errors.problem import Problem, show
from ...errors.similar import closest
from ...sections.roles import Generator, ModelServerSpec, option_of

TRIED = (
    *("gpu-memory-utilization", "kv-cache-memory-bytes", "num-gpu-blocks-override", "block-size"),
    *("max-model-len", "max-num-seqs", "max-num-batched-tokens", "enable-chunked-prefill"),
    *("enable-prefix-caching", "async-scheduling", "scheduling-policy", "max-num-scheduled-tokens"),
    *("enforce-eager", "compilation-config", "disable-cascade-attn", "load-format", "quantization"),
    *("pipeline-parallel-size", "data-parallel-size", "distributed-executor-backend"),
    *("shutdown-timeout", "disable-log-stats", "enable-log-requests", "uvicorn-log-level"),
    *("disable-uvicorn-access-log", "stream-interval"),
)
"""Options that ran with weights of a trainer and gave log-probabilities of its policy, or that the code of several GPUs
is written for; docs/reference/engine-arguments.md says where each ran and what it needs."""
_ROUTED = "is set where spec.experts.replay is rollout"
_KEYS = "keeps keys and values beyond the engine, where those of earlier weights are not cleared"
_MOVES = "moves experts between GPUs while they serve, and what is served is compared with what arrived"
_SPECULATIVE = (
    "gives some tokens a log-probability of 0 where the policy's is -17.8 (vLLM 0.32, ngram, float32)"
)
_ADAPTERS = (
    "gives vLLM's layers other names, so that the first commit of weights fails; spec.model.lora trains an adapter and "
    "merges it into what is served"
)
_REASONING = "reads replies of vLLM's chat path, which no role asks, and would put off structured outputs"
_COMMIT = "names another version of the model than the one that the trainer reads"
REFUSED = {
    "config": "names a file of options that nothing checks; write its options here",
    **dict.fromkeys(("speculative-config", "spec-method", "spec-model", "spec-tokens"), _SPECULATIVE),
    **dict.fromkeys(("enable-eplb", "eplb-config", "enable-elastic-ep"), _MOVES),
    "enable-return-routed-experts": _ROUTED,
    **dict.fromkeys(("kv-transfer-config", "kv-offloading-size", "kv-offloading-backend"), _KEYS),
    **dict.fromkeys(("enable-lora", "lora-modules", "default-mm-loras"), _ADAPTERS),
    **dict.fromkeys(("revision", "code-revision", "tokenizer-revision", "hf-config-path"), _COMMIT),
    **dict.fromkeys(("reasoning-parser", "reasoning-parser-plugin", "reasoning-config"), _REASONING),
    "logits-processors": "changes what is sampled, and training knows nothing of it",
    "enable-sleep-mode": "lets others drop the trainer's weights; the job sets it where both share GPUs in turns",
    "grpc": "serves no HTTP, by which the trainer asks",
}
"""Options that break what a role does beside vLLM -> the reason. `untriedEngineArguments` does not allow them."""


def engine_argument_problems(
    where: str, section: Generator | ModelServerSpec, owned: Mapping[str, str]
) -> Iterator[Problem]:
    """Problems of the `engineArguments` of the section at path `where`: spellings that vLLM would not accept, options
    that the job sets itself (`owned`: what sets each), that are refused, or that were never tried."""
    untried = False
    for key, value in section.engine_arguments.items():
        here, name = f"{where}.engineArguments.{key}", option_of(key)
        head, dot, field = key.partition(".")
        if key != (spelled := head.lstrip("-").replace("_", "-") + dot + field):
            yield Problem(here, f"spell it as vLLM does, without dashes: {spelled}")
        if value is None:
            yield Problem(here, "null is not a value; for a flag use true or false; got null")
        if name in owned:
            yield Problem(here, f"is set by the job ({owned[name]}); remove it")
        elif name in REFUSED:
            if not _is_off(key, value):
                yield Problem(here, f"{REFUSED[name]}; remove it; got {show(value)}")
        elif name not in TRIED:
            untried = True
            if not section.untried_engine_arguments:
                near = closest(name, TRIED)
                hint = f"did you mean {near}? " if near else ""
                yield Problem(
                    here,
                    f"was never tried with weights of a trainer; {hint}docs/reference/engine-arguments.md has "
                    f"those that were; to use it all the same, set {where}.untriedEngineArguments: true; "
                    f"got {show(value)}",
                )
    if section.untried_engine_arguments and not untried:
        message = (
            "applies only to engineArguments that were never tried, and there are none; remove it; got true"
        )
        yield Problem(f"{where}.untriedEngineArguments", message)


def _is_off(key: str, value: JsonValue) -> bool:
    """True if a flag is switched off."""
    return value is False or (key.lstrip("-").startswith("no-") and value is True)
