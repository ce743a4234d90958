"""Every setting of a server: its name, default, unit, bounds and one line of what it does.

Owns the classes; each field is one setting of one table of `runtime.toml`, and carries its bounds as metadata. Refuses to
know files, the environment and the command line: `tlserve.config.load` reads those and applies what is declared here.
The reference pages and `specs/runtime.schema.json` are made from these classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tlserve.config.checks import (
    check_endpoint,
    check_key_strength,
    check_listen,
    check_listen_or_empty,
    check_mode,
    check_node_urls,
    check_origins,
    check_routes,
)

DIALECT_NAMES = ("smollm3", "qwen3_coder", "qwen3", "deepseek_r1", "hermes", "mistral", "llama3", "plain")
"""The dialects of `tlserve.chat.dialects.registry`, which is not known here."""


def setting(
    default: Any,
    about: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[Any], object] | None = None,
    is_path: bool = False,
    is_secret: bool = False,
) -> Any:
    """Declare one setting: its default, what it does, its unit, and what values it takes (`low` and `high` inclusive).

    `check` raises `SettingsError` for a value that has the wrong form; it is not asked about the default. A path that is
    relative and stands in a file is looked for beside that file. A secret is never shown, nor quoted in a refusal.
    """
    bounds = {"low": low, "high": high, "choices": choices, "check": check}
    return attrs.field(
        default=default,
        repr=not is_secret,
        metadata={"about": about, "unit": unit, "is_path": is_path, "is_secret": is_secret, **bounds},
    )


@attrs.frozen(kw_only=True)
class SamplingSettings:
    """The table `[engine.sampling]`: what holds where a request does not say; left out: what the model's makers advise."""

    temperature: float | None = setting(
        None, "0 is greedy; left out: generation_config.json's, else 1", unit="(0: greedy)", low=0, high=2
    )
    top_p: float | None = setting(
        None, "smallest set of likely tokens with this probability", unit="of the probability", low=1e-6, high=1
    )
    top_k: int | None = setting(None, "that many likely tokens; 0: all", unit="tokens", low=0, high=(1 << 31) - 1)
    min_p: float | None = setting(
        None, "least share of the likeliest token's probability; 0: any", unit="of the likeliest", low=0, high=1
    )
    repetition_penalty: float | None = setting(
        None, "divides the logits of tokens that stand in prompt or answer; 1: off", unit="(1: off)", low=0.01, high=100
    )
    presence_penalty: float | None = setting(
        None, "taken from the logits of tokens that stand in the answer; 0: off", unit="(0: off)", low=-2, high=2
    )
    frequency_penalty: float | None = setting(
        None, "the same, once for each time that the token stands there; 0: off", unit="(0: off)", low=-2, high=2
    )


@attrs.frozen(kw_only=True)
class EngineSettings:
    """The table `[engine]`: what is served, where, and how the engine schedules. 0 means "decide from the machine"."""

    model_dir: str = setting(
        "smol-135m", "directory or GGUF file of the model, or the name of a pulled or built-in one", is_path=True
    )
    model_id: str = setting("", "id under which the model is served; empty: derived from model_dir")
    model_aliases: tuple[str, ...] = setting((), "other ids that clients may use for the same model")
    http_listen: str = setting(
        "127.0.0.1:8000",
        "address of the API; ':8000' is every interface, port 0 picks a free one, 'unix:/path' is a Unix socket",
        check=check_listen,
    )
    health_listen: str = setting(
        "127.0.0.1:9464",
        "address of /healthz, /readyz and /metrics; empty: not served",
        check=check_listen_or_empty,
    )
    context_tokens: int = setting(
        0, "longest prompt and answer together; 0: what the model was trained for", unit="tokens", low=0, high=1 << 20
    )
    max_num_seqs: int = setting(32, "sequences that run in one step", unit="sequences", low=1, high=1024)
    queue_capacity: int = setting(
        128, "requests that may wait beyond those that run; more are answered 429", unit="requests", low=0, high=100_000
    )
    queue_deadline_ms: int = setting(
        30_000, "longest wait in the queue before 503 no_capacity", unit="ms", low=1, high=86_400_000
    )
    prefix_cache: str = setting("radix", "how prompts share keys and values", choices=("none", "hash", "radix"))
    prefill_chunk: int = setting(
        256, "prompt tokens of all sequences together in one step; 0: whole prompts", unit="tokens", low=0, high=1 << 20
    )
    block_size: int = setting(16, "positions in one block of keys and values", unit="tokens", low=1, high=1024)
    kv_memory_bytes: int = setting(
        0,
        "memory for keys and values; 0: a quarter of what the machine has available, at "
        "most what max_num_seqs full contexts need",
        unit="bytes",
        low=0,
        high=1 << 44,
    )
    speculative: str = setting(
        "none", "draft tokens from the prompt and answer so far", choices=("none", "prompt_lookup")
    )
    speculative_tokens: int = setting(
        8, "most drafted tokens in one step of one sequence", unit="tokens", low=1, high=32
    )
    embedding_min_dimensions: int = setting(
        0,
        "how short the model's embeddings may be cut, if it was trained for that; 0: not at all",
        unit="dimensions",
        low=0,
        high=1 << 20,
    )
    kernels: str = setting(
        "auto", "which arithmetic runs: native (C), or the reference (numpy)", choices=("auto", "native", "reference")
    )
    activations: str = setting(
        "auto", "what quantised weights are multiplied with; auto is int8", choices=("auto", "int8", "f32")
    )
    kv_precision: str = setting("f16", "precision in which keys and values are kept", choices=("f16", "f32"))
    weights: str = setting(
        "stored",
        "stored: weights in the precision of their files; q8_0: those of 16 and 32 bits are served in 8",
        choices=("stored", "q8_0"),
    )
    threads: int = setting(0, "threads of the arithmetic; 0: one per core", unit="threads", low=0, high=1024)
    dialect: str = setting(
        "auto",
        "how the model writes reasoning and calls of tools; auto: as its chat template says",
        choices=("auto", *DIALECT_NAMES),
    )
    reasoning_alias: bool = setting(
        default=False, about="send reasoning under the name `reasoning`, too, beside `reasoning_content`"
    )
    grammar_bytes: int = setting(
        262_144, "longest schema or grammar that an answer is held to; more is 400", unit="bytes", low=64, high=1 << 20
    )
    grammar_timeout_ms: int = setting(5000, "longest time to compile it; more is 400", unit="ms", low=1, high=600_000)
    grammar_cache: int = setting(64, "schemas and grammars that stay compiled", unit="grammars", low=1, high=100_000)
    sampling: SamplingSettings = SamplingSettings()
    heartbeat_stale_ms: int = setting(
        30_000, "a step that takes longer makes /readyz fail", unit="ms", low=100, high=86_400_000
    )


