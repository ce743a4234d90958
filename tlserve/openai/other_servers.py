"""Fields that only other servers have: those of vLLM, SGLang, llama.cpp and Ollama that could change an answer.

Owns which of them are refused, and with which values they ask for nothing. None is ignored without a word: a field of another
server that this one serves is in `tlserve.openai.field_tables`. Does not know endpoints.

Sources: the request types and sampling parameters of vLLM and SGLang; the page of llama.cpp's server; the API page of Ollama.
"""

from __future__ import annotations

from typing import Any

from tlserve.api.fields import Table, inert, later

Number = int | float
AnyObject = dict[str, Any]
AnyList = list[Any]

_VLLM: Table = {
    "spaces_between_special_tokens": inert(bool, "true or false"),
    "length_penalty": later(Number, "1", 1),
    "early_stopping": later(bool | str, "false", False),
    "logits_processors": later(AnyList, "[]", []),
    "thinking_token_budget": later(int, ""),
    "priority": later(int, "0, or the header X-TL-Priority", 0),
    "chat_template": later(str, ""),
    "documents": later(AnyList, "[]", []),
    "guided_json_object": later(bool, "false", False),
    "guided_decoding_backend": inert(str, "a string"),
    "guided_whitespace_pattern": later(str, ""),
    "kv_transfer_params": later(AnyObject, "{}", {}),
    "vllm_xargs": later(AnyObject, "{}", {}),
    "mm_processor_kwargs": later(AnyObject, "{}", {}),
    "media_io_kwargs": later(AnyObject, "{}", {}),
    "truncation_side": later(str, '"left"', "left"),
    "logprob_token_ids": later(list[int], ""),
    "watermarking": later(bool, "false", False),
    "repetition_detection": later(AnyObject, ""),
    "include_reasoning": later(bool, "true", True),
    "return_prompt_text": later(bool, "false", False),
    "stream_interval": later(int, "1", 1),
    "ec_transfer_params": later(AnyObject, "{}", {}),
    "prompt_embeds": later(str | AnyList, ""),
    "return_token_offsets": inert(bool, "true or false"),
    "return_mm_kwargs": inert(bool, "true or false"),
    "routed_experts_prompt_start": inert(int, "an integer"),
}

_SGLANG: Table = {
    "ebnf": later(str, '""', ""),
    "structural_tag": later(str, '""', ""),
    "min_new_tokens": later(int, "0", 0),
    "stop_regex": later(str | AnyList, "[]", []),
    "no_stop_trim": later(bool, "false", False),
    "sampling_seed": later(int, ""),
    "custom_logit_processor": later(str, ""),
    "custom_params": later(AnyObject, "{}", {}),
    "lora_path": later(str | AnyList, ""),
    "return_hidden_states": later(bool, "false", False),
    "separate_reasoning": later(bool, "true", True),
    "stream_reasoning": later(bool, "true", True),
    "thinking": later(AnyObject, ""),
    "task": later(str, ""),
    "beam_width": later(int, "1", 1),
    "watermark": later(AnyObject, "{}", {}),
    "session_params": later(AnyObject, "{}", {}),
    "extra_key": later(str | AnyList, ""),
    "input_ids": later(AnyList, ""),
    "sampling_logprobs_mode": later(str, ""),
    **{
        name: later(bool, "false", False)
        for name in (
            *(
                "return_routed_experts",
                "return_cached_tokens_details",
                "return_spec_tokens_details",
                "return_meta_info",
            ),
            *("return_prompt_token_ids", "return_sampling_mask", "return_input_ids_in_sglext"),
            *("return_output_ids_in_sglext", "return_flat_raw_output_top_logprobs", "return_flat_raw_top_logprobs_b64"),
        )
    },
    "data_parallel_rank": inert(int, "an integer"),
    "routed_experts_start_len": inert(int, "an integer"),
}

_LLAMA_CPP: Table = {
    "tfs_z": later(Number, "1", 1),
    "penalize_nl": later(bool, "true", True),
    "n_keep": inert(int, "an integer"),
    "n_indent": later(int, "0", 0),
    "n_probs": later(int, "0", 0),
    "n_cmpl": later(int, "1", 1),
    "post_sampling_probs": later(bool, "false", False),
    "t_max_predict_ms": later(int, "-1, or the field timeout", -1, 0),
    "cache_prompt": inert(bool, "true or false"),
    "id_slot": inert(int, "an integer"),
    "lora": later(AnyList, "[]", []),
    "grammar_lazy": later(bool, "false", False),
    "grammar_triggers": later(AnyList, "[]", []),
    "return_tokens": later(bool, "false, or the field return_token_ids", False),
    "return_progress": later(bool, "false, or the header X-TL-Progress", False),
    "timings_per_token": later(bool, "false", False),
    "response_fields": later(AnyList, "[]", []),
    "verbose": later(bool, "false", False),
    "adaptive_target": later(Number, "-1", -1),
    "adaptive_decay": inert(Number, "a number"),
    "chat_format": later(int | str, ""),
    "chat_parser": later(str, '""', ""),
    "reasoning_format": later(str, '"auto" or "deepseek"', "auto", "deepseek"),
    "generation_prompt": later(str, '""', ""),
    "parse_tool_calls": later(bool, "true", True),
    "grammar_type": later(str, '"user"', "user"),
    "reasoning_control": later(bool, "false", False),
    "reasoning_budget_tokens": later(int, "-1", -1),
    "thinking_budget_tokens": later(int, "-1", -1),
    **{
        name: inert(Any, "any value")
        for name in (
            *("n_discard", "n_cache_reuse", "sse_ping_interval", "t_max_prompt_ms", "backend_sampling"),
            *("speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.type"),
            *("speculative.ngram_size_n", "speculative.ngram_size_m", "speculative.ngram_min_hits", "preserved_tokens"),
            *("reasoning_budget_start_tag", "reasoning_budget_end_tag", "reasoning_budget_end_tags"),
            "reasoning_budget_message",
        )
    },
}

_OLLAMA: Table = {
    "options": later(AnyObject, "{}", {}),
    "format": later(str | AnyObject, '""', ""),
    "think": later(bool | str, ""),
    "system": later(str, '""', ""),
    "template": later(str, '""', ""),
    "raw": later(bool, "false", False),
    "context": later(list[int], "[]", []),
    "num_predict": later(int, ""),
    "num_ctx": later(int, ""),
    "keep_alive": inert(str | Number, "a string or a number"),
}

OTHER_SERVERS: Table = {**_VLLM, **_SGLANG, **_LLAMA_CPP, **_OLLAMA}
"""The fields by name; those of `tlserve.openai.field_tables` with the same name go before them."""
