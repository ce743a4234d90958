"""What happens in one simulated run, drawn from a seed: settings, clients, faults and signals. Plain data; nothing runs here."""

from __future__ import annotations

import json
import random
from typing import Any, Literal

import attrs

from tlserve.config.tables.network import HttpSettings
from tlserve.engine.config import EngineConfig

KEYS = ("", "sk-first-000000000000", "sk-second-00000000000")
WORDS = ("Tell me", "a story", "about", "é", "日本", "the sea", "and", "42", '"quoted"', "end")

Manner = Literal["whole", "bytes", "slow_reader", "leaves", "half_closes", "pipelines", "stays", "garbage"]
"""How a client behaves. Only `leaves` and `garbage` may go without an answer."""

FaultKind = Literal[
    "hold", "fail", "kill_node", "freeze_node", "restart_node", "drain_node", "cut_node", "link", "other_head"
]


@attrs.frozen(kw_only=True)
class Ask:
    """One request: its path and body, and the key that it shows."""

    path: str
    body: dict[str, Any]
    key: str = ""
    id: str = ""

    def raw(self, *, close: bool) -> bytes:
        """Return the request as bytes."""
        data = json.dumps(self.body).encode()
        lines = [
            f"POST {self.path} HTTP/1.1",
            "Host: localhost",
            f"X-Request-Id: {self.id}",
            f"Content-Length: {len(data)}",
        ]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        if close:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode() + data


@attrs.frozen(kw_only=True)
class Client:
    """One connection: when it opens, what it sends, and how. `cuts` are the places at which its bytes are split."""

    at: float
    manner: Manner
    asks: tuple[Ask, ...]
    pause_s: float = 0.0
    cut_seed: int = 0
    leaves_after: int = 0


@attrs.frozen(kw_only=True)
class Fault:
    """Something that goes wrong at a time, for a while; `times`: with so many calls of a link, one after the other."""

    at: float
    kind: FaultKind
    node: int = 0
    lasts_s: float = 0.0
    link: tuple[str, str] = ("", "")
    times: int = 1


@attrs.frozen(kw_only=True)
class Plan:
    """One run. `nodes` 0: an engine in the server's own process; more: the server is the head of a fleet.

    `link_delay_s` is how long each message to a node takes, `window_events` how far a node goes ahead of the client. One that
    `spares_a_node` has faults on all nodes but one, which can then continue every request.
    """

    seed: int
    engine: EngineConfig
    http: HttpSettings
    admission: int
    queue_deadline_s: float
    step_s: float
    nodes: int
    link_delay_s: float
    window_events: int
    has_keys: bool
    clients: tuple[Client, ...]
    faults: tuple[Fault, ...]
    stops: tuple[float, ...]
    spares_a_node: bool


DOUBLED = ("poll", "doubled")
"""The fault of a link that changes nothing at all."""

NODE_FAULTS: tuple[FaultKind, ...] = (
    "hold",
    "kill_node",
    "restart_node",
    "freeze_node",
    "drain_node",
    *("fail",) * 2,
    *("cut_node",) * 4,
    *("other_head",) * 2,
    *("link",) * 8,
)

LINK_FAULTS = (
    ("place", "lost_request"),
    ("place", "lost_reply"),
    ("place", "hung"),
    ("place", "late"),
    ("poll", "lost_request"),
    ("poll", "lost_reply"),
    ("poll", "hung"),
    ("poll", "doubled"),
    ("poll", "gap"),
    ("poll", "shifted"),
    ("poll", "shifted"),
    ("poll", "shifted"),
    ("cancel", "lost_request"),
    ("hello", "lost_reply"),
)


