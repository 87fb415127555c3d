"""The generator's command line and environment: the job's own options, and what users add."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.roles import Role
from rlhf_api.rules.check import check
from rlhf_api.rules.engines import vllm_options
from rlhf_api.rules.engines.arguments import REFUSED, TRIED
from rlhf_api.rules.engines.generator import OTHER_ENGINE_ARGUMENTS, OWNED_ENGINE_ARGUMENTS
from rlhf_api.sections.roles import option_of
from rlhf_trainer.engines.vllm.serve.gpu import gpu_memory
from rlhf_trainer.engines.vllm.serve.launch import (
    CPU_HEAD_SIZES,
    engine_environment,
    frozen_options,
    group_environment,
    option,
    weight_options,
)
from rlhf_trainer.engines.vllm.serve.routed import WORKER
from rlhf_trainer.process.addresses import interface, listen_host
from rlhf_trainer.process.settings import frozen_source
from rlhf_trainer.roles.generator import arguments

ROOT = Path(__file__).parents[4]


def config(tmp_path, model: dict | None = None, *, shared: int = 0, **generator) -> RunConfig:
    spec = {
        "algorithm": "ppo",
        "steps": 1,
        "seed": 7,
        "model": {"policy": "some/policy", "dtype": "float32"} | (model or {}),
        "data": {"train": ["x.jsonl"], "maxPromptLength": 100},
        "sampling": {"maxNewTokens": 28},
        "generator": generator,
        "reward": {"functions": [{"function": "a:b"}]},
    }
    made = {"job": "kind-reviews", "workdir": str(tmp_path), "spec": spec}
    written = json.dumps(made | ({"sharedGpus": True, "sharedGpuCount": shared} if shared else {}))
    return RunConfig.model_validate_json(written)


def options(made: RunConfig, *, memory: float | None = 80e9) -> dict[str, str | bool]:
    """The command line as vLLM reads it: the last of several values counts."""
    words = arguments(made, "127.0.0.1", 8123, memory)
    parsed: dict[str, str | bool] = {}
    for i, word in enumerate(words):
        if word.startswith("--"):
            following = words[i + 1] if i + 1 < len(words) else "--"
            parsed[word[2:]] = True if following.startswith("--") else following
    return parsed


def test_what_the_job_says_reaches_vllm(tmp_path):
    parsed = options(config(tmp_path, tensorParallelSize=2, dtype="bfloat16"))
    assert (parsed["model"], parsed["tokenizer"]) == ("some/policy", "some/policy")
    assert (parsed["served-model-name"], parsed["seed"], parsed["dtype"]) == ("kind-reviews", "7", "bfloat16")
    assert (parsed["host"], parsed["port"]) == ("127.0.0.1", "8123")
    assert parsed["max-model-len"] == "128"
    assert parsed["tensor-parallel-size"] == "2"
    assert json.loads(parsed["weight-transfer-config"]) == {"backend": "rlhf"}
    assert parsed["logprobs-mode"] == "processed_logprobs", "of what is sampled, not of what is sampled from"
    assert parsed["generation-config"] == "vllm", "the model repository has no say in sampling"
    assert parsed["middleware"] == "rlhf_trainer.engines.vllm.front.middleware.Front"
    assert parsed["disable-uvicorn-access-log"] is True, "a line for each prompt and probe"
    assert "messages" in parsed["chat-template"], (
        "not the policy's own, a program that vLLM would run as it starts"
    )


def test_a_tokenizer_or_a_policy_of_the_jobs_own(tmp_path):
    assert options(config(tmp_path, {"tokenizer": "other/words"}))["tokenizer"] == "other/words"
    made = config(tmp_path, {"policy": None, "create": {"modelType": "llama"}})
    assert options(made)["model"] == f"{tmp_path}/initial"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--name"]),
        (False, ["--no-name"]),
        (0.8, ["--name", "0.8"]),
        ("auto", ["--name", "auto"]),
        ({"a": [1, None]}, ["--name", '{"a": [1, null]}']),
        (["x", 1], ["--name", '["x", 1]']),
    ],
)
def test_options_are_spelled_as_vllm_takes_them(value, words):
    assert option("name", value) == words


def test_engine_arguments_come_last(tmp_path):
    engine_arguments = {
        "gpu-memory-utilization": 0.8,
        "enable-prefix-caching": False,
        "max-model-len": 4096,
        "kv-cache-memory-bytes": 1000,
    }
    parsed = options(config(tmp_path, engineArguments=engine_arguments), memory=None)
    assert parsed["gpu-memory-utilization"] == "0.8"
    assert parsed["no-enable-prefix-caching"] is True
    assert parsed["max-model-len"] == "4096"
    assert parsed["kv-cache-memory-bytes"] == "1000", "over our own default for CPUs"


def test_a_head_in_float32_is_one_of_vllm_too_and_no_option_takes_it_back(tmp_path):
    wide = {"dtype": "bfloat16", "float32Head": True}
    made = config(tmp_path, wide)
    assert json.loads(options(made)["hf-overrides"]) == {"head_dtype": "float32"}
    reference = frozen_options(made, Role.REFERENCE, frozen_source(made, Role.REFERENCE), 100, cpu=False)
    assert reference["hf-overrides"] == {"head_dtype": "float32"}
    assert "hf-overrides" not in options(config(tmp_path, {"dtype": "bfloat16"}))
    given = {"engineArguments": {"hf-overrides": {}}, "untriedEngineArguments": True}
    problem, flag = check(config(tmp_path, wide, **given).spec)
    assert str(problem) == (
        "spec.generator.engineArguments.hf-overrides: is set by the job (spec.model.float32Head); remove it"
    )
    assert flag.where == "spec.generator.untriedEngineArguments"
    assert check(config(tmp_path, **given).spec) == []


@pytest.mark.parametrize("name", sorted(OWNED_ENGINE_ARGUMENTS))
def test_the_jobs_own_options_are_no_engine_arguments(tmp_path, name):
    made = config(tmp_path, engineArguments={name: "x"})
    (problem,) = check(made.spec)
    assert problem.where == f"spec.generator.engineArguments.{name}"
    assert OWNED_ENGINE_ARGUMENTS[name] in problem.message
    assert name in options(config(tmp_path)), "owned because the role sets it"


@pytest.mark.parametrize("name", sorted(OTHER_ENGINE_ARGUMENTS))
def test_options_with_which_a_generator_would_not_answer_the_trainer_are_refused(tmp_path, name):
    (problem,) = check(config(tmp_path, engineArguments={name: "x"}).spec)
    assert problem.where == f"spec.generator.engineArguments.{name}"
    assert OTHER_ENGINE_ARGUMENTS[name] in problem.message


@pytest.mark.parametrize("untried", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *REFUSED,
        *("speculative-config.method", "kv-transfer-config.kv_connector", "no-enable-lora"),
    ],
)
def test_options_that_break_what_a_generator_does_are_refused_whatever_the_flag(tmp_path, name, untried):
    (problem, *more) = check(
        config(tmp_path, engineArguments={name: "x"}, untriedEngineArguments=untried).spec
    )
    assert problem.where == f"spec.generator.engineArguments.{name}"
    assert problem.message == f"{REFUSED[option_of(name)]}; remove it; got 'x'"
    assert [each.where for each in more] == ["spec.generator.untriedEngineArguments"] * untried


def test_an_option_that_was_never_tried_needs_a_flag(tmp_path):
    arguments = {"max-num-seqs": 4, "moe-backend": "triton", "max-num-sequences": 4}
    unknown, misspelled = check(config(tmp_path, engineArguments=arguments).spec)
    assert unknown.where == "spec.generator.engineArguments.moe-backend"
    assert unknown.message.startswith(
        "was never tried with weights of a trainer; docs/reference/engine-arguments.md has"
    )
    assert "set spec.generator.untriedEngineArguments: true; got 'triton'" in unknown.message
    assert "did you mean max-num-seqs? " in misspelled.message
    assert not check(config(tmp_path, engineArguments=arguments, untriedEngineArguments=True).spec)


def test_the_flag_without_an_untried_option_is_refused(tmp_path):
    (problem,) = check(
        config(tmp_path, engineArguments={"max-num-seqs": 4}, untriedEngineArguments=True).spec
    )
    assert problem.where == "spec.generator.untriedEngineArguments"


@pytest.mark.parametrize(("length", "refused"), [(127, True), (128, False), (-1, True), ("8k", True)])
def test_a_model_length_that_would_drop_prompts_is_refused(tmp_path, length, refused):
    problems = check(config(tmp_path, engineArguments={"max-model-len": length}).spec)
    where = "spec.generator.engineArguments.max-model-len"
    assert [problem.where for problem in problems] == [where] * refused
    assert all("use a number of at least 128" in problem.message for problem in problems)


def test_every_tried_option_is_one_of_vllms_and_on_the_page():
    """Runs if vLLM is installed; the page says where each ran."""
    page = (ROOT / "docs" / "reference" / "engine-arguments.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row.split("|")[1])]
    assert sorted(documented) == sorted([*TRIED, *REFUSED])
    if known := vllm_options._options():
        assert {*TRIED, *REFUSED} <= known


def test_a_field_of_an_option_is_the_jobs_where_the_option_is(tmp_path):
    (problem,) = check(config(tmp_path, engineArguments={"weight-transfer-config.backend": "nccl"}).spec)
    assert "is set by the job (the weight broadcast)" in problem.message


def test_experts_stay_where_their_weights_are_compared(tmp_path):
    (problem,) = check(config(tmp_path, engineArguments={"enable-eplb": True}).spec)
    assert problem.where == "spec.generator.engineArguments.enable-eplb"
    assert "compared with what arrived" in problem.message
    assert not check(config(tmp_path, engineArguments={"enable-eplb": False}).spec)


@pytest.mark.parametrize("replay", ["none", "policy", "rollout"])
def test_vllm_returns_the_experts_that_training_replays(tmp_path, replay):
    """On a CPU by a worker of ours."""
    made = config(tmp_path)
    experts = made.spec.experts.model_copy(update={"replay": replay})
    made = made.model_copy(update={"spec": made.spec.model_copy(update={"experts": experts})})
    on_gpu, on_cpu = options(made), options(made, memory=None)
    returned = [each.get("enable-return-routed-experts", False) for each in (on_gpu, on_cpu)]
    assert returned == [replay == "rollout"] * 2
    assert "worker-cls" not in on_gpu
    assert on_cpu.get("worker-cls") == (WORKER if replay == "rollout" else None)


def test_experts_that_nobody_replays_are_not_returned(tmp_path):
    (problem,) = check(config(tmp_path, engineArguments={"enable-return-routed-experts": True}).spec)
    assert problem.where == "spec.generator.engineArguments.enable-return-routed-experts"
    assert problem.message == "is set where spec.experts.replay is rollout; remove it; got true"


def test_the_cpu_build_is_spared_what_it_does_not_need(tmp_path):
    made = config(tmp_path)
    assert "enforce-eager" not in options(made)
    assert options(made, memory=None)["enforce-eager"] is True
    assert options(made, memory=None)["distributed-executor-backend"] == "uni"
    assert "distributed-executor-backend" not in options(config(tmp_path, tensorParallelSize=2), memory=None)


def test_processes_of_one_generator_are_nodes_of_one_vllm(tmp_path):
    made = config(tmp_path, tensorParallelSize=2, podsPerReplica=2)
    words = arguments(made, "0.0.0.0", 8000, None, rank=1, master="job-generator-0.job-rlhf:29500")
    expected = {
        "nnodes": "2",
        "node-rank": "1",
        "master-addr": "job-generator-0.job-rlhf",
        "master-port": "29500",
    }
    one = set(options(config(tmp_path, tensorParallelSize=2), memory=None))
    assert one.isdisjoint(expected), "a generator of one process has none of it"
    text = " ".join(words)
    assert all(f"--{name} {value}" in text for name, value in expected.items())
    assert "--distributed-executor-backend mp" in text
    assert engine_environment(group_environment("10.0.0.7", "eth0"), cpu=True)["VLLM_HOST_IP"] == "10.0.0.7"
    with pytest.raises(
        InvalidJob, match=r"podsPerReplica: vLLM on CPUs runs one worker in each pod .* use 4; got 2"
    ):
        options(config(tmp_path, tensorParallelSize=4, podsPerReplica=2), memory=None)
    staged = config(tmp_path, podsPerReplica=2, engineArguments={"pipeline-parallel-size": 2})
    with pytest.raises(
        InvalidJob, match=r"vLLM on CPUs has no pipelines; use spec.generator.tensorParallelSize"
    ):
        options(staged, memory=None)
    ipv6 = arguments(made, "::", 8000, None, rank=0, master="fd00::7:29500")
    assert "--master-addr fd00::7 --master-port 29500" in " ".join(ipv6)


def test_a_cpu_reads_prompts_whole_however_long_they_may_be(tmp_path):
    parsed = options(made := config(tmp_path), memory=None)
    assert parsed["no-enable-chunked-prefill"] is True
    assert int(parsed["max-num-batched-tokens"]) >= int(parsed["max-model-len"])
    assert "no-enable-chunked-prefill" not in options(made), "on GPUs vLLM may"
    longer = config(tmp_path, engineArguments={"max-model-len": 5000})
    assert options(longer, memory=None)["max-num-batched-tokens"] == "5000"


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ({"hidden_size": 96, "num_attention_heads": 4}, 24),
        ({"hidden_size": 128, "num_attention_heads": 2, "head_dim": 48}, 48),
        ({"n_embd": 32, "n_head": 2}, 16),
        ({"hidden_size": 128, "num_attention_heads": 2}, None),
        ({"hidden_size": 96, "num_attention_heads": 4, "head_dim": 32}, None),
        ({"hidden_size": 96, "num_attention_heads": 4, "kv_lora_rank": 16}, None),
        ({"hidden_size": 96}, None),
        ([], None),
    ],
)
def test_a_head_size_that_the_cpus_engine_lacks_is_refused_before_it_starts(tmp_path, shape, size):
    """vLLM would start, and die at the first request."""
    (tmp_path / "config.json").write_text(json.dumps(shape))
    made = config(tmp_path, {"policy": str(tmp_path)})
    options(made)  # GPUs have other kernels
    if size is None:
        options(made, memory=None)
        return
    with pytest.raises(
        InvalidJob, match=rf"spec.model.policy: vLLM on CPUs has no attention for heads of {size},"
    ):
        options(made, memory=None)


@pytest.mark.parametrize(("rope", "refused"), [({"mrope_interleaved": True}, False), ({}, True)])
def test_a_policy_whose_images_the_engine_would_place_otherwise_is_refused(tmp_path, rope, refused):
    shape = {
        "model_type": "qwen3_vl",
        "text_config": {"rope_parameters": {"mrope_section": [8, 4, 4], **rope}},
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    made = config(tmp_path, {"policy": str(tmp_path)})
    if not refused:
        options(made)
        return
    with pytest.raises(InvalidJob, match=r"spec.model.policy: vLLM would place images otherwise"):
        options(made)


def test_the_list_of_head_sizes_is_the_installed_engines():
    """Read from its source: importing it takes vLLM's whole start."""
    (root,) = importlib.util.find_spec("vllm").submodule_search_locations
    source = Path(root, "v1", "attention", "backends", "cpu_attn.py").read_text()
    sizes = re.search(r"def get_supported_head_sizes.*?return \[([\d, ]+)\]", source, re.DOTALL)
    assert sizes, "ask the engine in another way"
    assert tuple(map(int, sizes[1].split(","))) == CPU_HEAD_SIZES


