"""Fields of other servers: each is served, refused by name, or has no effect; none is ignored without a word."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tlserve.api.fields import FieldKind
from tlserve.errors import Refusal
from tlserve.openai import field_tables
from tlserve.openai.requests import parse_chat, parse_completion

REFUSED: dict[str, Any] = {
    "length_penalty": 0.5,
    "early_stopping": True,
    "logits_processors": ["x"],
    "thinking_token_budget": 5,
    "priority": 1,
    "chat_template": "{{ x }}",
    "documents": [{"title": "x"}],
    "guided_json_object": True,
    "guided_whitespace_pattern": " ",
    "kv_transfer_params": {"a": 1},
    "vllm_xargs": {"a": 1},
    "mm_processor_kwargs": {"a": 1},
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
    "tfs_z": 0.9,
    "penalize_nl": False,
    "n_indent": 1,
    "n_probs": 3,
    "n_cmpl": 2,
    "post_sampling_probs": True,
    "t_max_predict_ms": 100,
    "lora": [{"id": 0, "scale": 1}],
    "grammar_lazy": True,
    "grammar_triggers": [{}],
    "return_tokens": True,
    "return_progress": True,
    "timings_per_token": True,
    "response_fields": ["content"],
    "options": {"num_ctx": 5},
    "format": "json",
    "think": True,
    "system": "x",
    "template": "x",
    "raw": True,
    "context": [1],
    "num_predict": 5,
    "num_ctx": 5,
}
HARMLESS: dict[str, Any] = {
    "spaces_between_special_tokens": False,
    "guided_decoding_backend": "outlines",
    "n_keep": 0,
    "cache_prompt": True,
    "id_slot": -1,
    "keep_alive": "5m",
}
SERVED = {
    *("top_k", "min_p", "ignore_eos", "repetition_penalty", "repeat_penalty", "min_tokens", "stop_token_ids"),
    *("include_stop_str_in_output", "prompt_logprobs", "return_token_ids", "cache_salt", "structured_outputs"),
    *("allowed_token_ids", "bad_words", "truncate_prompt_tokens", "top_n_sigma", "dynatemp_range", "dynatemp_exponent"),
    *(
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
        "min_keep",
        "samplers",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
    ),
    *(
        "repeat_last_n",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
    ),
    *("max_new_tokens", "n_predict", "skip_special_tokens", "return_tokens_as_token_ids"),
    *("regex", "choice", "grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
}
BODIES: dict[Any, dict[str, Any]] = {
    parse_chat: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    parse_completion: {"model": "m", "prompt": "x"},
}
TABLES = (field_tables.CHAT, field_tables.COMPLETION)


@pytest.mark.spec("API-155")
@pytest.mark.parametrize("parse", BODIES)
@pytest.mark.parametrize("field", REFUSED)
def test_a_decoding_field_that_is_not_served_is_422_by_name(parse: Any, field: str) -> None:
    with pytest.raises(Refusal, match=field) as refused:
        parse(json.dumps({**BODIES[parse], field: REFUSED[field]}).encode())
    assert refused.value.param == field


@pytest.mark.spec("API-155")
@pytest.mark.parametrize("parse", BODIES)
@pytest.mark.parametrize(("field", "value"), HARMLESS.items())
def test_a_field_that_has_nothing_to_change_is_accepted(parse: Any, field: str, value: Any) -> None:
    body = BODIES[parse]
    assert parse(json.dumps({**body, field: value}).encode()) == parse(json.dumps(body).encode())


@pytest.mark.spec("API-155")
@pytest.mark.parametrize("parse", BODIES)
def test_values_that_ask_for_nothing_are_accepted(parse: Any) -> None:
    body = BODIES[parse]
    noops = [(name, value) for name in REFUSED for value in TABLES[parse is parse_completion][name].noops]
    assert len(noops) > 35
    for name, value in noops:
        assert parse(json.dumps({**body, name: value}).encode()) == parse(json.dumps(body).encode()), name


@pytest.mark.spec("API-155")
@pytest.mark.parametrize("table", TABLES)
def test_every_decoding_field_of_other_servers_has_its_kind(table: Any) -> None:
    kinds: dict[FieldKind, Iterable[str]] = {
        FieldKind.LATER: REFUSED,
        FieldKind.INERT: HARMLESS,
        FieldKind.SERVED: SERVED,
    }
    for kind, names in kinds.items():
        assert {name for name in names if table[name].kind is not kind} == set()
