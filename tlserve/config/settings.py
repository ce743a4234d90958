"""Every setting of a server: its name, default, unit, bounds and one line of what it does.

Owns the classes, some of them in `tlserve.config.tables`: each field is one setting of one table of `runtime.toml`, with its
bounds as metadata. Knows nothing of files, the environment and the command line, which `tlserve.config.load` reads. The
reference page of settings and `specs/runtime.schema.json` are made from these classes.
"""

from __future__ import annotations

import attrs

from tlserve.config.checks import (
    check_endpoint,
    check_key_strength,
    check_listen,
    check_listen_or_empty,
    check_node_urls,
)
from tlserve.config.tables.declare import setting
from tlserve.config.tables.network import AccessSettings, CorsSettings, HttpSettings, TlsSettings
from tlserve.config.tables.responses import ResponseSettings

ACTIVATIONS = ("int12", "int8", "f32")
"""The types of activations, the default one of quantised weights first."""

KERNELS = ("auto", "native", "reference", "amx", "avx512vnni", "avxvnni", "avx2", "neondot", "neon")
"""What computes. The last ones are native kernels of one instruction set; their names are those of `tlserve.kernels.native`."""

LOADS = ("always", "start", "first_use")
"""When a model is in memory."""

DIALECT_NAMES = (
    "harmony",
    "muse_glimmer",
    "functionary_v3_2",
    "smollm3",
    "qwen3_coder",
    "ling3",
    "glm4",
    "granite4",
    "qwen3",
    "deepseek_v3_1",
    "deepseek_r1",
    "hermes",
    "seed_oss",
    "minimax_m2",
    "minimax_m3",
    "deepseek_v4",
    "deepseek_v3_2",
    "gemma4",
    "kimi_k3",
    "minicpm5",
    "lfm2",
    "kimi_k2",
    "solar_open",
    "functionary_v3_1",
    "granite3",
    "apriel",
    "nemotron_v2",
    "apertus",
    "cohere2moe",
    "command_r7b",
    "gigachat3",
    "command_r",
    "magistral",
    "mistral",
    "llama3",
    "plain",
)
"""The dialects of `tlserve.chat.dialects.registry`, which this package cannot import."""


@attrs.frozen(kw_only=True)
class SamplingSettings:
    """The table `[engine.sampling]`: defaults for requests; a key that is left out has the default of the model's makers."""

    temperature: float | None = setting(
        None, "0 is greedy; left out: that of generation_config.json, or 1", unit="(0: greedy)", low=0, high=2
    )
    top_p: float | None = setting(
        None, "keep the likeliest tokens that together have this share", unit="of the probability", low=1e-6, high=1
    )
    top_k: int | None = setting(
        None, "keep only this many of the likeliest tokens; 0: all", unit="tokens", low=0, high=(1 << 31) - 1
    )
    min_p: float | None = setting(
        None,
        "keep tokens with at least this share of the likeliest token's probability; 0: all",
        unit="of the likeliest",
        low=0,
        high=1,
    )
    repetition_penalty: float | None = setting(
        None, "divide the logits of tokens in the prompt or the answer; 1: off", unit="(1: off)", low=0.01, high=100
    )
    presence_penalty: float | None = setting(
        None, "subtract this from the logits of tokens in the answer; 0: off", unit="(0: off)", low=-2, high=2
    )
    frequency_penalty: float | None = setting(
        None, "the same, once for each time the token is in the answer; 0: off", unit="(0: off)", low=-2, high=2
    )