def make_plan(seed: int) -> Plan:
    """Draw the plan of `seed`; the same seed gives the same plan."""
    return _Drawing(seed).plan()


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.asked = 0
        self.begins: list[float] = []

    def plan(self) -> Plan:
        rng = self.rng
        nodes = rng.choice((0, 0, 3))
        engine = self._engine()
        clients = tuple(self._client() for _ in range(rng.randint(1, 12)))
        self.begins = [client.at for client in clients]
        return Plan(
            seed=self.seed,
            engine=engine,
            http=self._http(),
            admission=engine.max_num_seqs + engine.max_waiting,
            queue_deadline_s=rng.choice((0.5, 5.0, 30.0)),
            step_s=rng.choice((0.01, 0.05, 0.2)),
            nodes=nodes,
            link_delay_s=rng.choice((0.0, 0.04, 0.15)),
            window_events=rng.choice((4, 16, 64)),
            has_keys=rng.random() < 0.3,
            clients=clients,
            faults=self._faults(nodes),
            stops=self._stops(nodes),
            spares_a_node=rng.random() < 0.75,
        )

    def _engine(self) -> EngineConfig:
        rng = self.rng
        block_size = rng.choice((1, 4, 16))
        return EngineConfig(
            max_num_seqs=rng.randint(1, 6),
            max_waiting=rng.randint(0, 6),
            prefill_chunk=rng.choice((0, 4, 16, 64)),
            block_size=block_size,
            kv_blocks=rng.choice((160, 512)) // block_size,  # so few that sequences are preempted
            prefix_cache=rng.choice(("none", "hash", "radix")),
            speculative=rng.choice(("none", "prompt_lookup")),
            sampler="numpy",
        )

    def _http(self) -> HttpSettings:
        rng = self.rng
        return HttpSettings(
            max_connections=rng.choice((2, 1024)),
            header_timeout_ms=rng.choice((2_000, 30_000)),
            body_timeout_ms=rng.choice((2_000, 60_000)),
            idle_timeout_ms=rng.choice((500, 75_000)),
            write_timeout_ms=rng.choice((1_000, 30_000)),
            ping_interval_ms=rng.choice((100, 15_000)),
            drain_timeout_ms=rng.choice((0, 1_000, 30_000)),
        )

    def _stops(self, nodes: int) -> tuple[float, ...]:
        rng = self.rng
        count = rng.choice((0, 0, 0, 1, 2) if nodes else (0, 1, 1, 2, 2))
        return tuple(sorted(self._moment() for _ in range(count)))

    def _moment(self) -> float:
        """Draw a time at which something is likely to be going on: often soon after a client has come."""
        rng = self.rng
        if rng.random() < 0.25:
            return rng.uniform(0, 4)
        return rng.choice(self.begins) + rng.choice((0.05, 0.5, 1.0)) * rng.random()

    def _faults(self, nodes: int) -> tuple[Fault, ...]:
        counts = (0, 1, 2, 4, 6) if nodes else (0, 0, 1, 1)
        count = self.rng.choice(counts)
        if nodes and self.rng.random() < 0.25:
            return tuple(attrs.evolve(self._fault(nodes), kind="link", link=DOUBLED) for _ in range(count))
        return tuple(self._fault(nodes) for _ in range(count))

    def _fault(self, nodes: int) -> Fault:
        rng = self.rng
        kinds: tuple[FaultKind, ...] = ("hold", "hold", "fail")
        if nodes:
            kinds = NODE_FAULTS
        return Fault(
            at=self._moment(),
            kind=rng.choice(kinds),
            node=rng.randrange(max(1, nodes)),
            lasts_s=rng.choice((0.3, 2.0)),
            link=rng.choice(LINK_FAULTS),
            times=rng.choice((1, 1, 4)),
        )

    # --- clients

    def _client(self) -> Client:
        rng = self.rng
        manner: Manner = rng.choice(
            (
                "whole",
                "whole",
                "whole",
                "bytes",
                "slow_reader",
                "leaves",
                "leaves",
                "half_closes",
                "pipelines",
                "stays",
                "stays",
                "garbage",
            )
        )
        asks = tuple(self._ask() for _ in range(rng.randint(2, 3) if manner == "pipelines" else rng.choice((1, 1, 2))))
        return Client(
            at=rng.choice((0.0, rng.uniform(0, 3))),
            manner=manner,
            asks=asks,
            pause_s=rng.choice((0.0, 0.05, 0.5)),
            cut_seed=rng.randrange(1 << 30),
            leaves_after=rng.choice((0, 1, 50, 200, 400, 900)),
        )

    def _ask(self) -> Ask:
        rng = self.rng
        self.asked += 1
        chat = rng.random() < 0.5
        body = self._chat() if chat else self._completion()
        path = "/v1/chat/completions" if chat else "/v1/completions"
        return Ask(path=path, body=body, key=rng.choice((*KEYS[1:], *KEYS[1:], "sk-wrong")), id=f"r{self.asked}")

    def _text(self) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.choice((1, 2, 5, 12))))

    def _chat(self) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": self._text()}], **self._shape()}

    def _completion(self) -> dict[str, Any]:
        return {"prompt": self._text(), **self._shape()}

    def _shape(self) -> dict[str, Any]:
        rng = self.rng
        shape: dict[str, Any] = {
            "model": "hash",
            "max_tokens": rng.choice((1, 5, 20, 60, 80)),
            "temperature": rng.choice((0, 0.7, 1.5)),
            "seed": rng.randrange(1 << 30),
            "stream": rng.random() < 0.6,
        }
        if rng.random() < 0.2:
            shape["n"] = rng.randint(1, 3)
        if rng.random() < 0.3:
            shape["stop"] = rng.sample(("a", "e", "th", "7", "é", "\n"), rng.randint(1, 3))
        if rng.random() < 0.2:
            shape["presence_penalty"] = rng.choice((-1, 0.5, 2))
        if shape["stream"] and rng.random() < 0.5:
            shape["stream_options"] = {"include_usage": True}
        if rng.random() < 0.08:
            shape["temperature"] = -1  # a refusal among the others
        return shape
