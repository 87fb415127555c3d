"""Names of a manifest's fields in other systems: TRL, verl, OpenRLHF, prime-rl, ChatLearn, ReaL, XTuner, DeepSpeed. For
messages about unknown fields alone: none of these names is accepted."""

from .similar import plain

_NAMES = {
    "metadata.name": "experiment_name exp_name run_name wandb_run_name wandb.name",
    "spec.algorithm": "adv_estimator advantage_estimator policy_loss policy_loss_type loss_mode",
    "spec.steps": (
        "max_steps total_steps train_steps num_steps num_train_epochs num_epochs total_epochs "
        "total_training_steps total_episodes num_episode num_episodes num_total_batches"
    ),
    "spec.seed": "random_seed data_seed data_loader_seed",
    "spec.env": "env_vars environment_variables",
    "spec.environment": "multi_turn agent",
    "spec.environment.path": "environment_factory agent_func_path",
    "spec.environment.turns": "max_tool_calling_iterations max_assistant_turns",
    "spec.trackers": "report_to logger log_with use_wandb use_tensorboard wandb",
    "spec.trackers[].project": "project_name wandb_project tracker_project_name",
    "spec.trackers[].settings": "tracker_kwargs wandb_org wandb_group",
    "spec.model.policy": (
        "model_name model_path model_name_or_path pretrain actor sft_model_path model.name model.path"
    ),
    "spec.model.reference": "ref_model ref_policy reference.model_path reference.path teacher_model teacher",
    "spec.model.critic": "critic_pretrain",
    "spec.model.reward": (
        "reward_model reward_model_path reward_pretrain reward_model_name_or_path reward.model_path"
    ),
    "spec.model.tokenizer": "tokenizer_path tokenizer_name tokenizer_name_or_path",
    "spec.model.architectures": "external_lib",
    "spec.model.dtype": "torch_dtype param_dtype precision bf16 fp16 model_dtype optimization_dtype",
    "spec.model.float32Head": "cast_lm_head_to_fp32 fp32_lm_head enable_fp32_lm_head",
    "spec.model.lora.policy": "enable_lora use_peft",
    "spec.model.lora.policy.rank": "lora_rank lora_dim lora_r r",
    "spec.model.lora.policy.alpha": "lora_alpha lora_scaling",
    "spec.model.lora.policy.rankStabilized": "use_rslora",
    "spec.model.lora.policy.weightDecomposed": "use_dora",
    "spec.model.lora.policy.targetModules": "lora_layer lora_target_modules target_modules",
    "spec.data.train": (
        "dataset dataset_name train_path train_files train_dataset prompt_data prompts ppo_datas "
        "query_dataset custom_cls"
    ),
    "spec.data.sources[].weight": "prompt_data_probs",
    "spec.data.columns": (
        "prompt_key input_key label_key dataset_text_field response_key chosen_key rejected_key dataset_kwargs"
    ),
    "spec.data.promptsPerStep": (
        "batch_size train_batch_size rollout_batch_size sample_per_episode generation_batch_size "
        "gen_batch_size vllm_generate_batch_size local_batch_size token_batch_size"
    ),
    "spec.data.samplesPerEpoch": "num_samples_each_epoch",
    "spec.data.maxPromptLength": (
        "max_length max_seq_len max_seqlen seq_len max_len prompt_max_len prompt_length dpo.max_length "
        "sft.max_length reward.max_length"
    ),
    "spec.data.maxResponseLength": (
        "dpo.max_length sft.max_length reward.max_length dpo.max_completion_length max_target_length"
    ),
    "spec.data.overlong": "filter_overlong_prompts truncation truncation_mode",
    "spec.data.chatTemplate": "chat_template_path custom_chat_template",
    "spec.data.chatTemplateKwargs": "apply_chat_template_kwargs",
    "spec.samples": (
        "log_completions log_unique_prompts log_completions_hub_repo rollout_data_dir num_sample_generations"
    ),
    "spec.samples.promptsPerStep": "num_completions_to_print",
    "spec.sampling.responsesPerPrompt": (
        "num_generations num_return_sequences n_samples_per_prompt group_size n rollout_n "
        "rollouts_per_example"
    ),
    "spec.sampling.maxNewTokens": (
        "max_tokens max_completion_length max_response_length response_length generate_max_len max_len "
        "seq_len"
    ),
    "spec.sampling.minNewTokens": "min_tokens",
    "spec.sampling.temperature": "temperature",
    "spec.sampling.responseEndId": "eos_token_id stop_token_id",
    "spec.sampling.stop": "stop_strings",
    "spec.sampling.structuredOutputs": "structured_outputs guided_decoding",
    "spec.sampling.structuredOutputs.regex": "vllm_structured_outputs_regex guided_regex",
    "spec.optimizer.learningRate": "lr actor_lr actor_learning_rate",
    "spec.optimizer.criticLearningRate": "critic_lr",
    "spec.optimizer.schedule": "lr_scheduler lr_scheduler_type lr_decay_rate scheduler warmup_style",
    "spec.optimizer.warmupSteps": "warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio lr_warmup_steps",
    "spec.optimizer.floor": "min_lr_ratio min_lr_rate min_lr",
    "spec.optimizer.decaySteps": "decay_steps num_decay_steps",
    "spec.optimizer.betas": "adam_beta1 adam_beta2 adam_betas betas1 betas2",
    "spec.optimizer.weightDecay": "l2",
    "spec.optimizer.gradientClip": "max_grad_norm grad_clip gradient_clipping max_norm clip_grad",
    "spec.reward.functions": (
        "reward_funcs reward_functions reward_function custom_reward_function reward_manager"
    ),
    "spec.reward.functions[].weight": "reward_weights",
    "spec.reward.functions[].concurrency": "reward.num_workers",
    "spec.reward.functions[].url": "remote_rm_url",
    "spec.reward.functions[].program": "sandbox_fusion",
    "spec.reward.clip": "clip_reward_min clip_reward_max reward_clip_range score_clip",
    "spec.reward.scale": "reward_scale",
    "spec.reward.fineGrained": "fine_grained_rm",
    "spec.reward.microBatchTokens": "reward_micro_bs",
    "spec.reward.replicas": "reward_num_nodes reward_num_gpus_per_node",
    "spec.reference.replicas": "ref_num_nodes ref_num_gpus_per_node",
    "spec.checkpoint": "ckpt",
    "spec.checkpoint.store": "ckpt_path default_local_dir default_hdfs_dir",
    "spec.checkpoint.everySteps": "save_steps save_interval save_freq save_strategy",
    "spec.checkpoint.keepLast": (
        "save_total_limit max_ckpt_num max_actor_ckpt_to_keep max_critic_ckpt_to_keep"
    ),
    "spec.checkpoint.keepEvery": "keep_interval",
    "spec.checkpoint.keepBest": "load_best_model_at_end metric_for_best_model greater_is_better",
    "spec.checkpoint.resume": "resume_from_checkpoint load_checkpoint resume_mode resume_step",
    "spec.checkpoint.startFrom": "resume_from_path",
    "spec.export.everySteps": "save_hf_ckpt",
    "spec.evaluation": "eval val val_kwargs",
    "spec.evaluation.data": "val_files eval_dataset",
    "spec.evaluation.everySteps": "eval_steps test_freq eval_strategy evaluation_strategy",
    "spec.evaluation.samples": (
        "num_generations_eval eval_n_samples_per_prompt evaluation.n evaluation.rollouts_per_example"
    ),
    "spec.evaluation.temperature": "eval_temperature",
    "spec.trainer.replicas": "nnodes num_nodes actor_num_nodes num_train_nodes",
    "spec.trainer.processesPerReplica": (
        "world_size nproc_per_node n_gpus_per_node actor_num_gpus_per_node num_train_gpus gpus_per_node"
    ),
    "spec.trainer.microBatchTokens": (
        "micro_batch_size micro_train_batch_size per_device_train_batch_size per_device_eval_batch_size "
        "train_micro_batch_size_per_gpu gradient_accumulation_steps micro_bsz actor_micro_bs ref_micro_bs "
        "critic_micro_bs ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu "
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_max_token_len_per_gpu "
        "micro_rollout_batch_size train_max_tokens_per_gpu rollout_max_tokens_per_gpu "
        "local_rollout_forward_batch_size"
    ),
    "spec.trainer.criticMicroBatchTokens": (
        "forward_micro_batch_size forward_micro_batch_size_per_gpu forward_max_token_len_per_gpu"
    ),
    "spec.trainer.sequenceParallelSize": "ulysses_sequence_parallel_size ring_attn_size cp",
    "spec.trainer.gradientCheckpointing": "enable_gradient_checkpointing ac",
    "spec.trainer.attention": (
        "attn_implementation attn flash_attn use_flash_attention_2 packing packing_samples padding_free "
        "use_remove_padding"
    ),
    "spec.trainer.kernels": "use_liger_kernel use_liger",
    "spec.trainer.deterministic": "full_determinism",
    "spec.experts.replay": "router_replay enable_router_replay enable_rollout_routing_replay",
    "spec.trainer.progressDeadlineSeconds": "ddp_timeout nccl_timeout dist_timeout_seconds",
    "spec.trainer.deepspeed": "deepspeed_config",
    "spec.trainer.deepspeed.zero_optimization.stage": "trainer.mode zero_stage",
    "spec.trainer.deepspeed.zero_optimization.offload_param": "param_offload fsdp_cpu_offload",
    "spec.trainer.deepspeed.zero_optimization.offload_optimizer": (
        "optimizer_offload adam_offload optim_cpu_offload"
    ),
    "spec.trainer.deepspeed.zero_optimization.zero_hpz_partition_size": "zpg",
    "spec.generator": "inference",
    "spec.generator.replicas": "vllm_num_engines num_infer_gpus num_infer_nodes dp",
    "spec.generator.dtype": "rollout.dtype",
    "spec.generator.tensorParallelSize": "tensor_model_parallel_size vllm_tensor_parallel_size tp",
    "spec.generator.concurrentRequests": "max_inflight_rollouts max_concurrent",
    "spec.generator.startupTimeoutSeconds": "vllm_server_timeout",
    "spec.generator.engineArguments": (
        "gpu_memory_utilization vllm_gpu_memory_utilization max_model_len vllm_max_model_length "
        "vllm_model_impl enforce_eager max_num_seqs max_num_batched_tokens enable_prefix_caching "
        "enable_chunked_prefill load_format disable_log_stats engine_kwargs cudagraph_capture_sizes "
        "kv_cache_dtype quantization pipeline_model_parallel_size data_parallel_size expert_parallel_size "
        "scheduling_policy all2all_backend enable_expert_parallel"
    ),
    "spec.weights": "weight_broadcast checkpoint_engine",
    "spec.weights.bucketMegabytes": "update_weights_bucket_megabytes",
    "spec.placement": "colocate_all_models",
    "spec.rollout.maxStaleness": "max_async_level max_off_policy_steps async_train async_queue_size",
    "spec.rollout.importance": (
        "rollout_is vllm_importance_sampling_correction vllm_importance_sampling_mode "
        "enable_vllm_is_correction"
    ),
    "spec.rollout.importanceCap": (
        "rollout_is_threshold vllm_importance_sampling_cap vllm_is_truncated_threshold"
    ),
    "spec.rollout.importanceMask": "rollout_rs rollout_rs_threshold",
    "spec.rollout.proximal": "bypass_mode",
    "spec.rollout.oversampling": "over_sample_rate over_sampling_batch_size",
    "spec.pretraining.coefficient": "ptx_coef",
    "spec.ppo.gaeLambda": "lam lambd",
    "spec.ppo.clipValue": "cliprange_value value_clip",
    "spec.ppo.whitenAdvantages": "norm_adv",
    "spec.ppo.valueMinibatchSize": "value_minibatch",
    "spec.ppo.criticWarmupSteps": "critic_warmup freezing_actor_steps",
    "spec.dpo.loss": "dpo.loss_type",
    "spec.dpo.beta": "dpo.beta",
    "spec.dpo.margin": "simpo_gamma dpo.gamma",
    "spec.dpo.likelihoodCoefficient": "rpo_alpha nll_loss_coef pref_ftx cpo_alpha",
    "spec.onlineDpo.loss": "online_dpo.loss_type",
    "spec.onlineDpo.beta": "online_dpo.beta",
    "spec.kto.beta": "kto.beta",
    "spec.data.stepSeparator": "step_separator",
    "spec.grpo.clipCov": "clip_cov_ratio",
    "spec.grpo.klCov": "kl_cov_ratio",
    "lossAggregation": "loss_type loss_agg_mode",
    "klCoefficient": "teacher_tau beta kl_coef kl_coeff init_kl_coef init_kl_coeff kl_ctrl kl_ctl kl_beta kl_loss_coef",
    "klIn": "use_kl_loss use_kl_in_reward",
    "klEstimator": "kl_loss_type kl_penalty",
    "klTarget": "target_kl adap_kl_ctrl",
    "klHorizon": "horizon",
    "clipRatio": "clip_range cliprange eps_clip epsilon clip_ratio_low eps_clip_low_high",
    "clipRatioHigh": "epsilon_high eps_clip_low_high",
    "spec.optimizer.epsilon": "adam_epsilon epsilon",
    "dualClip": "clip_ratio_c delta",
    "stopRatio": "ratio_threshold",
    "topEntropy": "top_entropy_quantile",
    "normalize": "multi_objective_aggregation",
    "klCorrected": "use_bias_correction_kl",
    "entropyCoefficient": "entropy_coef entropy_coeff entropy_loss_coef",
    "referenceEma": "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
    "overlongFilter": "mask_truncated_completions",
    "overlongBuffer": "overlong_buffer_len missing_eos_penalty",
    "overlongPenalty": "overlong_penalty_factor missing_eos_penalty",
    "dynamicSampling": "filter_groups max_num_gen_batches dynamic_filtering online_difficulty_filtering",
    "everySteps": "every interval freq frequency",
    "minibatchSize": (
        "mini_batch_size ppo_mini_batch_size ppo_minibatch num_mini_batches local_mini_batch_size "
        "steps_per_generation train_batch_size"
    ),
    "epochs": "ppo_epochs num_ppo_epochs num_iterations max_epochs",
    "gpu.count": "gpus num_gpus",
    "resources.requests": "cpu cpus memory",
}
"""Ends of fields' paths -> names elsewhere; `section.name` has this meaning in that section, or under the algorithm of
that name. Where only the last key of ours stands, each algorithm's section has the field."""


def _by_name() -> dict[str, tuple[str, ...]]:
    by_name: dict[str, tuple[str, ...]] = {}
    for field, names in _NAMES.items():
        for name in names.split():
            by_name[plain(name)] = (*by_name.get(plain(name), ()), field)
    return by_name


OTHER_NAMES = _by_name()
"""A name as `plain` has it -> the ends of our fields' paths, of which more than one if it is ambiguous."""
OWNED = {
    "train_batch_size": "spec.ppo.minibatchSize, or that of another algorithm, or spec.data.promptsPerStep",
    "train_micro_batch_size_per_gpu": "spec.trainer.microBatchTokens",
    "gradient_accumulation_steps": "spec.trainer.microBatchTokens (accumulation follows from it)",
    "gradient_clipping": "spec.optimizer.gradientClip",
    "scheduler": "spec.optimizer.schedule and spec.optimizer.warmupSteps",
}
"""DeepSpeed keys that the job sets itself -> the manifest's fields for them."""