@attrs.frozen(kw_only=True)
class HttpSettings:
    """The table `[http]`: the limits of the server. A limit that is met answers with its status and says which it was."""

    max_connections: int = setting(
        1024, "open connections; more wait to be accepted", unit="connections", low=1, high=1_000_000
    )
    max_header_bytes: int = setting(
        32_768, "request line and headers together; more is 431", unit="bytes", low=256, high=1 << 24
    )
    max_header_count: int = setting(100, "headers of one request; more is 431", unit="headers", low=1, high=10_000)
    max_body_bytes: int = setting(8 << 20, "body of one request; more is 413", unit="bytes", low=1, high=1 << 34)
    max_json_depth: int = setting(
        64, "nesting of arrays and objects in a body; more is 400", unit="levels", low=1, high=1000
    )
    header_timeout_ms: int = setting(
        30_000,
        "from the first byte of a request to the end of its headers; then 408",
        unit="ms",
        low=1,
        high=86_400_000,
    )
    body_timeout_ms: int = setting(
        60_000, "from the headers to the end of the body; then 408", unit="ms", low=1, high=86_400_000
    )
    idle_timeout_ms: int = setting(
        75_000, "a kept-alive connection without a request is closed", unit="ms", low=1, high=86_400_000
    )
    write_timeout_ms: int = setting(
        30_000, "one write that a client does not read; then the connection is cut", unit="ms", low=1, high=86_400_000
    )
    handshake_timeout_ms: int = setting(
        10_000, "a TLS connection that is not agreed on in this time is closed", unit="ms", low=1, high=86_400_000
    )
    unix_socket_mode: str = setting("0600", "permissions of a Unix socket, in octal", check=check_mode)
    ping_interval_ms: int = setting(
        15_000, "a stream without a token for this long gets the comment ': ping'", unit="ms", low=1, high=86_400_000
    )
    answer_timeout_ms: int = setting(
        0,
        "from a request's head to the end of its answer; then 504, or an error event in a stream; 0: no limit",
        unit="ms",
        low=0,
        high=86_400_000,
    )
    drain_timeout_ms: int = setting(
        30_000,
        "time that open requests get after SIGTERM; then each is ended with an error",
        unit="ms",
        low=0,
        high=86_400_000,
    )


@attrs.frozen(kw_only=True)
class AccessSettings:
    """The table `[access]`: who may ask, and how often. Without `keys_file` and `api_key` everybody may."""

    keys_file: str = setting(
        "", "TOML file of API keys with their limits; read again when it changes; empty: none", is_path=True
    )
    api_key: str = setting(
        "",
        "one key without limits; give it as TL_ACCESS__API_KEY, so that it stands in no file and no process list",
        check=check_key_strength,
        is_secret=True,
    )
    public_routes: tuple[str, ...] = setting(
        ("GET /healthz",), "routes that need no key, as method and path; every other one does", check=check_routes
    )
    allow_public: bool = setting(
        default=False, about="listen beyond this machine although there are no keys: anybody who gets there may ask"
    )
    address_requests_per_minute: int = setting(
        0,
        "requests of one client address in any minute, with or without a key; more are 429; 0: any number",
        unit="requests",
        low=0,
        high=1_000_000,
    )
    metrics_need_key: bool = setting(default=False, about="/metrics on the health port wants one of the keys, too")


