"""Imports point down only, siblings do not know each other, and some modules are at home in some rooms only."""

import ast
from collections.abc import Iterator

import pytest

from tests.kit.source_tree import Module, imports, modules, room_of

# Top to bottom. A place may import what is in a lower line, and itself. A place is a folder of the package, or, where a line is
# drawn inside a folder, a dotted name below it: the longest name that fits decides.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("bench", "testing"),
    ("programs.in_thread",),
    ("programs.server", "programs.ray_cluster"),
    ("programs.banner", "programs.actor_node"),
    ("programs.server_objects", "programs.fleet_head"),
    ("programs.local_models", "programs.http_node"),
    ("programs.capacity", "programs.hosted_model", "programs"),
    ("endpoints", "lifecycle"),
    ("access", "openai", "worker", "fleet"),
    ("http", "chat", "engine"),
    ("text", "model"),
    ("kernels",),
    ("telemetry", "config", "admission"),
    ("generation",),
    ("errors",),
    ("",),  # the package itself: its version
)
LEVEL = {place: level for level, places in enumerate(LAYERS) for place in places}

# What a room never imports although it stands above it.
NEVER = {
    "endpoints": {"worker", "fleet", "engine", "model", "kernels"},
    "engine": {"text", "chat"},
    "fleet": {"text", "chat"},
}

# Modules from outside, and the rooms, or single files, that may know them. A thread is at home in `worker`; `testing` has one
# to run a server beside a synchronous test, `node_host` one to run a node beside the threads that carry its calls.
AT_HOME = {
    "trio": {
        "admission",
        "app",
        "app_node",
        "hosting",
        "node_host",
        "fleet_head",
        "bench",
        "cli",
        "http",
        "endpoints",
        "worker",
        "fleet",
        "lifecycle",
        "testing",
    },
    "h11": {"http"},
    "threading": {"worker", "testing"},
    "queue": {"worker"},
    "_thread": set[str](),
    "asyncio": set[str](),
    "concurrent": {"testing", "node_host", "tlserve.fleet.ray.calls", "tlserve.kernels.thread_pool"},
    "multiprocessing": set[str](),
    "gguf": {"model"},
    "huggingface_hub": {"tlserve.cli.pull.hub_client"},
    "jinja2": {"chat"},
    "llguidance": {"chat"},
    "tokenizers": {"text"},
    "prometheus_client": {"telemetry"},
    "ray": {"tlserve.fleet.ray.actor", "tlserve.fleet.ray.cluster", "tlserve.fleet.ray.link"},
    "opentelemetry": {"tlserve.telemetry.otel"},
    "rich": {"cli"},
    "tomli": {"config"},
}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def upward(module: Module) -> Iterator[str]:
    for line, name in imports(module.tree):
        if not (name + ".").startswith("tlserve."):
            continue
        room = room_of(name) if room_of(name) in LEVEL else ""
        if room != module.room and LEVEL[room] <= LEVEL.get(module.room, 0):
            yield f"{module.path}:{line}: {module.room} imports {name}"


def never(module: Module) -> Iterator[str]:
    for line, name in imports(module.tree):
        if name.startswith("tlserve.") and room_of(name) in NEVER.get(module.room, ()):
            yield f"{module.path}:{line}: {module.room} imports {name}"


def not_at_home(module: Module) -> Iterator[str]:
    for line, name in imports(module.tree):
        rooms = AT_HOME.get(name.partition(".")[0])
        if rooms is not None and not {module.room, module.name} & rooms:
            yield f"{module.path}:{line}: {module.room} imports {name}"


def reads_environment(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        name = node.attr if attribute else None
        imported = (
            {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) and node.module == "os" else set()
        )
        if module.room != "config" and (imported | {name}) & ENVIRONMENT:
            yield f"{module.path}:{node.lineno}: {module.room} reads the environment"


RULES = (upward, never, not_at_home, reads_environment)


def small(name: str, text: str) -> Module:
    some = modules()[0]
    return Module(name, some.path, text, ast.parse(text))


def test_every_room_stands_in_a_layer() -> None:
    assert {module.room for module in modules()} - LEVEL.keys() == set()


def test_imports_point_down() -> None:
    assert [finding for module in modules() for finding in upward(module)] == []


def test_endpoints_engine_and_fleet_do_not_know_what_they_must_not_know() -> None:
    assert [finding for module in modules() for finding in never(module)] == []


def test_libraries_stay_in_their_rooms() -> None:
    assert [finding for module in modules() for finding in not_at_home(module)] == []


def test_only_config_reads_the_environment() -> None:
    assert [finding for module in modules() for finding in reads_environment(module)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tlserve.http.x", "import tlserve.openai.errors"),
        ("tlserve.http.x", "from tlserve.chat import template"),
        ("tlserve.http.x", "def f():\n    from tlserve import app"),
        ("tlserve.errors", "from tlserve import generation"),
        ("tlserve.endpoints.x", "from tlserve.engine.engine import Engine"),
        ("tlserve.engine.x", "from tlserve.text.tokenizer import Tokenizer"),
        ("tlserve.engine.x", "import trio.lowlevel"),
        ("tlserve.endpoints.x", "from h11 import Data"),
        ("tlserve.engine.x", "import threading"),
        ("tlserve.cli.x", "import os\nos.environ['A']"),
        ("tlserve.cli.x", "from os import getenv"),
    ],
)
def test_each_rule_sees_what_it_forbids(name: str, text: str) -> None:
    assert [finding for rule in RULES for finding in rule(small(name, text))]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "tlserve.http.x",
            "import h11, trio\nfrom tlserve.http.sse import event\nfrom tlserve.config.settings import Settings",
        ),
        ("tlserve.cli.x", "from tlserve import __version__, errors\nfrom tlserve import app"),
        ("tlserve.config.x", "import os\nos.environ"),
        ("tlserve.cli.x", "import os\nos.fsync(environ)"),
    ],
)
def test_no_rule_sees_what_is_allowed(name: str, text: str) -> None:
    assert [finding for rule in RULES for finding in rule(small(name, text))] == []
