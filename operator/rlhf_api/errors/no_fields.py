"""Settings of other systems that a manifest has no field for, with what happens by itself or what to do instead."""

from .similar import plain

_ANSWERS = (
    # by itself
    (
        "use_vllm vllm_mode hybrid_engine rollout.name rollout.mode "
        "use_transformers_paged cache_implementation",
        "remove it: vLLM generates, on GPUs of its own or, by spec.placement, on the trainer's",
    ),
    (
        "vllm_enable_sleep_mode vllm_enable_sleep deepspeed_enable_sleep free_cache_engine",
        "remove it: vLLM sleeps while the trainer computes where spec.placement has them share GPUs in turns",
    ),
    (
        "vllm_server_host vllm_server_port vllm_server_base_url vllm_group_port vllm_sync_backend "
        "vllm_sync_with_ray",
        "remove it: the job starts its servers and connects to them",
    ),
    (
        "logging_steps logging_strategy logging_first_step",
        "remove it: every step is in metrics.jsonl and goes to spec.trackers",
    ),
    (
        "validation_data_dir log_val_generations generate_during_eval",
        "remove it: evaluation.jsonl has responses to held-out prompts",
    ),
    (
        "val_before_train eval_on_start eval_base_model",
        "remove it: an evaluation runs before the first step, every spec.evaluation.everySteps and after "
        "the last",
    ),
    (
        "shuffle shuffle_dataset dataset_num_proc dataloader_num_workers dataloader_drop_last "
        "dataloader_pin_memory remove_unused_columns filter_overlong_prompts_workers val_batch_size "
        "validation_shuffle return_raw_chat return_raw_input_ids return_full_prompt",
        "remove it: rows are shuffled by spec.seed and read as they are needed, with all their fields",
    ),
    (
        "group_by_length use_dynamic_bsz log_prob_use_dynamic_bsz use_dynamic_batch balance_batch "
        "pad_to_multiple_of packing_strategy eval_packing pad_to_length",
        "remove it: micro-batches are formed and balanced by tokens, at most spec.trainer.microBatchTokens",
    ),
    (
        "pad_token pad_token_id padding_value padding_side label_pad_token_id",
        "remove it: padding is internal and never trained on",
    ),
    ("completion_only_loss assistant_only_loss", "remove it: the loss is over response tokens alone"),
    (
        "apply_chat_template input_template",
        "remove it: {messages} go through the chat template, the text of {prompt} stays as it is",
    ),
    ("disable_dropout lora_dropout dropout", "remove it: no model has dropout"),
    (
        "ds3_gather_for_generation layered_summon",
        "remove it: weights go to the generators at any stage of ZeRO",
    ),
    (
        "calculate_log_probs calculate_entropy logprobs_mode entropy_from_logits_with_chunking "
        "entropy_checkpointing use_logits_to_keep use_fused_kernels fused_lm_head_chunk_size",
        "remove it: log-probabilities and entropies are computed from the logits in float32, in chunks",
    ),
    (
        "save_contents load_contents save_only_model async_save disable_ds_ckpt use_ds_universal_ckpt "
        "del_local_ckpt_after_load skip_progress skip_dataloader",
        "remove it: a checkpoint has all that a run needs to go on",
    ),
    ("save_value_network", "remove it: the work directory's critic/ has it"),
    ("device local_rank use_cpu no_cuda", "remove it: GPUs are used where there are some"),
    (
        "ray_kwargs ray_init ray_wait_register_center_timeout colocate_actor_ref colocate_critic_reward "
        "actor_init_on_gpu",
        "remove it: a job has no Ray; each role has processes of its own",
    ),
    (
        "critic_num_nodes critic_num_gpus_per_node",
        "remove it: the critic has the policy's ranks, spec.trainer.replicas x "
        "spec.trainer.processesPerReplica",
    ),
    (
        "precompute_ref_log_probs precompute_ref_batch_size force_use_ref_model ref_reward_offload",
        "remove it: the reference is a role of its own, spec.reference",
    ),
    (
        "gradient_checkpointing_kwargs gradient_checkpointing_use_reentrant",
        "remove it: spec.trainer.gradientCheckpointing takes the variant without reentrance",
    ),
    (
        "stop_token eos_token ignore_eos",
        "remove it: a response ends at the tokenizer's end token; spec.sampling.responseEndId adds another",
    ),
    ("loss_scale_factor", "remove it: lossAggregation constant divides by spec.sampling.maxNewTokens"),
    (
        "dynamic_filtering_reward_range",
        "remove it: dynamicSampling replaces groups whose scores are all equal",
    ),
    (
        "disable_fast_tokenizer skip_tokenizer_init use_token_client",
        "remove it: texts are tokenized once, by the tokenizer of the model's files",
    ),
    ("broadcast_at_step_zero", "remove it: generators start with the weights of spec.model.policy"),
    ("log heartbeat", "remove it: every role writes a log, and says at each step that it lives"),
    (
        "metrics_server prometheus",
        "remove it: every run serves Prometheus metrics; `rlhf run --metrics-port N` sets the port",
    ),
    ("clean_output_dir", "`rlhf run --overwrite` deletes the earlier run first"),
    ("dry_run", "`rlhf validate FILE` checks a manifest without running it"),
    # elsewhere
    (
        "output_dir logging_dir save_path overwrite_output_dir",
        "`rlhf run --workdir DIR` sets it, on a cluster spec.workspace",
    ),
    (
        "importance_sampling_level",
        "spec.algorithm decides it: gspo has one ratio for a response, the others one for a token",
    ),
    (
        "scale_rewards norm_adv_by_std_in_grpo no_advantage_std_norm",
        "spec.algorithm decides it: dr_grpo divides by no standard deviation; grpo has standardDeviation",
    ),
    (
        "repetition_penalty presence_penalty frequency_penalty",
        "it applies to evaluation alone, as a field of spec.evaluation: training does not compute with it",
    ),
    (
        "do_sample num_beams",
        "responses are always sampled; for greedy evaluation set spec.evaluation.temperature: 0",
    ),
    (
        "judge",
        "rewards score each response by itself: write `def score(prompts, responses, rows)` and name it in "
        "spec.reward.functions",
    ),
    ("reward_fn_key", "a reward function gets the whole row, and chooses itself"),
    (
        "train_max_samples val_max_samples max_samples prompt_split eval_split num_examples",
        "all rows count; for a part of them write a file, or a function in spec.data.train",
    ),
    (
        "optim optimizer_impl optim_args momentum nesterov override_optimizer_config",
        "the optimizer is AdamW, or Muon for matrices (spec.optimizer.matrices: muon); spec.optimizer has its "
        "settings, such as moments: 8bit",
    ),
    (
        "fsdp fsdp_config fsdp_size strategy reshard_after_forward wrap_policy forward_prefetch "
        "offload_policy dp_replicate ds_tensor_parallel_size trainer.tp model.tp model.ep use_orig_params",
        "the trainer shards by ZeRO: spec.trainer.deepspeed.zero_optimization.stage",
    ),
    (
        "torch_compile use_torch_compile compile deepcompile",
        "models are not compiled; spec.trainer.kernels has fused kernels",
    ),
    (
        "activation_offloading enable_activation_offload ac_offloading",
        "activations stay on the GPU; spec.trainer.gradientCheckpointing keeps fewer",
    ),
    (
        "model_init_kwargs ref_model_init_kwargs override_config hf_config_path",
        "the model's own config.json holds; spec.model.create makes another",
    ),
    (
        "trust_remote_code",
        "code beside weights never runs; spec.model.architectures names classes of your own",
    ),
    ("model_revision revision", "download that revision and give its directory in spec.model.policy"),
    (
        "lora_modules_to_save modules_to_save exclude_modules lora_adapter_path "
        "model_adapter_name ref_adapter_name",
        "spec.model.lora has rank, alpha, rankStabilized, weightDecomposed and targetModules; the adapter always "
        "starts anew",
    ),
    (
        "load_in_4bit load_in_8bit bnb_4bit_quant_type use_bnb_nested_quant qat",
        "models are trained in spec.model.dtype, never quantized",
    ),
    (
        "push_to_hub hub_model_id hub_strategy hub_token hub_private_repo",
        "upload policy/ of the work directory yourself: it is in Hugging Face format",
    ),
    ("vf_coef", "the critic has a loss and an optimizer of its own: spec.optimizer.criticLearningRate"),
    (
        "normalize_reward whiten_rewards use_score_scaling use_score_norm",
        "rewards are not normalised; spec.reward.scale is a fixed factor",
    ),
    (
        "verification",
        "rewards are dealt out in spec.reward: a model in spec.model.reward, functions in "
        "spec.reward.functions",
    ),
    (
        "actor_rollout_ref",
        "verl's actor, rollout and reference are spec.trainer, spec.generator, spec.sampling, "
        "spec.reference and the algorithm's section",
    ),
    (
        "orchestrator",
        "prime-rl's orchestrator is spec.data, spec.sampling, spec.reward and the algorithm's section",
    ),
    (
        "orchestrator.env train.env",
        "an environment of verifiers is spec.environment: {path: verifiers, settings: {taskset: {id: NAME}}}",
    ),
    (
        "deployment",
        "its number of nodes and GPUs is that of the roles: spec.trainer.replicas, spec.generator.replicas",
    ),
    (
        "lr_scheduler_kwargs num_cycles",
        "spec.optimizer has schedule, warmupSteps, decaySteps and floor; a cosine has half a cycle",
    ),
    ("val_only", "evaluations are part of a run: spec.evaluation.everySteps"),
    (
        "use_prefix_grouper tiled_mlp "
        "mtp turbo_config disaggregation transfer_queue skip trace use_shm "
        "oversampling_factor esi_redundant_time max_concurrent_runs ring_head_stride value_head_prefix "
        "perf grad_accum_dtype rollout_tasks_per_gpu tasks_per_minute strict_async_level",
        "remove it: no part of a job is like it",
    ),
    # not at all
    ("max_ckpt_mem", "spec.checkpoint.keepLast bounds the number of checkpoints; nothing bounds their size"),
    (
        "sapo_temperature_pos sapo_temperature_neg tau_pos tau_neg "
        "off_policy_mask_threshold use_pf_ppo pf_ppo "
        "advantage adv_tau kl_tau ipo_mask_low ipo_mask_high filters buffer easy_threshold hard_threshold "
        "calculate_sum_pi_squared",
        "no built-in algorithm has it; an algorithm of your own may (docs/guides/own-algorithm.md)",
    ),
    (
        "f_divergence_type f_alpha_divergence_coef reference_free use_weighting discopop_tau",
        "dpo has four losses: sigmoid, ipo, simpo and orpo",
    ),
    (
        "generation_kwargs extra_body",
        "nucleus, min-p and top-k sampling and structured outputs are all: training computes with the same mask",
    ),
    (
        "tools tool_config_path function_tool_path tool_call_parser",
        "tools are methods of the class that spec.environment.path names (docs/guides/environments.md)",
    ),
    ("image_key video_key audio_key freeze_vision_tower mm_processor_kwargs", "models read text alone"),
    ("enable_ema ema_beta", "no average of the trained weights is kept"),
    ("neftune_noise_alpha aux_loss_coef", "training adds neither noise nor a balancing loss"),
    (
        "profiler global_profiler trace_path memory_profiler_path bench",
        "nothing is profiled; metrics.jsonl has the seconds of each part of a step",
    ),
    ("use_ms", "models come from the Hugging Face hub or a directory"),
    ("slurm", "jobs run on Kubernetes or on one machine"),
)
"""(names that `OTHER_NAMES` does not have, the end of the message about them)"""

ANSWERS = {plain(name): answer for names, answer in _ANSWERS for name in names.split()}
"""A name as `plain` has it, with its section where it has one -> what to do instead."""