@attrs.frozen(kw_only=True)
class EngineSettings:
    """The table `[engine]`: the model, where it is served, and how the engine schedules."""

    model_dir: str = setting(
        "smol-135m", "directory or GGUF file of the model, or the name of a pulled or built-in model", is_path=True
    )
    model_id: str = setting("", "id under which the model is served; empty: derived from model_dir")
    model_aliases: tuple[str, ...] = setting((), "other ids that clients can use for the same model")
    load: str = setting(
        "always",
        "when the model is in memory; always: from the start to the end; start: from the start, and it can leave; first_use: "
        "from the first request, and it can leave",
        choices=LOADS,
    )
    idle_unload_ms: int = setting(
        0,
        "a model that can leave does so after this time without a request; 0: never for that",
        unit="ms",
        low=0,
        high=2_592_000_000,
    )
    http_listen: str = setting(
        "127.0.0.1:8000",
        "address of the API; ':8000' is every interface, port 0 picks a free one, 'unix:/path' is a Unix socket",
        check=check_listen,
    )
    health_listen: str = setting(
        "127.0.0.1:9464", "address of /healthz, /readyz and /metrics; empty: not served", check=check_listen_or_empty
    )
    context_tokens: int = setting(
        0, "longest prompt and answer together; 0: what the model was trained for", unit="tokens", low=0, high=1 << 20
    )
    max_num_seqs: int = setting(32, "sequences that run in one step", unit="sequences", low=1, high=1024)
    queue_capacity: int = setting(
        128, "requests that can wait while others run; further requests get 429", unit="requests", low=0, high=100_000
    )
    queue_deadline_ms: int = setting(
        30_000, "longest wait in the queue; then 503 no_capacity", unit="ms", low=1, high=86_400_000
    )
    prefix_cache: str = setting("radix", "how prompts share keys and values", choices=("none", "hash", "radix"))
    prefill_chunk: int = setting(
        256, "prompt tokens of all sequences together in a step; 0: whole prompts", unit="tokens", low=0, high=1 << 20
    )
    block_size: int = setting(16, "positions in one block of keys and values", unit="tokens", low=1, high=1024)
    kv_memory_bytes: int = setting(
        0,
        "memory for keys and values; 0: a quarter of the memory that the machine has available, but not more than "
        "max_num_seqs full contexts need",
        unit="bytes",
        low=0,
        high=1 << 44,
    )
    speculative: str = setting(
        "none",
        "how tokens are drafted; prompt_lookup: from the prompt and the answer",
        choices=("none", "prompt_lookup"),
    )
    speculative_tokens: int = setting(
        8, "most drafted tokens of one sequence in one step", unit="tokens", low=1, high=32
    )
    embedding_min_dimensions: int = setting(
        0,
        "fewest dimensions that a request can cut embeddings to, for a model that was trained for that; 0: no cutting",
        unit="dimensions",
        low=0,
        high=1 << 20,
    )
    kernels: str = setting(
        "auto",
        "the arithmetic: native (C), reference (numpy), or native with the instructions of this name",
        choices=KERNELS,
    )
    activations: str = setting(
        "auto",
        "type of the numbers that quantised weights are multiplied with; auto: int12, which is nearly f32; int8 is less exact",
        choices=("auto", *ACTIVATIONS),
    )
    kv_precision: str = setting("f16", "precision of stored keys and values", choices=("f16", "f32"))
    weights: str = setting(
        "stored",
        "stored: weights keep the precision of their file; q8_0: weights of 16 and 32 bits are quantised to 8 bits",
        choices=("stored", "q8_0"),
    )
    threads: int = setting(
        0, "threads of the arithmetic; 0: one per core that the CPU quota allows", unit="threads", low=0, high=1024
    )
    dialect: str = setting(
        "auto",
        "how the model writes reasoning and tool calls; auto: found from its chat template",
        choices=("auto", *DIALECT_NAMES),
    )
    chat_template: str = setting(
        "",
        "file of the Jinja template that turns a conversation into a prompt; empty: the model's own, or if its files have none, "
        "a line <|role|> before the text of each turn",
        is_path=True,
    )
    reasoning_alias: bool = setting(
        default=False, about="also send reasoning under the name `reasoning`, in addition to `reasoning_content`"
    )
    grammar_bytes: int = setting(
        524_288, "longest schema or grammar of an answer; a longer one gets 400", unit="bytes", low=64, high=1 << 20
    )
    grammar_timeout_ms: int = setting(
        2000,
        "processor time to compile one schema or grammar; one that needs more gets 400",
        unit="ms",
        low=1,
        high=600_000,
    )
    grammar_memory_bytes: int = setting(
        256 << 20,
        "memory for the schemas and grammars that stay compiled; one that needs a quarter of it gets 400",
        unit="bytes",
        low=1 << 20,
        high=1 << 40,
    )
    grammar_cache: int = setting(64, "schemas and grammars that stay compiled", unit="grammars", low=1, high=100_000)
    sampling: SamplingSettings = SamplingSettings()
    heartbeat_stale_ms: int = setting(
        30_000, "a step that takes longer than this makes /readyz fail", unit="ms", low=100, high=86_400_000
    )


@attrs.frozen(kw_only=True)
class LoadingSettings:
    """The table `[loading]`: the memory of the models, and how long requests wait for a model that is not in it."""

    memory_bytes: int = setting(
        0,
        "memory of all models together, with their keys and values; when a model does not fit, the one that was used longest "
        "ago leaves, of those that can; 0: nine tenths of the memory that the machine has available at the start",
        unit="bytes",
        low=0,
        high=1 << 44,
    )
    wait_ms: int = setting(
        60_000,
        "longest wait of a request for its model to be loaded, room included; then 503 model_loading",
        unit="ms",
        low=1,
        high=86_400_000,
    )


