"""The samplers of llama.cpp, the ids that a request allows, and a shortened prompt: from a body to the engine's request."""

import json
from typing import Any

import attrs
import pytest

from tests.kit.model.tiny_tokenizers import gpt2_metadata
from tests.kit.scripted_backend import ScriptedBackend
from tlserve.api.sampler_fields import ALL_TOKENS
from tlserve.chat.token_rules import banned_runs, breakers_of
from tlserve.errors import ClientError
from tlserve.sampling_params import FILTERS, Breaker, Dry, SamplingParams
from tlserve.text.byte_tokenizer import ByteTokenizer
from tlserve.text.tokenizer import build_tokenizer

CHAT, COMPLETIONS, OLLAMA = "/v1/chat/completions", "/v1/completions", "/api/generate"
PLAIN = SamplingParams(temperature=0.5)


def heads(*texts: str) -> bytes:
    """Return the mask of some bytes, which are tokens."""
    bits = bytearray(32)
    for text in texts:
        bits[ord(text) // 8] |= 1 << ord(text) % 8
    return bytes(bits)


async def requests_of(open_api: Any, path: str, fields: dict[str, Any], **served: Any) -> tuple[Any, Any]:
    """Return the answer of an API with `fields` in the body, and the requests that its backend got."""
    backend = ScriptedBackend()
    body: dict[str, Any] = {"model": "succ", "max_tokens": 3, "temperature": 0.5, "prompt": "a", **fields}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    if path == OLLAMA:
        body = {"model": "succ", "prompt": "a", "options": {"num_predict": 3, "temperature": 0.5, **fields}}
    async with open_api(backend, **served) as api:
        answer = await api.post(path, body)
    return answer, backend.requests


EVERY_FILTER = {
    "top_n_sigma": 1.5,
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 2,
    "typical_p": 0.75,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.25,
    "min_keep": 3,
}
SENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (EVERY_FILTER, EVERY_FILTER),
    ({"top_n_sigma": -1}, {}),
    ({"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.5}, {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.5}),
    ({"repeat_last_n": 7, "repeat_penalty": 1.5}, {"penalty_last_n": 7, "repetition_penalty": 1.5}),
    ({"repeat_last_n": -1}, {"penalty_last_n": ALL_TOKENS}),
    ({"repeat_last_n": 0}, {"penalty_last_n": 0}),
    ({"samplers": ["top_k", "typ_p", "Min-P", "temp"]}, {"samplers": ("top_k", "typical_p", "min_p", "temperature")}),
    (
        {"samplers": ["penalties", "dry", "nucleus"], "repeat_penalty": 2},
        {"samplers": ("top_p",), "repetition_penalty": 2},
    ),
    (
        {"samplers": "edskypmxt"},
        {"samplers": ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")},
    ),
    ({"samplers": ["xtc"], "repeat_penalty": 2, "dry_multiplier": 1}, {"samplers": ("xtc",)}),
    ({"samplers": []}, {"samplers": ()}),
    ({"dry_multiplier": 0, "dry_base": 3}, {}),
    ({"dry_multiplier": 1, "dry_penalty_last_n": 0}, {}),
    (
        {"dry_multiplier": 0.8},
        {"dry": Dry(multiplier=0.8, breakers=(Breaker(heads=heads("\n", ":", '"', "*")),))},
    ),
    (
        {
            "dry_multiplier": 1,
            "dry_base": 2,
            "dry_allowed_length": 4,
            "dry_penalty_last_n": 9,
            "dry_sequence_breakers": ["ab", "c"],
        },
        {
            "dry": Dry(
                multiplier=1,
                base=2,
                allowed_length=4,
                last_n=9,
                breakers=(Breaker(heads=heads("c")), Breaker(heads=heads("a"), tail=(98,))),
            )
        },
    ),
]


@pytest.mark.spec("API-155", "API-181")
@pytest.mark.parametrize(("fields", "expected"), SENT, ids=[str(fields)[:60] for fields, _ in SENT])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_samplers_reach_the_engine(open_api: Any, path: str, fields: Any, expected: Any) -> None:
    answer, (request,) = await requests_of(open_api, path, fields)
    assert (answer.status, answer.headers.get("x-tl-ignored")) == (200, None)
    assert request.sampling == attrs.evolve(PLAIN, **expected)


@pytest.mark.spec("OLL-16")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"typical_p": 0.75}, {"typical_p": 0.75}),
        ({"repeat_last_n": 64, "repeat_penalty": 1.5}, {"penalty_last_n": 64, "repetition_penalty": 1.5}),
        (
            {"mirostat": 1, "mirostat_eta": 0.2, "mirostat_tau": 2},
            {"mirostat": 1, "mirostat_eta": 0.2, "mirostat_tau": 2},
        ),
    ],
)
async def test_ollamas_options_reach_the_engine(open_api: Any, fields: Any, expected: Any) -> None:
    answer, (request,) = await requests_of(open_api, OLLAMA, fields)
    assert (answer.status, request.sampling) == (200, attrs.evolve(PLAIN, **expected))