def test_a_gpu_has_room_for_new_weights_unless_the_manifest_says_otherwise(tmp_path, caplog):
    """The figures of docs/reference/memory.md."""
    seven = {"parameters": 7.6e9, "dtype": "bfloat16"}
    assert options(config(tmp_path, seven))["gpu-memory-utilization"] == "0.76"
    assert options(config(tmp_path, seven), memory=141e9)["gpu-memory-utilization"] == "0.86"
    assert not [record for record in caplog.records if record.name.startswith("rlhf_")]
    assert "gpu-memory-utilization" not in options(config(tmp_path)), "who knows how large some/policy is"
    assert "without spec.model.parameters" in caplog.text
    given = config(tmp_path, seven, engineArguments={"kv-cache-memory-bytes": 10**10})
    assert "gpu-memory-utilization" not in options(given)
    too_much = config(tmp_path, seven, engineArguments={"gpu-memory-utilization": 0.92})
    with pytest.raises(InvalidJob, match=r"vLLM fills 73.6 of 80 GB, .*use at most 0.76; got 0.92"):
        options(too_much)


def test_on_shared_gpus_an_engine_has_a_cache_beside_the_trainer_and_can_sleep(tmp_path):
    seven = {"parameters": 7.6e9, "dtype": "bfloat16"}
    with pytest.raises(InvalidJob, match=r"spec.placement: on shared GPUs, .* one GPU must hold 314 GB: "):
        options(config(tmp_path, seven, shared=1))
    half = {"parameters": 5e8, "dtype": "bfloat16"}
    parsed = options(config(tmp_path, half, shared=1))
    assert (parsed["kv-cache-memory-bytes"], parsed["gpu-memory-utilization"]) == ("47600000000", "0.06")
    assert parsed["enable-sleep-mode"] is True
    both = {"kv-cache-memory-bytes": 10**9, "gpu-memory-utilization": 0.2}
    by_hand = options(config(tmp_path, half, shared=1, engineArguments=both))
    assert (by_hand["kv-cache-memory-bytes"], by_hand["gpu-memory-utilization"]) == (str(10**9), "0.2")
    assert by_hand["enable-sleep-mode"] is True
    assert "enable-sleep-mode" not in options(config(tmp_path, half)), "with GPUs of its own"
    assert "enable-sleep-mode" not in options(config(tmp_path, half, shared=1), memory=None), "without a GPU"


