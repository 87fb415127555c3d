"""Names of other systems in a manifest: each error names our field, in the sense that the name has in its section, or
what to do instead; what only follows from such a name is no error of its own."""

import re

import pytest
from tests.unit.api.manifests import document, refusals
from tests.unit.api.schema.rules import SPEC

from rlhf_api.errors.meanings import UNKNOWN
from rlhf_api.errors.model_fields import field_paths
from rlhf_api.errors.no_fields import ANSWERS
from rlhf_api.errors.other_names import OTHER_NAMES
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import parse

SECTIONS = set(SPEC["properties"])
GRPO = (
    "spec.algorithm=grpo",
    "spec.ppo={}",
    "spec.grpo.minibatchSize=8",
    "spec.sampling.responsesPerPrompt=2",
)
DPO = ("spec.algorithm=dpo", "spec.ppo={}")
TRL = {
    "grpo.beta": "spec.grpo.klCoefficient",
    "grpo.epsilon": "spec.grpo.clipRatio",
    "grpo.epsilon_high": "spec.grpo.clipRatioHigh",
    "grpo.delta": "spec.grpo.dualClip",
    "grpo.num_iterations": "spec.grpo.epochs",
    "grpo.steps_per_generation": "spec.grpo.minibatchSize",
    "grpo.loss_type": "spec.grpo.lossAggregation",
    "grpo.scale_rewards": "spec.algorithm decides it: dr_grpo",
    "grpo.mask_truncated_completions": "spec.grpo.overlongFilter",
    "grpo.importance_sampling_level": "spec.algorithm decides it: gspo",
    "grpo.sync_ref_model": "spec.grpo.referenceEma",
    "grpo.ref_model_mixup_alpha": "spec.grpo.referenceEma",
    "grpo.top_entropy_quantile": "spec.grpo.topEntropy",
    "grpo.sapo_temperature_pos": "no built-in algorithm has it",
    "grpo.num_generations": "spec.sampling.responsesPerPrompt",
    "grpo.max_completion_length": "spec.sampling.maxNewTokens",
    "grpo.max_prompt_length": "spec.data.maxPromptLength",
    "grpo.temperature": "spec.sampling.temperature",
    "grpo.top_p": "spec.sampling.topP",
    "grpo.min_p": "spec.sampling.minP",
    "grpo.generation_kwargs": "min-p and top-k sampling and structured outputs are all",
    "grpo.vllm_structured_outputs_regex": "spec.sampling.structuredOutputs.regex",
    "grpo.repetition_penalty": "it applies to evaluation alone",
    "grpo.reward_weights": "spec.reward.functions[].weight",
    "grpo.use_vllm": "remove it: vLLM generates",
    "grpo.vllm_mode": "by spec.placement",
    "grpo.vllm_gpu_memory_utilization": "spec.generator.engineArguments",
    "grpo.vllm_tensor_parallel_size": "spec.generator.tensorParallelSize",
    "grpo.vllm_server_host": "remove it: the job starts its servers",
    "grpo.vllm_importance_sampling_cap": "spec.rollout.importanceCap",
    "grpo.log_completions": "spec.samples",
    "grpo.use_liger_kernel": "spec.trainer.kernels",
    "grpo.shuffle_dataset": "remove it: rows are shuffled",
    "grpo.disable_dropout": "remove it: no model has dropout",
    "grpo.ds3_gather_for_generation": "remove it: weights go to the generators",
    "trainer.bf16": "spec.model.dtype",
    "trainer.fp16": "spec.model.dtype",
    "trainer.max_steps": "spec.steps",
    "trainer.num_train_epochs": "spec.steps",
    "trainer.learning_rate": "spec.optimizer.learningRate",
    "trainer.lr_scheduler_type": "spec.optimizer.schedule",
    "trainer.warmup_ratio": "spec.optimizer.warmupSteps",
    "trainer.weight_decay": "spec.optimizer.weightDecay",
    "trainer.adam_beta1": "spec.optimizer.betas",
    "trainer.adam_epsilon": "spec.optimizer.epsilon",
    "trainer.max_grad_norm": "spec.optimizer.gradientClip",
    "trainer.optim": "the optimizer is AdamW, or Muon for matrices",
    "trainer.per_device_train_batch_size": "spec.trainer.microBatchTokens",
    "trainer.gradient_accumulation_steps": "spec.trainer.microBatchTokens",
    "trainer.report_to": "spec.trackers",
    "trainer.run_name": "metadata.name",
    "trainer.output_dir": "`rlhf run --workdir DIR`",
    "trainer.logging_steps": "remove it: every step is in metrics.jsonl",
    "trainer.save_steps": "spec.checkpoint.everySteps",
    "trainer.save_total_limit": "spec.checkpoint.keepLast",
    "trainer.resume_from_checkpoint": "spec.checkpoint.resume",
    "trainer.eval_strategy": "spec.evaluation.everySteps",
    "trainer.push_to_hub": "upload policy/ of the work directory yourself",
    "trainer.fsdp": "spec.trainer.deepspeed.zero_optimization.stage",
    "trainer.torch_compile": "models are not compiled",
    "trainer.dataloader_num_workers": "remove it: rows are shuffled",
    "model.model_name_or_path": "spec.model.policy",
    "model.attn_implementation": "spec.trainer.attention",
    "model.trust_remote_code": "spec.model.architectures",
    "model.model_revision": "download that revision",
    "model.load_in_4bit": "never quantized",
    "model.lora.r": "spec.model.lora.policy.rank",
    "model.lora.critic.r": "spec.model.lora.critic.rank",
    "model.lora.lora_dropout": "remove it: no model has dropout",
    "data.train_dataset": "spec.data.train",
    "data.eval_dataset": "spec.evaluation.data",
    "data.dataset_text_field": "spec.data.columns",
    "num_epochs": "spec.steps",
    "epsilon": "spec.grpo.clipRatio or spec.optimizer.epsilon",
}
VERL = {
    "grpo.adv_estimator": "spec.algorithm",
    "grpo.clip_ratio_c": "spec.grpo.dualClip",
    "grpo.clip_ratio_low": "spec.grpo.clipRatio",
    "grpo.kl_loss_coef": "spec.grpo.klCoefficient",
    "grpo.kl_loss_type": "spec.grpo.klEstimator",
    "grpo.use_kl_loss": "spec.grpo.klIn",
    "grpo.use_kl_in_reward": "spec.grpo.klIn",
    "grpo.loss_agg_mode": "spec.grpo.lossAggregation",
    "grpo.norm_adv_by_std_in_grpo": "spec.algorithm decides it: dr_grpo",
    "grpo.filter_groups": "spec.grpo.dynamicSampling",
    "grpo.entropy_coeff": "spec.grpo.entropyCoefficient",
    "grpo.ppo_mini_batch_size": "spec.grpo.minibatchSize",
    "grpo.gamma": "remove it: the algorithm grpo has no gamma",
    "grpo.cliprange_value": "remove it: the algorithm grpo has no clipValue",
    "data.prompt_key": "spec.data.columns",
    "data.truncation": "spec.data.overlong",
    "data.val_files": "spec.evaluation.data",
    "data.train_files": "spec.data.train",
    "data.train_batch_size": "spec.data.promptsPerStep",
    "data.filter_overlong_prompts": "spec.data.overlong",
    "data.custom_cls": "spec.data.train",
    "rollout.n": "spec.sampling.responsesPerPrompt",
    "rollout.name": "remove it: vLLM generates",
    "rollout.mode": "remove it: vLLM generates",
    "rollout.enforce_eager": "spec.generator.engineArguments",
    "rollout.max_num_seqs": "spec.generator.engineArguments",
    "rollout.tensor_model_parallel_size": "spec.generator.tensorParallelSize",
    "rollout.free_cache_engine": "vLLM sleeps while the trainer computes",
    "rollout.log_prob_micro_batch_size_per_gpu": "spec.trainer.microBatchTokens",
    "reference.log_prob_micro_batch_size_per_gpu": "spec.reference.microBatchTokens",
    "rollout.multi_turn": "spec.environment",
    "rollout.val_kwargs": "spec.evaluation",
    "evaluation.n": "spec.evaluation.samples",
    "trainer.ulysses_sequence_parallel_size": "spec.trainer.sequenceParallelSize",
    "trainer.ppo_max_token_len_per_gpu": "spec.trainer.microBatchTokens",
    "trainer.use_dynamic_bsz": "spec.trainer.microBatchTokens",
    "trainer.use_remove_padding": "spec.trainer.attention",
    "trainer.param_offload": "spec.trainer.deepspeed.zero_optimization.offload_param",
    "trainer.strategy": "spec.trainer.deepspeed.zero_optimization.stage",
    "trainer.total_epochs": "spec.steps",
    "trainer.logger": "spec.trackers",
    "trainer.project_name": "spec.trackers[].project",
    "trainer.experiment_name": "metadata.name",
    "trainer.test_freq": "spec.evaluation.everySteps",
    "trainer.val_before_train": "remove it: an evaluation runs before the first step",
    "trainer.critic_warmup": "remove it: the algorithm grpo has no criticWarmupSteps",
    "trainer.default_local_dir": "spec.checkpoint.store",
    "trainer.mode": "spec.trainer.deepspeed.zero_optimization.stage",
    "trainer.device": "remove it: GPUs are used",
    "model.path": "spec.model.policy",
    "reward.model_path": "spec.model.reward",
    "trainer.overlap_comm": "spec.trainer.deepspeed.zero_optimization.overlap_comm or "
    "spec.trainer.criticDeepspeed.zero_optimization.overlap_comm",
    "model.enable_gradient_checkpointing": "spec.trainer.gradientCheckpointing",
    "reward.custom_reward_function": "spec.reward.functions",
    "actor_rollout_ref": "the algorithm's section",
    "evaluation.save_freq": "spec.checkpoint.everySteps",
    "trainer.actor_num_nodes": "spec.trainer.replicas",
    "reward.tensor_model_parallel_size": "spec.reward.tensorParallelSize",
    "val_files": "spec.evaluation.data",
    "train_batch_size": "spec.data.promptsPerStep or spec.grpo.minibatchSize",
}