@attrs.frozen(kw_only=True)
class LogSettings:
    """The table `[log]`: one line per request on standard error; never the text of a prompt or an answer."""

    level: str = setting("info", "lowest severity that is written", choices=("debug", "info", "warning", "error"))
    format: str = setting("text", "lines for people, or one JSON document per line", choices=("text", "json"))


@attrs.frozen(kw_only=True)
class TelemetrySettings:
    """The table `[telemetry]`: metrics and traces for other programs; never the text of a prompt or an answer."""

    vllm_aliases: bool = setting(
        default=False, about="also expose metrics under vLLM's names, such as vllm:num_requests_running"
    )
    traces_endpoint: str = setting(
        "",
        "collector that gets a span for each request by OTLP over HTTP, such as 'http://127.0.0.1:4318/v1/traces'; empty: "
        "no traces; needs the extra tlserve[otel]",
        check=check_endpoint,
    )


@attrs.frozen(kw_only=True)
class FleetSettings:
    """The table `[fleet]`: this server as a node of a fleet, which a head uses below /v1/internal, or as the head.

    A head finds its nodes by one of `nodes`, `nodes_dns` and `ray_address`.
    """

    internal: bool = setting(
        default=False, about="serve /v1/internal, through which the head of a fleet uses this server as a node"
    )
    internal_key: str = setting(
        "",
        "the only key that /v1/internal of a node accepts, and that a head sends; set it as TL_FLEET__INTERNAL_KEY; "
        "empty: no key, on this machine only",
        check=check_key_strength,
        is_secret=True,
    )
    lease_ms: int = setting(
        10_000, "a session that no head has polled for this long is dropped", unit="ms", low=100, high=86_400_000
    )

    nodes: tuple[str, ...] = setting(
        (), "URLs of a head's nodes, such as 'http://10.0.0.7:8000'", check=check_node_urls
    )
    nodes_dns: tuple[str, ...] = setting(
        (),
        "URLs such as 'http://nodes.fleet.svc:8000': a head looks up the host, and there is a node at each of its addresses",
        check=check_node_urls,
    )
    nodes_ca: str = setting(
        "",
        "file of the certificates that https nodes are checked with; empty: those that this system trusts",
        is_path=True,
    )
    ray_address: str = setting(
        "",
        "host:port of the control process of a Ray cluster, whose named actors are a head's nodes; needs tlserve[fleet]",
        check=check_listen_or_empty,
    )
    ray_token_file: str = setting(
        "", "file of the token that all processes of a Ray cluster share; only its owner can have access", is_path=True
    )
    ray_node_ip: str = setting("127.0.0.1", "address of this machine in a Ray cluster, which its sockets are bound to")
    admission: int = setting(
        1024, "requests inside a head at once; more get 429", unit="requests", low=1, high=1_000_000
    )
    max_context: int = setting(
        0, "context length of a head while no node is ready; 0: the model's", unit="tokens", low=0, high=1 << 20
    )
    wall_limit_ms: int = setting(
        600_000, "longest time of a head's answer, including moves between nodes", unit="ms", low=1000, high=86_400_000
    )
    moves: int = setting(
        3, "nodes that can fail during one answer before it ends with an error", unit="nodes", low=0, high=100
    )


SERVER_KEYS = frozenset({"http_listen", "health_listen"})
"""The keys of [engine] that belong to the server, not to a model: no [[models]] table has them."""

OWN_KEYS = frozenset(
    {
        *("model_dir", "model_id", "model_aliases", "context_tokens", "kv_memory_bytes", "embedding_min_dimensions"),
        *("dialect", "chat_template"),
        "sampling",
    }
)
"""The keys of a [[models]] table whose defaults are their own; the other keys default to those of [engine]."""


@attrs.frozen(kw_only=True)
class Settings:
    """All tables of `runtime.toml`. `models`: the complete settings of each [[models]] table."""

    engine: EngineSettings = EngineSettings()
    models: tuple[EngineSettings, ...] = ()
    loading: LoadingSettings = LoadingSettings()
    http: HttpSettings = attrs.field(factory=HttpSettings)
    access: AccessSettings = attrs.field(factory=AccessSettings)
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    cors: CorsSettings = attrs.field(factory=CorsSettings)
    responses: ResponseSettings = attrs.field(factory=ResponseSettings)
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    fleet: FleetSettings = FleetSettings()

    @property
    def served(self) -> tuple[EngineSettings, ...]:
        """Return the settings of every model, that of [engine] first."""
        return (self.engine, *self.models)
