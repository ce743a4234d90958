"""The names of all fields of the requests of other servers, as read in the sources that `peer_fields` names."""

from __future__ import annotations

VLLM, SGLANG, LLAMA_CPP, OLLAMA = "vLLM", "SGLang", "llama.cpp", "Ollama"
NAMES = {
    VLLM: (
        "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template "
        "chat_template_kwargs continue_final_message documents ec_transfer_params echo frequency_penalty "
        "ignore_eos include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logit_bias "
        "logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs messages min_p "
        "min_tokens mm_processor_kwargs model n parallel_tool_calls presence_penalty priority prompt "
        "prompt_embeds prompt_logprobs reasoning_effort repetition_detection repetition_penalty request_id "
        "response_format return_mm_kwargs return_prompt_text return_token_ids return_token_offsets "
        "return_tokens_as_token_ids routed_experts_prompt_start seed session_id skip_special_tokens "
        "spaces_between_special_tokens stop stop_token_ids stream stream_interval stream_options "
        "structured_outputs suffix temperature thinking_token_budget tool_choice tools top_k top_logprobs "
        "top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking "
    ),
    SGLANG: (
        "beam_width best_of cache_salt chat_template_kwargs continue_final_message custom_labels "
        "custom_logit_processor custom_params data_parallel_rank ebnf ebnf_full_assistant echo extra_key "
        "frequency_penalty ignore_eos images_config input_ids is_normalized json_schema logit_bias logprobs "
        "lora_path max_completion_tokens max_dynamic_patch max_new_tokens max_tokens messages "
        "min_dynamic_patch min_new_tokens min_p min_tokens mm_processor_kwargs model n no_stop_trim "
        "parallel_tool_calls presence_penalty priority prompt reasoning_effort regex repetition_penalty "
        "response_format return_cached_tokens_details return_flat_raw_output_top_logprobs "
        "return_flat_raw_top_logprobs_b64 return_hidden_states return_input_ids_in_sglext return_meta_info "
        "return_output_ids_in_sglext return_prompt_token_ids return_routed_experts return_sampling_mask "
        "return_spec_tokens_details return_token_ids rid routed_experts_start_len sampling_logprobs_mode "
        "sampling_seed seed separate_reasoning session_id session_params skip_special_tokens "
        "spaces_between_special_tokens stop stop_regex stop_regex_max_len stop_regex_strs stop_str_max_len "
        "stop_strs stop_token_ids stream stream_interval stream_options stream_reasoning structural_tag "
        "suffix task temperature thinking tool_choice tools top_k top_logprobs top_p use_audio_in_video user "
        "video_config watermark "
    ),
    LLAMA_CPP: (
        "adaptive_decay adaptive_target add_generation_prompt backend_sampling cache_prompt chat_format "
        "chat_parser chat_template_kwargs continue_final_message dry_allowed_length dry_base dry_multiplier "
        "dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range echo frequency_penalty "
        "generation_prompt grammar grammar_lazy grammar_triggers grammar_type ignore_eos json_schema "
        "logit_bias logprobs lora max_completion_tokens max_tokens messages min_keep min_p mirostat "
        "mirostat_eta mirostat_tau n n_cache_reuse n_cmpl n_discard n_indent n_keep n_predict n_probs "
        "parallel_tool_calls parse_tool_calls post_sampling_probs presence_penalty preserved_tokens prompt "
        "reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message "
        "reasoning_budget_start_tag reasoning_budget_tokens reasoning_control reasoning_effort "
        "reasoning_format repeat_last_n repeat_penalty response_fields response_format return_progress "
        "return_tokens samplers seed speculative.n_max speculative.n_min speculative.ngram_min_hits "
        "speculative.ngram_size_m speculative.ngram_size_n speculative.p_min speculative.type "
        "sse_ping_interval stop stream stream_options t_max_predict_ms t_max_prompt_ms temperature "
        "thinking_budget_tokens timings_per_token tool_choice tools top_k top_logprobs top_n_sigma top_p "
        "typical_p verbose xtc_probability xtc_threshold "
    ),
    OLLAMA: (
        "_debug_render_only context draft_num_predict format frequency_penalty images keep_alive logprobs "
        "main_gpu messages min_p mirostat mirostat_eta mirostat_tau model num_batch num_ctx num_gpu num_keep "
        "num_predict num_thread options penalize_newline presence_penalty prompt raw repeat_last_n "
        "repeat_penalty seed shift stop stream suffix system temperature template tfs_z think tools top_k "
        "top_logprobs top_p truncate typical_p use_mmap "
    ),
}
"""The names, separated by spaces."""

LEFT_OUT = {
    *("messages", "prompt", "model", "images", "options", "tools"),
    *("images_config", "video_config", "use_audio_in_video", "min_dynamic_patch", "max_dynamic_patch"),
    *("ebnf_full_assistant", "is_normalized", "stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len"),
}
"""The input, what is only for images, sound and video, and what SGLang computes itself."""
