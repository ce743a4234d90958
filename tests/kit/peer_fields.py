"""Every field of decoding that vLLM, SGLang, llama.cpp and Ollama read in a request, and what becomes of it here.

Read in their sources: vLLM at commit 002032ee2 (`ChatCompletionRequest`, `CompletionRequest`, `SamplingParams`), SGLang 0.5.23
(its classes of the same names), llama.cpp b11434 (`server-schema.cpp`, `server-common.cpp`), Ollama at commit fb3076099
(`api/types.go`). Left out are fields that name the input, those of images, sound and video, and those between the nodes of one
deployment. `docs/reference/fields-of-other-servers.md` is made from this table, and `test_peer_fields.py` sends every row.

A row has the value that is sent, which asks for something. HONOURED: the engine's request or the answer is another one than
without the field. REFUSED: 400 or 422 with the field's name. HARMLESS: the answer is the same, because the field has nothing to
change here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tests.kit.peer_field_names import LLAMA_CPP, NAMES, OLLAMA, SGLANG, VLLM

READ = {
    VLLM: "commit 002032ee2",
    SGLANG: "0.5.23",
    LLAMA_CPP: "b11434",
    OLLAMA: "commit fb3076099",
}


class Outcome(enum.Enum):
    """What becomes of a field."""

    HONOURED = "honoured"
    REFUSED = "refused"
    HARMLESS = "harmless"


@attrs.frozen
class Row:
    """One field: a value that asks for something, and what else the request has.

    `peers` are some of those who have it, or had it. `doors`: "chat", "completions", or Ollama's "generate" and "options".
    """

    name: str
    outcome: Outcome
    peers: tuple[str, ...]
    value: Any
    doors: tuple[str, ...] = ("chat", "completions")
    beside: Mapping[str, Any] = attrs.field(factory=dict)
    note: str = ""

    @property
    def read_in(self) -> tuple[str, ...]:
        """Return all peers that have the field, or had it."""
        of_ollama = self.doors in (("generate",), ("options",))
        return tuple(
            peer
            for peer, names in NAMES.items()
            if peer in self.peers or (self.name in names.split() and of_ollama == (peer == OLLAMA))
        )


def _rows(outcome: Outcome, peers: Sequence[str], values: Mapping[str, Any], **more: Any) -> tuple[Row, ...]:
    return tuple(Row(name, outcome, tuple(peers), value, **more) for name, value in values.items())


ALL = (VLLM, SGLANG, LLAMA_CPP)
HONOURED, REFUSED, HARMLESS = Outcome.HONOURED, Outcome.REFUSED, Outcome.HARMLESS
CHAT, COMPLETIONS = ("chat",), ("completions",)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}

_SHARED = (
    *_rows(
        HONOURED,
        ALL,
        {
            "temperature": 0.5,
            "top_p": 0.5,
            "top_k": 7,
            "min_p": 0.25,
            "seed": 9,
            "max_tokens": 2,
            "stop": "c",
            "frequency_penalty": 0.5,
            "presence_penalty": 0.5,
            "logit_bias": {"7": 1},
            "n": 2,
            "stream": True,
            "ignore_eos": True,
            "response_format": {"type": "json_object"},
        },
    ),
    Row("stream_options", HONOURED, ALL, {"include_usage": True}, beside={"stream": True}),
    *_rows(HONOURED, ALL, {"logprobs": True, "max_completion_tokens": 2}, doors=CHAT),
    Row("logprobs", HONOURED, ALL, 2, doors=COMPLETIONS),
    Row("top_logprobs", HONOURED, ALL, 2, doors=CHAT, beside={"logprobs": True}),
    Row(
        "tools",
        HONOURED,
        ALL,
        [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}],
        doors=CHAT,
    ),
    Row("tool_choice", HONOURED, ALL, "required", doors=CHAT, beside={"tools": [TOOL]}),
    Row("parallel_tool_calls", HONOURED, ALL, False, doors=CHAT, beside={"tools": [TOOL], "tool_choice": "required"}),
    Row("reasoning_effort", HONOURED, ALL, "none", doors=CHAT, note="as the model's template knows efforts"),
    Row("chat_template_kwargs", HONOURED, ALL, {"enable_thinking": False}, doors=CHAT),
    Row("continue_final_message", HONOURED, ALL, True, doors=CHAT, beside={"messages": "answered"}),
    Row("add_generation_prompt", HONOURED, (VLLM, LLAMA_CPP), False, doors=CHAT),
    Row("json_schema", HONOURED, (SGLANG, LLAMA_CPP), SCHEMA),
    Row("regex", HONOURED, (SGLANG,), "[a-z]+"),
    Row("grammar", HONOURED, (LLAMA_CPP,), 'root ::= "a"'),
    Row("echo", HONOURED, ALL, True, doors=COMPLETIONS),
    Row("echo", REFUSED, (VLLM, LLAMA_CPP), True, doors=CHAT),
    Row("suffix", REFUSED, (VLLM, SGLANG), "x", doors=COMPLETIONS),
    Row("best_of", REFUSED, (SGLANG,), 2, note="n gives several answers"),
    Row("user", HARMLESS, (VLLM, SGLANG), "x"),
)

_VLLM = (
    *_rows(
        HONOURED,
        (VLLM, SGLANG),
        {
            "repetition_penalty": 1.5,
            "min_tokens": 2,
            "stop_token_ids": [99],
            "return_token_ids": True,
            "cache_salt": "x",
        },
    ),
    *_rows(
        HONOURED,
        (VLLM,),
        {
            "include_stop_str_in_output": True,
            "prompt_logprobs": 1,
            "allowed_token_ids": [98],
            "bad_words": ["z"],
            "truncate_prompt_tokens": 1,
            "structured_outputs": {"regex": "[a-z]+"},
        },
        beside={"stop": "c"},
    ),
    Row("skip_special_tokens", HONOURED, (VLLM, SGLANG), False),
    Row("return_tokens_as_token_ids", HONOURED, (VLLM,), True, doors=CHAT, beside={"logprobs": True}),
    Row("return_tokens_as_token_ids", HONOURED, (VLLM,), True, doors=COMPLETIONS, beside={"logprobs": 1}),
    *_rows(
        REFUSED,
        (VLLM,),
        {
            "use_beam_search": True,
            "length_penalty": 0.5,
            "early_stopping": True,
            "watermarking": True,
            "truncation_side": "right",
            "logprob_token_ids": [5],
            "thinking_token_budget": 5,
            "priority": 1,
            "chat_template": "{{ x }}",
            "documents": [{"title": "x"}],
            "mm_processor_kwargs": {"a": 1},
            "media_io_kwargs": {"a": {}},
            "return_prompt_text": True,
            "kv_transfer_params": {"a": 1},
            "ec_transfer_params": {"a": 1},
            "vllm_xargs": {"a": 1},
            "repetition_detection": {"min_count": 2},
            "stream_interval": 4,
            "logits_processors": ["x"],
            "include_reasoning": False,
            "prompt_embeds": "x",
        },
    ),
    Row("add_special_tokens", REFUSED, (VLLM,), True, doors=CHAT),
    Row("add_special_tokens", REFUSED, (VLLM,), False, doors=COMPLETIONS),
    *_rows(
        HARMLESS,
        (VLLM,),
        {
            "spaces_between_special_tokens": False,
            "return_token_offsets": True,
            "return_mm_kwargs": False,
            "routed_experts_prompt_start": 3,
            "request_id": "x",
            "session_id": "x",
        },
    ),
)

_SGLANG = (
    *_rows(HONOURED, (SGLANG,), {"max_new_tokens": 2}),
    *_rows(
        REFUSED,
        (SGLANG,),
        {
            "ebnf": "root ::= x",
            "structural_tag": "{}",
            "min_new_tokens": 1,
            "stop_regex": "a+",
            "no_stop_trim": True,
            "sampling_seed": 5,
            "custom_logit_processor": "x",
            "custom_params": {"a": 1},
            "lora_path": "x",
            "return_hidden_states": True,
            "separate_reasoning": False,
            "stream_reasoning": False,
            "beam_width": 2,
            "watermark": {"a": 1},
            "session_params": {"id": "x"},
            "extra_key": "x",
            "input_ids": [1],
            "return_routed_experts": True,
            "return_cached_tokens_details": True,
            "return_spec_tokens_details": True,
            "return_prompt_token_ids": True,
            "return_meta_info": True,
            "return_sampling_mask": True,
            "return_input_ids_in_sglext": True,
            "return_output_ids_in_sglext": True,
            "sampling_logprobs_mode": "x",
            "return_flat_raw_output_top_logprobs": True,
            "return_flat_raw_top_logprobs_b64": True,
            "thinking": {"type": "disabled"},
            "task": "x",
        },
    ),
    *_rows(
        HARMLESS, (SGLANG,), {"rid": "x", "data_parallel_rank": 0, "routed_experts_start_len": 2, "custom_labels": {}}
    ),
)

_LLAMA_CPP = (
    *_rows(
        HONOURED,
        (LLAMA_CPP,),
        {
            "n_predict": 2,
            "top_n_sigma": 1.5,
            "xtc_probability": 0.5,
            "typical_p": 0.5,
            "dynatemp_range": 0.25,
            "repeat_last_n": 9,
            "repeat_penalty": 1.5,
            "mirostat": 2,
            "dry_multiplier": 0.8,
            "min_keep": 3,
            "samplers": ["top_k"],
        },
    ),
    Row("xtc_threshold", HONOURED, (LLAMA_CPP,), 0.25, beside={"xtc_probability": 0.5}),
    Row("dynatemp_exponent", HONOURED, (LLAMA_CPP,), 2, beside={"dynatemp_range": 0.25}),
    *_rows(HONOURED, (LLAMA_CPP,), {"mirostat_tau": 3, "mirostat_eta": 0.5}, beside={"mirostat": 1}),
    *_rows(
        HONOURED,
        (LLAMA_CPP,),
        {"dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 9, "dry_sequence_breakers": ["x"]},
        beside={"dry_multiplier": 0.8},
    ),
    *_rows(
        REFUSED,
        (LLAMA_CPP,),
        {
            "tfs_z": 0.5,
            "penalize_nl": False,
            "n_indent": 1,
            "n_probs": 3,
            "n_cmpl": 2,
            "post_sampling_probs": True,
            "t_max_predict_ms": 100,
            "lora": [{"id": 0}],
            "grammar_lazy": True,
            "grammar_triggers": [{}],
            "return_tokens": True,
            "return_progress": True,
            "timings_per_token": True,
            "response_fields": ["content"],
            "verbose": True,
            "adaptive_target": 0.5,
            "chat_format": "x",
            "reasoning_format": "none",
            "generation_prompt": "x",
            "parse_tool_calls": False,
            "chat_parser": "x",
            "grammar_type": "x",
            "reasoning_control": True,
            "reasoning_budget_tokens": 5,
            "thinking_budget_tokens": 5,
        },
    ),
    *_rows(
        HARMLESS,
        (LLAMA_CPP,),
        {
            "cache_prompt": False,
            "id_slot": 1,
            "n_keep": 5,
            "n_discard": 5,
            "n_cache_reuse": 5,
            "sse_ping_interval": 5,
            "t_max_prompt_ms": 5,
            "adaptive_decay": 0.5,
            "backend_sampling": True,
            "speculative.n_max": 3,
            "speculative.n_min": 3,
            "speculative.p_min": 0.5,
            "speculative.type": "x",
            "speculative.ngram_size_n": 3,
            "speculative.ngram_size_m": 3,
            "speculative.ngram_min_hits": 3,
            "preserved_tokens": [],
            "reasoning_budget_start_tag": "x",
            "reasoning_budget_end_tags": ["x"],
            "reasoning_budget_end_tag": "x",
            "reasoning_budget_message": "x",
        },
    ),
)

OLLAMA_BODY = (
    *_rows(
        HONOURED,
        (OLLAMA,),
        {"stream": False, "format": "json", "system": "x", "think": False},
        doors=("generate",),
    ),
    Row("raw", HONOURED, (OLLAMA,), True, doors=("generate",)),
    *_rows(
        REFUSED,
        (OLLAMA,),
        {
            "logprobs": True,
            "top_logprobs": 2,
            "truncate": True,
            "shift": True,
            "suffix": "x",
            "template": "x",
            "context": [1],
            "_debug_render_only": True,
        },
        doors=("generate",),
    ),
    Row("keep_alive", HARMLESS, (OLLAMA,), "5m", doors=("generate",), note="how long the model stays in memory"),
)
"""Fields of `/api/generate`; `/api/chat` has them too, as far as it has them in Ollama."""

OLLAMA_OPTIONS = (
    *_rows(
        HONOURED,
        (OLLAMA,),
        {
            "seed": 9,
            "num_predict": 2,
            "top_k": 7,
            "top_p": 0.5,
            "min_p": 0.25,
            "typical_p": 0.5,
            "temperature": 0.5,
            "repeat_last_n": 9,
            "repeat_penalty": 1.5,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "stop": ["c"],
            "mirostat": 1,
        },
        doors=("options",),
    ),
    *_rows(HONOURED, (OLLAMA,), {"mirostat_tau": 3, "mirostat_eta": 0.5}, doors=("options",), beside={"mirostat": 1}),
    *_rows(REFUSED, (OLLAMA,), {"tfs_z": 0.5, "penalize_newline": False}, doors=("options",)),
    *_rows(
        HARMLESS,
        (OLLAMA,),
        {
            "num_keep": 5,
            "num_batch": 5,
            "num_gpu": 1,
            "main_gpu": 1,
            "use_mmap": True,
            "num_thread": 2,
            "draft_num_predict": 3,
            "num_ctx": 64,
        },
        doors=("options",),
    ),
)

ROWS: tuple[Row, ...] = (*_SHARED, *_VLLM, *_SGLANG, *_LLAMA_CPP, *OLLAMA_BODY, *OLLAMA_OPTIONS)
"""All rows; a field that several peers have is there once for each door."""