@pytest.mark.spec("API-182")
async def test_what_mirostat_leaves_out_is_named_and_also_the_models_defaults_are_left_out(open_api: Any) -> None:
    fields = {
        "mirostat": 1,
        "top_k": 5,
        "repeat_penalty": 2,
        "repeat_last_n": 5,
        "dry_multiplier": 1,
        "samplers": ["xtc"],
    }
    makers = SamplingParams(top_p=0.5, repetition_penalty=1.2)
    answer, (request,) = await requests_of(open_api, COMPLETIONS, fields, default_sampling=makers)
    names = "repetition_penalty, repeat_last_n, top_k, dry_multiplier, samplers"
    assert answer.headers.get("x-tl-ignored") == names
    assert request.sampling == attrs.evolve(PLAIN, mirostat=1)


@pytest.mark.spec("API-181")
async def test_an_order_without_penalties_is_without_those_of_the_model(open_api: Any) -> None:
    makers = SamplingParams(repetition_penalty=1.2, top_k=7)
    _, (request,) = await requests_of(open_api, CHAT, {"samplers": list(FILTERS)}, default_sampling=makers)
    assert request.sampling == attrs.evolve(PLAIN, samplers=FILTERS, top_k=7)


@pytest.mark.spec("API-181")
@pytest.mark.parametrize(
    ("status", "param", "fields"),
    [
        (422, "samplers", {"samplers": ["top_k", "penalties"]}),
        (422, "samplers", {"samplers": ["dry", "penalties"]}),
        (422, "samplers", {"samplers": ["infill"]}),
        (422, "samplers", {"samplers": "tfz"}),
        (400, "samplers", {"samplers": ["top_p", "nucleus"]}),
        (400, "samplers", {"samplers": ["top_k"] * 33}),
        (400, "mirostat", {"mirostat": 3}),
        (400, "typical_p", {"typical_p": 0}),
        (400, "xtc_probability", {"xtc_probability": 1.5}),
        (400, "dry_base", {"dry_base": 0.5}),
        (400, "dry_allowed_length", {"dry_allowed_length": 0}),
        (400, "dry_sequence_breakers", {"dry_sequence_breakers": [""]}),
        (400, "dry_sequence_breakers", {"dry_sequence_breakers": ["x" * 41]}),
        (400, "dry_sequence_breakers", {"dry_sequence_breakers": ["x"] * 17}),
        (400, "repeat_last_n", {"repeat_last_n": -2}),
        (400, "allowed_token_ids", {"allowed_token_ids": []}),
        (400, "allowed_token_ids", {"allowed_token_ids": [256]}),
        (400, "bad_words", {"bad_words": [" "]}),
        (400, "bad_words", {"bad_words": ["x"] * 65}),
        (400, "bad_words", {"bad_words": ["x" * 41]}),
        (400, "truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
        (400, "truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
    ],
)
async def test_what_a_sampler_cannot_do_is_refused_by_name(open_api: Any, status: int, param: str, fields: Any) -> None:
    answer, requests = await requests_of(open_api, COMPLETIONS, fields)
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (status, param)
    assert requests == []


@pytest.mark.spec("API-183")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_allowed_ids_and_bad_words_reach_the_engine(open_api: Any, path: str) -> None:
    fields = {"allowed_token_ids": [98, 99], "bad_words": ["xy", "z"]}
    _, (request,) = await requests_of(open_api, path, fields)
    assert request.allowed_ids == (98, 99)
    assert request.banned == ((120, 121), (122,))


@pytest.mark.spec("API-183")
def test_a_bad_word_is_also_banned_after_a_space() -> None:
    tokenizer = build_tokenizer(gpt2_metadata())
    (plain,), (spaced,) = [tokenizer.encode("the")], [tokenizer.encode(" the")]
    runs = banned_runs(tokenizer, [" the"])
    assert runs == ((tuple(plain), tuple(spaced)) if len(plain) == len(spaced) else (tuple(plain),))


class Silent(ByteTokenizer):
    """A vocabulary that has no token for some characters."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("\u200b", ""))


@pytest.mark.spec("API-183")
def test_a_bad_word_without_tokens_is_refused() -> None:
    with pytest.raises(ClientError, match="has no tokens"):
        banned_runs(Silent(), ["\u200b"])


@pytest.mark.spec("API-181")
def test_a_breaker_is_found_inside_and_across_tokens() -> None:
    tokenizer = build_tokenizer(gpt2_metadata())
    spellings = [tokenizer.token_spelling(token) for token in range(tokenizer.vocabulary_size)]
    (whole, *others) = breakers_of(tokenizer, ["he"])
    bits = [token for token in range(len(spellings)) if whole.heads[token // 8] >> token % 8 & 1]
    assert whole.tail == ()
    assert bits == [token for token, spelling in enumerate(spellings) if b"he" in spelling]
    assert [breaker.tail for breaker in others] == [tuple(tokenizer.encode("e"))]
    (across,) = others
    bits = [token for token in range(len(spellings)) if across.heads[token // 8] >> token % 8 & 1]
    assert bits == [t for t, spelling in enumerate(spellings) if spelling.endswith(b"h") and b"he" not in spelling]


class Prefixes(ByteTokenizer):
    """A vocabulary with a token for each beginning of some words."""

    def __init__(self, words: list[str]) -> None:
        self._spelled = [word[:count].encode() for word in words for count in range(1, len(word))]
        self.vocabulary_size = len(self._spelled)

    def token_spelling(self, token: int) -> bytes:
        return self._spelled[token]


@pytest.mark.spec("API-181")
def test_breakers_with_too_many_spellings_are_refused() -> None:
    words = [19 * letter + "!" for letter in "abcde"]
    assert len(breakers_of(Prefixes(words[:2]), words[:2])) > 30
    with pytest.raises(ClientError, match="ways") as refused:
        breakers_of(Prefixes(words), words)
    assert refused.value.param == "dry_sequence_breakers"


@pytest.mark.spec("API-181")
def test_a_breaker_beyond_ascii_is_not_cut_inside_a_character() -> None:
    assert breakers_of(ByteTokenizer(), ["é"]) == ()


@pytest.mark.spec("API-184")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("keep", "prompt"), [(2, "ef"), (100, "abcdef"), (-1, "abcdef")])
async def test_the_end_of_a_prompt_is_kept(open_api: Any, path: str, keep: int, prompt: str) -> None:
    _, (request,) = await requests_of(open_api, path, {"prompt": "abcdef", "truncate_prompt_tokens": keep})
    assert bytes(request.prompt) == prompt.encode()


@pytest.mark.spec("API-184")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_minus_one_keeps_what_leaves_space_for_the_answer(open_api: Any, path: str) -> None:
    backend = ScriptedBackend()
    fits = backend.info().context_tokens - 3
    _, (request,) = await requests_of(open_api, path, {"prompt": "ab" * 5000, "truncate_prompt_tokens": -1})
    assert len(request.prompt) == fits
