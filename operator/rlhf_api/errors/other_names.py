"""Names of a manifest's fields in other systems: TRL, verl, OpenRLHF, ChatLearn, ReaL, XTuner, DeepSpeed. For
messages about unknown fields alone: none of these names is accepted."""

_NAMES = {
    "metadata.name": "experiment_name",
    "spec.steps": "max_steps total_steps train_steps num_steps num_train_epochs total_episodes num_episode",
    "spec.seed": "random_seed",
    "spec.environment": "env env_vars",
    "spec.trackers": "report_to logger",
    "spec.model.policy": "model_name model_path model_name_or_path pretrain actor",
    "spec.model.reference": "ref_model ref_policy",
    "spec.model.reward": "reward_model reward_model_path",
    "spec.model.dtype": "torch_dtype precision",
    "spec.model.lora.policy": "enable_lora",
    "spec.model.lora.policy.rank": "lora_rank lora_dim lora_r",
    "spec.model.lora.policy.alpha": "lora_alpha lora_scaling",
    "spec.model.lora.policy.targetModules": "lora_layer lora_target_modules",
    "spec.data.train": "dataset dataset_name train_path train_files prompt_data prompts ppo_datas",
    "spec.data.promptsPerStep": "batch_size train_batch_size rollout_batch_size sample_per_episode",
    "spec.data.samplesPerEpoch": "num_samples_each_epoch",
    "spec.data.maxPromptLength": "max_length max_seq_len prompt_max_len",
    "spec.data.overlong": "filter_overlong_prompts truncation",
    "spec.data.chatTemplateKwargs": "apply_chat_template_kwargs",
    "spec.sampling.responsesPerPrompt": "num_generations num_return_sequences n_samples_per_prompt group_size",
    "spec.sampling.maxNewTokens": "max_tokens max_completion_length max_response_length response_length "
    "generate_max_len",
    "spec.sampling.minNewTokens": "min_tokens",
    "spec.sampling.responseEndId": "eos_token_id",
    "spec.sampling.stop": "stop_strings",
    "spec.optimizer.learningRate": "lr actor_lr actor_learning_rate",
    "spec.optimizer.criticLearningRate": "critic_lr",
    "spec.optimizer.schedule": "lr_scheduler lr_scheduler_type lr_decay_rate",
    "spec.optimizer.gradientClip": "max_grad_norm grad_clip gradient_clipping",
    "spec.reward.functions": "reward_funcs reward_functions reward_function",
    "spec.reward.clip": "clip_reward_min clip_reward_max",
    "spec.reward.scale": "reward_scale",
    "spec.reward.fineGrained": "fine_grained_rm",
    "spec.reward.microBatchTokens": "reward_micro_bs",
    "spec.checkpoint.everySteps": "save_steps save_interval save_freq",
    "spec.checkpoint.keepLast": "save_total_limit",
    "spec.evaluation.everySteps": "eval_steps test_freq",
    "spec.trainer.replicas": "nnodes num_nodes",
    "spec.trainer.processesPerReplica": "world_size nproc_per_node n_gpus_per_node",
    "spec.trainer.microBatchTokens": "micro_batch_size micro_train_batch_size per_device_train_batch_size "
    "train_micro_batch_size_per_gpu gradient_accumulation_steps micro_bsz actor_micro_bs ref_micro_bs critic_micro_bs",
    "spec.trainer.deepspeed": "deepspeed_config",
    "spec.trainer.deepspeed.zero_optimization.stage": "mode zero_stage",
    "spec.generator.tensorParallelSize": "tensor_model_parallel_size",
    "spec.generator.engineArguments": "gpu_memory_utilization",
    "spec.ppo.gaeLambda": "lam lambd",
    "spec.ppo.clipValue": "cliprange_value value_clip",
    "spec.ppo.whitenAdvantages": "norm_adv",
    "spec.ppo.valueMinibatchSize": "value_minibatch",
    "lossAggregation": "loss_type",
    "klCoefficient": "kl_coef kl_coeff init_kl_coef init_kl_coeff kl_ctl kl_beta",
    "clipRatio": "clip_range cliprange eps_clip",
    "entropyCoefficient": "entropy_coef entropy_coeff",
    "everySteps": "every interval freq frequency",
    "minibatchSize": "mini_batch_size ppo_mini_batch_size ppo_minibatch num_mini_batches",
    "epochs": "ppo_epochs num_ppo_epochs",
    "gpu.count": "gpus num_gpus",
    "resources.requests": "cpu cpus memory",
}
"""Ends of fields' paths -> names elsewhere. Where only the last key stands, each algorithm's section has the field."""


def plain(key: str) -> str:
    """A key in lower case without `_` and `-`, in which spellings differ."""
    return key.replace("_", "").replace("-", "").lower()


OTHER_NAMES = {plain(name): field for field, names in _NAMES.items() for name in names.split()}
"""A name as `plain` has it -> the end of our field's path."""
OWNED = {
    "train_batch_size": "spec.ppo.minibatchSize, or that of another algorithm, or spec.data.promptsPerStep",
    "train_micro_batch_size_per_gpu": "spec.trainer.microBatchTokens",
    "gradient_accumulation_steps": "spec.trainer.microBatchTokens (accumulation follows from it)",
    "gradient_clipping": "spec.optimizer.gradientClip",
    "scheduler": "spec.optimizer.schedule and spec.optimizer.warmupSteps",
}
"""DeepSpeed keys that the job sets itself -> the manifest's fields for them."""
