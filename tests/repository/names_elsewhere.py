"""Names in the published configurations of other systems, at the commits that docs/guides/coming-from.md has."""

NAMES = {
    # GRPOConfig, PPOConfig, DPOConfig, CPOConfig, SFTConfig, ModelConfig, what examples set of TrainingArguments
    "TRL": """
        model_init_kwargs disable_dropout cast_lm_head_to_fp32 remove_unused_columns num_generations
        num_generations_eval max_completion_length ds3_gather_for_generation shuffle_dataset generation_batch_size
        steps_per_generation temperature top_p top_k min_p generation_kwargs chat_template_kwargs repetition_penalty
        use_transformers_paged cache_implementation use_vllm vllm_mode vllm_model_impl vllm_structured_outputs_regex
        vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port
        vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size vllm_enable_sleep_mode beta
        num_iterations epsilon delta epsilon_high sapo_temperature_neg sapo_temperature_pos importance_sampling_level
        reward_weights multi_objective_aggregation scale_rewards loss_type mask_truncated_completions sync_ref_model
        ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile max_tool_calling_iterations
        vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_cap
        off_policy_mask_threshold use_bias_correction_kl log_completions num_completions_to_print log_unique_prompts
        log_completions_hub_repo
        run_name dataset_num_proc num_mini_batches total_episodes local_rollout_forward_batch_size
        num_sample_generations response_length stop_token stop_token_id missing_eos_penalty sft_model_path world_size
        num_total_batches micro_batch_size local_batch_size batch_size local_mini_batch_size mini_batch_size push_to_hub
        exp_name reward_model_path model_adapter_name ref_adapter_name num_ppo_epochs whiten_rewards kl_coef
        kl_estimator cliprange vf_coef cliprange_value gamma lam
        ref_model_init_kwargs force_use_ref_model use_logits_to_keep padding_value label_pad_token_id max_prompt_length
        max_length truncation_mode padding_free precompute_ref_log_probs precompute_ref_batch_size tools
        f_divergence_type f_alpha_divergence_coef reference_free label_smoothing use_weighting rpo_alpha discopop_tau
        simpo_gamma cpo_alpha generate_during_eval
        chat_template_path dataset_text_field dataset_kwargs eos_token packing packing_strategy pad_to_multiple_of
        eval_packing completion_only_loss assistant_only_loss activation_offloading pad_token
        model_name_or_path model_revision torch_dtype trust_remote_code attn_implementation use_peft lora_r lora_alpha
        lora_dropout lora_target_modules lora_modules_to_save load_in_8bit load_in_4bit bnb_4bit_quant_type
        use_bnb_nested_quant
        max_steps num_train_epochs per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps
        learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2
        adam_epsilon max_grad_norm optim bf16 fp16 gradient_checkpointing torch_compile use_liger_kernel deepspeed fsdp
        ddp_timeout seed data_seed full_determinism output_dir logging_dir report_to logging_steps save_steps
        save_strategy save_only_model save_total_limit load_best_model_at_end metric_for_best_model
        resume_from_checkpoint eval_strategy eval_steps hub_model_id dataloader_num_workers group_by_length
        neftune_noise_alpha reward_funcs train_dataset eval_dataset
    """,
    # without _target_, profilers, and what is inside of a section that has a row
    "verl": """
        optimizer_impl lr lr_warmup_steps_ratio total_training_steps weight_decay lr_warmup_steps betas clip_grad
        min_lr_ratio num_cycles lr_scheduler_type warmup_style wrap_policy param_offload optimizer_offload
        offload_policy reshard_after_forward fsdp_size forward_prefetch model_dtype use_orig_params full_determinism
        ulysses_sequence_parallel_size entropy_from_logits_with_chunking use_torch_compile entropy_checkpointing
        pad_to_length strategy qat turbo_config ppo_mini_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu
        use_dynamic_bsz ppo_max_token_len_per_gpu clip_ratio clip_ratio_low clip_ratio_high tau_pos tau_neg
        freeze_vision_tower policy_loss clip_cov_ratio kl_cov_ratio clip_ratio_c loss_agg_mode loss_scale_factor
        entropy_coeff calculate_entropy use_kl_loss use_prefix_grouper kl_loss_coef kl_loss_type ppo_epochs shuffle
        data_loader_seed save_contents load_contents async_save router_replay grad_clip use_remove_padding
        log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz
        log_prob_max_token_len_per_gpu name mode nnodes n_gpus_per_node temperature top_k top_p prompt_length
        response_length dtype gpu_memory_utilization ignore_eos enforce_eager cudagraph_capture_sizes free_cache_engine
        tensor_model_parallel_size data_parallel_size expert_parallel_size pipeline_model_parallel_size
        max_num_batched_tokens max_model_len max_num_seqs enable_chunked_prefill enable_prefix_caching logprobs_mode
        scheduling_policy load_format layered_summon disable_log_stats do_sample n over_sample_rate engine_kwargs
        val_kwargs multi_turn calculate_log_probs agent checkpoint_engine update_weights_bucket_megabytes trace
        skip_tokenizer_init enable_rollout_routing_replay prometheus quantization disaggregation path hf_config_path
        tokenizer_path use_shm trust_remote_code custom_chat_template external_lib override_config
        enable_gradient_checkpointing enable_activation_offload lora_rank lora_alpha target_modules exclude_modules
        lora_adapter_path use_liger use_fused_kernels tiled_mlp mtp hybrid_engine nccl_timeout train_files val_files
        train_max_samples val_max_samples prompt_key reward_fn_key max_prompt_length max_response_length
        train_batch_size gen_batch_size val_batch_size return_raw_input_ids return_raw_chat return_full_prompt
        dataloader_num_workers validation_shuffle filter_overlong_prompts filter_overlong_prompts_workers truncation
        image_key video_key audio_key custom_cls apply_chat_template_kwargs forward_max_token_len_per_gpu
        cliprange_value forward_micro_batch_size forward_micro_batch_size_per_gpu custom_reward_function reward_model
        num_workers reward_manager sandbox_fusion rollout_is rollout_is_threshold rollout_rs rollout_rs_threshold
        bypass_mode gamma lam adv_estimator norm_adv_by_std_in_grpo filter_groups max_num_gen_batches use_kl_in_reward
        kl_penalty kl_ctrl horizon target_kl use_pf_ppo pf_ppo distillation transfer_queue balance_batch total_epochs
        project_name experiment_name logger log_val_generations rollout_data_dir validation_data_dir save_freq
        esi_redundant_time resume_mode resume_from_path val_before_train val_only test_freq critic_warmup
        default_hdfs_dir default_local_dir max_actor_ckpt_to_keep max_critic_ckpt_to_keep
        ray_wait_register_center_timeout device global_profiler skip ray_kwargs
    """,
    "OpenRLHF": """
        ref_num_nodes ref_num_gpus_per_node reward_num_nodes reward_num_gpus_per_node colocate_actor_ref actor_num_nodes
        actor_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node colocate_critic_reward colocate_all_models
        vllm_num_engines vllm_tensor_parallel_size vllm_sync_backend vllm_sync_with_ray enable_prefix_caching
        enforce_eager vllm_enable_sleep vllm_gpu_memory_utilization enable_vllm_is_correction
        vllm_is_truncated_threshold async_train async_queue_size eval_steps save_steps logging_steps ckpt_path
        save_hf_ckpt disable_ds_ckpt max_ckpt_num max_ckpt_mem load_checkpoint use_ds_universal_ckpt local_rank
        zero_stage gradient_checkpointing deepcompile bf16 enable_ema ema_beta zpg adam_offload actor_init_on_gpu
        attn_implementation use_liger_kernel grad_accum_dtype overlap_comm gradient_checkpointing_use_reentrant
        disable_fast_tokenizer deepspeed_enable_sleep ds_tensor_parallel_size packing_samples use_dynamic_batch
        rollout_max_tokens_per_gpu train_max_tokens_per_gpu load_in_4bit lora_rank lora_alpha target_modules
        lora_dropout save_path num_episodes rollout_batch_size vllm_generate_batch_size rollout_tasks_per_gpu
        micro_rollout_batch_size max_epochs prompt_max_len generate_max_len max_len max_samples max_norm l2 ptx_coef
        eps_clip eps_clip_low_high dual_clip value_clip lambd gamma micro_train_batch_size train_batch_size
        normalize_reward top_p temperature seed full_determinism freezing_actor_steps n_samples_per_prompt
        save_value_network actor_learning_rate critic_learning_rate lr_warmup_ratio lr_scheduler kl_target kl_horizon
        init_kl_coef policy_loss_type kl_estimator aux_loss_coef entropy_loss_coef adam_betas reward_clip_range
        advantage_estimator use_kl_loss no_advantage_std_norm overlong_buffer_len overlong_penalty_factor
        ring_attn_size ring_head_stride pretrain reward_pretrain remote_rm_url critic_pretrain value_head_prefix
        ref_reward_offload agent_func_path prompt_data prompt_data_probs prompt_split eval_dataset eval_split
        eval_temperature eval_n_samples_per_prompt input_key label_key input_template apply_chat_template use_wandb
        wandb_org wandb_group wandb_project wandb_run_name dynamic_filtering dynamic_filtering_reward_range
        use_tensorboard perf use_ms
    """,
    # what examples set, and each section
    "prime-rl": """
        max_steps seq_len max_model_len max_async_level max_off_policy_steps output_dir clean_output_dir dry_run
        bench log name ac ac_offloading attn compile fsdp_cpu_offload optim_cpu_offload reshard_after_forward
        dp_replicate ep tp cp optimization_dtype fused_lm_head_chunk_size trust_remote_code rank alpha dropout
        target_modules modules_to_save optim lr weight_decay max_norm betas1 betas2 scheduler min_lr decay_steps
        ckpt resume_step keep_last keep_interval kl_tau adv_tau teacher_tau ipo_mask_low ipo_mask_high
        dist_timeout_seconds trace_path memory_profiler_path heartbeat metrics_server max_concurrent_runs
        enable_router_replay broadcast_at_step_zero weight_broadcast wandb orchestrator batch_size
        token_batch_size rollouts_per_example max_inflight_rollouts max_concurrent oversampling_factor
        tasks_per_minute strict_async_level use_token_client teacher_model advantage filters buffer verification
        online_difficulty_filtering temperature max_tokens min_tokens repetition_penalty extra_body eval val
        num_examples eval_base_model inference dp gpu_memory_utilization enforce_eager enable_prefix_caching
        quantization kv_cache_dtype tool_call_parser enable_expert_parallel all2all_backend deployment
        num_train_gpus num_infer_gpus gpus_per_node num_train_nodes num_infer_nodes slurm
    """,
}
"""A system -> the names of its settings, each without its section."""