def test_an_engine_that_generates_while_the_trainer_computes_never_sleeps(tmp_path):
    made = config(tmp_path, {"parameters": 5e8, "dtype": "bfloat16"}, shared=1)
    rollout = made.spec.rollout.model_copy(update={"max_staleness": 1})
    ahead = made.model_copy(update={"spec": made.spec.model_copy(update={"rollout": rollout})})
    parsed, turns = options(ahead), options(made)
    assert "enable-sleep-mode" not in parsed
    assert int(parsed["kv-cache-memory-bytes"]) < int(turns["kv-cache-memory-bytes"])


def test_what_users_set_in_the_environment_stands_but_for_what_weights_and_the_plugin_need():
    own = {"VLLM_NO_USAGE_STATS": "0", "PATH": "/bin", "VLLM_SERVER_DEV_MODE": "0"}
    own |= {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_API_KEY": "a key of the image's"}
    environment = engine_environment(own, cpu=True)
    assert environment["VLLM_NO_USAGE_STATS"] == "0"
    assert environment["PATH"] == "/bin"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1", "weights are sent through its routes"
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn", "each process calls our plugin"
    assert not environment["VLLM_API_KEY"], "the probes have none, nor has the trainer"
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in engine_environment({}, cpu=False)


def test_kernels_of_triton_are_compiled_once_for_all_models():
    """Without the variable vLLM has them in a folder of each model, and only while that model is compiled."""
    home = engine_environment({"HOME": "/tmp"}, cpu=False)
    assert home["TRITON_CACHE_DIR"] == "/tmp/.triton/cache", "where Triton has them itself"
    assert engine_environment({"TRITON_CACHE_DIR": "/models/triton"}, cpu=False)["TRITON_CACHE_DIR"] == (
        "/models/triton"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers here")
def test_where_no_gpu_answers_the_driver_s_reason_is_quoted():
    with pytest.raises(
        RuntimeError, match=r"^no GPU for vLLM: (libcuda\.so\.1: cannot open|cuInit: CUDA_ERROR_)"
    ):
        gpu_memory()


def test_on_one_machine_vllm_s_groups_listen_on_loopback():
    environment = engine_environment({"RLHF_HOST": "127.0.0.1"}, cpu=False)
    assert (environment["VLLM_HOST_IP"], environment["GLOO_SOCKET_IFNAME"]) == (
        "127.0.0.1",
        interface("127.0.0.1"),
    )
    assert "GLOO_SOCKET_IFNAME" not in engine_environment({"RLHF_HOST": "10.0.0.7"}, cpu=False)


@pytest.mark.parametrize(
    ("host", "bound"),
    [("127.0.0.1", "127.0.0.1"), ("10.1.2.3", "0.0.0.0"), ("fd00::7", "::"), ("pod-0", "0.0.0.0")],
)
def test_only_loopback_hides_from_other_machines(host, bound):
    assert listen_host(host) == bound


def test_of_a_hub_s_model_no_pickled_weights_are_loaded(tmp_path, monkeypatch):
    """Of a directory's they are refused at the start."""
    assert weight_options(str(tmp_path)) == {}
    assert weight_options("team/model") == {"load-format": "safetensors"}
    monkeypatch.setenv("RLHF_PICKLED_WEIGHTS", "allow")
    assert weight_options("team/model") == {}