@attrs.frozen(kw_only=True)
class TlsSettings:
    """The table `[tls]`: the API speaks TLS 1.2 or 1.3 if there is a certificate. Both files are read again when they change."""

    certificate: str = setting("", "PEM file of the certificate and its chain; empty: no TLS", is_path=True)
    key: str = setting(
        "", "PEM file of the private key, not encrypted; empty: it is in the certificate's file", is_path=True
    )


@attrs.frozen(kw_only=True)
class CorsSettings:
    """The table `[cors]`: which web pages may read the answers."""

    allow_origins: tuple[str, ...] = setting(
        (), "origins like 'https://app.example.com', or '*'; empty: no page of another origin", check=check_origins
    )


@attrs.frozen(kw_only=True)
class LogSettings:
    """The table `[log]`: one line per request on standard error; never the text of a prompt or an answer."""

    level: str = setting("info", "least severity that is written", choices=("debug", "info", "warning", "error"))
    format: str = setting("text", "lines for people, or one JSON document a line", choices=("text", "json"))


@attrs.frozen(kw_only=True)
class TelemetrySettings:
    """The table `[telemetry]`: numbers and traces for others; never the text of a prompt or an answer."""

    vllm_aliases: bool = setting(
        default=False, about="show the metrics that vLLM has as well under its names, such as vllm:num_requests_running"
    )
    traces_endpoint: str = setting(
        "",
        "collector that gets a span for each request by OTLP over HTTP, like 'http://127.0.0.1:4318/v1/traces'; empty: no "
        "traces; needs the extra tlserve[otel]",
        check=check_endpoint,
    )


@attrs.frozen(kw_only=True)
class FleetSettings:
    """The table `[fleet]`: this server as a node of a fleet, which its head reaches below /v1/internal, or as the head.

    What a head knows of its nodes is one of `nodes`, `nodes_dns` and `ray_address`.
    """

    internal: bool = setting(
        default=False, about="serve /v1/internal, by which a fleet's head uses this server as a node"
    )
    internal_key: str = setting(
        "",
        "the key that /v1/internal of a node wants, and no other, and that a head shows; give it as TL_FLEET__INTERNAL_KEY; "
        "empty: none, on this machine only",
        check=check_key_strength,
        is_secret=True,
    )
    lease_ms: int = setting(
        10_000, "a session that no head asks for any more is dropped after this", unit="ms", low=100, high=86_400_000
    )

    nodes: tuple[str, ...] = setting((), "URLs of a head's nodes, like 'http://10.0.0.7:8000'", check=check_node_urls)
    nodes_dns: tuple[str, ...] = setting(
        (),
        "URLs by whose host a head finds nodes, one at each of its addresses, like 'http://nodes.fleet.svc:8000'",
        check=check_node_urls,
    )
    nodes_ca: str = setting(
        "", "file of the certificates that vouch for https nodes; empty: those that this system trusts", is_path=True
    )
    ray_address: str = setting(
        "",
        "host:port of the control process of a Ray cluster, whose named actors are a head's nodes; needs tlserve[fleet]",
        check=check_listen_or_empty,
    )
    ray_token_file: str = setting(
        "", "file of the token that all of a Ray cluster share; only its owner may read it", is_path=True
    )
    ray_node_ip: str = setting("127.0.0.1", "address of this machine in a Ray cluster: its sockets are bound there")
    admission: int = setting(
        1024, "requests inside a head at once; more are answered 429", unit="requests", low=1, high=1_000_000
    )
    max_context: int = setting(
        0, "context that a head tells while no node is ready; 0: the model's", unit="tokens", low=0, high=1 << 20
    )
    wall_limit_ms: int = setting(
        600_000, "longest answer of a head, the moves between nodes included", unit="ms", low=1000, high=86_400_000
    )
    moves: int = setting(
        3, "nodes that may fail under one answer before it ends with an error", unit="nodes", low=0, high=100
    )


SERVER_KEYS = frozenset({"http_listen", "health_listen"})
"""The keys of [engine] that are the server's, not a model's: no [[models]] table has them."""

OWN_KEYS = frozenset(
    {
        *("model_dir", "model_id", "model_aliases", "context_tokens", "kv_memory_bytes", "embedding_min_dimensions"),
        "dialect",
        "sampling",
    }
)
"""The keys of a [[models]] table that begin at their defaults; what it does not say of the others, [engine] says."""


@attrs.frozen(kw_only=True)
class Settings:
    """All tables of `runtime.toml`. `models`: the [[models]] tables, served beside the model of [engine], each complete."""

    engine: EngineSettings = EngineSettings()
    models: tuple[EngineSettings, ...] = ()
    http: HttpSettings = HttpSettings()
    access: AccessSettings = AccessSettings()
    tls: TlsSettings = TlsSettings()
    cors: CorsSettings = CorsSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    fleet: FleetSettings = FleetSettings()

    @property
    def served(self) -> tuple[EngineSettings, ...]:
        """Return the settings of every model, that of [engine] first."""
        return (self.engine, *self.models)