@pytest.mark.parametrize(("name", "meant"), [*TRL.items(), *VERL.items()])
def test_a_name_of_trl_or_verl_is_answered_in_the_sense_of_its_section(name, meant):
    answer = refusals(*GRPO, f"spec.{name}=1")[f"spec.{name}"].removeprefix("unknown field (value 1); ")
    if answer.startswith("did you mean"):
        assert answer == f"did you mean {meant}?"
    else:
        assert meant in answer


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dpo.loss_type", "did you mean spec.dpo.loss?"),
        ("beta", "did you mean spec.dpo.beta?"),
        ("dpo.max_length", "did you mean spec.data.maxPromptLength or spec.data.maxResponseLength?"),
        ("dpo.max_completion_length", "did you mean spec.data.maxResponseLength?"),
        ("dpo.kl_coef", "remove it: the algorithm dpo has no klCoefficient"),
        ("dpo.sync_ref_model", "remove it: the algorithm dpo has no referenceEma"),
        ("dpo.rpo_alpha", "did you mean spec.dpo.likelihoodCoefficient?"),
        ("dpo.reference_free", "dpo has four losses: sigmoid, ipo, simpo and orpo"),
    ],
)
def test_under_dpo_a_name_has_the_sense_of_dpo(name, meant):
    (message,) = refusals(*DPO, f"spec.{name}=1").values()
    assert message == f"unknown field (value 1); {meant}"


def test_every_name_leads_to_a_field_that_is_there_or_to_one_answer():
    paths = [f".{path}".lower() for path in field_paths(RLHFJob)]
    lost = [
        end
        for ends in OTHER_NAMES.values()
        for end in ends
        if not any(p.endswith(f".{end.lower()}") for p in paths)
    ]
    assert lost == []
    assert set(OTHER_NAMES) & set(ANSWERS) == set()
    named = {field for answer in ANSWERS.values() for field in re.findall(r"spec\.[\w.]*\w", answer)}
    assert [field for field in named if field not in field_paths(RLHFJob)] == []


def test_a_sense_is_of_a_section_or_an_algorithm_that_there_is():
    sections = {name.partition(".")[0] for name in (*OTHER_NAMES, *ANSWERS) if "." in name}
    of_theirs = {"orchestrator", "train", "wandb"}  # for `rlhf import`
    assert sections - {section.lower() for section in SECTIONS} <= {"sft", *of_theirs}


@pytest.mark.parametrize(
    "overrides",
    [
        (*GRPO[:3], "spec.sampling.num_generations=4"),
        (*GRPO[:3], "spec.sampling.num_generations=4", "spec.grpo.minibatchSize=64"),
        ("spec.data={promptsPerStep: 8, train_files: [a.jsonl]}",),
        ("spec.model={reward: org/reward, model_name_or_path: org/policy}",),
        ("spec.evaluation={val_files: [a.jsonl], function: 'a.b:c'}",),
        (*GRPO, "spec.model.reward=null", "spec.reward={reward_funcs: ['a.b:c']}"),
    ],
)
def test_what_follows_from_a_name_of_another_system_is_no_error_of_its_own(overrides):
    (message,) = refusals(*overrides).values()
    assert "did you mean" in message


def test_a_required_field_that_is_there_by_another_name_is_not_called_missing():
    made = document("spec.max_steps=4")
    del made["spec"]["steps"]
    with pytest.raises(InvalidJob) as caught:
        parse(made)
    assert [problem.where for problem in caught.value.problems] == ["spec.max_steps"]


def test_a_field_that_is_there_too_is_checked_beside_its_other_name():
    messages = refusals(*GRPO, "spec.sampling.responsesPerPrompt=1", "spec.sampling.num_generations=4")
    assert set(messages) == {"spec.sampling.num_generations", "spec.sampling.responsesPerPrompt"}


def test_a_key_like_none_gets_no_suggestion():
    (message,) = refusals("spec.data.promotions=1").values()
    assert message.startswith("unknown field (value 1); known here: chatTemplate, ")


def test_without_an_algorithm_the_outermost_fields_are_named():
    assert UNKNOWN.others == ()
    messages = refusals("spec.algorithm=nothing", "spec.trainer.lr=1")
    assert messages["spec.trainer.lr"].endswith("did you mean spec.optimizer.learningRate?")
