"""Imports point down only, packages of one layer do not import each other, and some libraries belong to some packages."""

import ast
from collections.abc import Iterator

import pytest

from tests.kit.source_tree import Module, imports, modules, package_of

# Top to bottom. A module can import from the lines below its own, and from its own place. A place is a package, or a dotted
# name inside one where layers are drawn there too; the longest name that fits decides.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("bench", "testing", "quality"),
    ("programs.in_thread",),
    ("programs.embedded",),
    ("programs.server", "programs.ray.control", "programs.ray.node"),
    ("programs.banner", "programs.node_in_thread"),
    ("programs.entrance",),
    ("programs.server_objects", "programs.server_end", "programs.fleet_head"),
    ("programs.residency",),
    ("programs.local_models", "programs.http_node", "programs.ray.program"),
    ("programs.grammars",),
    ("programs.hosted_model", "programs"),
    ("endpoints", "lifecycle", "mock"),
    ("responses",),
    ("access", "openai", "anthropic", "ollama", "scoring", "worker", "fleet"),
    ("api",),
    ("http", "chat", "engine"),
    ("text", "model"),
    ("kernels",),
    ("telemetry", "config", "admission"),
    ("generation",),
    ("sampling_params",),
    ("errors",),
    ("",),  # the package itself: its version
)
LEVEL = {place: level for level, places in enumerate(LAYERS) for place in places}

# The imports that a package must not have, although its layer would allow them.
NEVER = {
    "endpoints": {"worker", "fleet", "engine", "model", "kernels"},
    "engine": {"text", "chat"},
    "fleet": {"text", "chat"},
}

# Modules from outside, and the packages or single modules that can import them. Threads belong to `worker`; two programs have one
# each: to run a server next to synchronous code, and to run a node next to the threads that carry its calls.
AT_HOME = {
    "trio": {
        "admission",
        "bench",
        "cli",
        "endpoints",
        "fleet",
        "http",
        "lifecycle",
        "programs",
        "worker",
    },
    "h11": {"http"},
    "threading": {"worker"},
    "queue": {"worker"},
    "_thread": set[str](),
    "asyncio": set[str](),
    "concurrent": {
        "tlserve.programs.in_thread",
        "tlserve.programs.node_in_thread",
        "tlserve.fleet.ray.calls",
        "tlserve.kernels.thread_pool",
        "tlserve.kernels.native.build",
    },
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
    "sqlite3": {"tlserve.responses.store", "tlserve.endpoints.responses.kept"},
    "tomli": {"config"},
}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def place_of(name: str) -> str:
    """Return the longest place that a dotted name is in; "" is the package itself."""
    parts = name.split(".")[1:]
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in LEVEL), "")


def upward(module: Module) -> Iterator[str]:
    here = place_of(module.name)
    for line, name in imports(module.tree):
        there = place_of(name)
        if (name + ".").startswith("tlserve.") and there != here and LEVEL[there] <= LEVEL[here]:
            yield f"{module.path}:{line}: {here} imports {name}"


def never(module: Module) -> Iterator[str]:
    for line, name in imports(module.tree):
        if name.startswith("tlserve.") and package_of(name) in NEVER.get(module.package, ()):
            yield f"{module.path}:{line}: {module.package} imports {name}"


def not_at_home(module: Module) -> Iterator[str]:
    for line, name in imports(module.tree):
        homes = AT_HOME.get(name.partition(".")[0])
        if homes is not None and not {module.package, module.name} & homes:
            yield f"{module.path}:{line}: {module.package} imports {name}"


def reads_environment(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        names = set[str]()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            names = {node.attr}
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            names = {alias.name for alias in node.names}
        if module.package != "config" and isinstance(node, ast.Attribute | ast.ImportFrom) and names & ENVIRONMENT:
            yield f"{module.path}:{node.lineno}: {module.package} reads the environment"


RULES = (upward, never, not_at_home, reads_environment)


def small(name: str, text: str) -> Module:
    some = modules()[0]
    return Module(name, some.path, text, ast.parse(text))


def test_every_package_has_a_layer() -> None:
    assert {module.name for module in modules() if module.package and not place_of(module.name)} == set()


def test_imports_point_to_lower_layers() -> None:
    assert [finding for module in modules() for finding in upward(module)] == []


def test_endpoints_engine_and_fleet_keep_to_their_allowed_imports() -> None:
    assert [finding for module in modules() for finding in never(module)] == []


def test_libraries_stay_in_their_packages() -> None:
    assert [finding for module in modules() for finding in not_at_home(module)] == []


def test_only_config_reads_the_environment() -> None:
    assert [finding for module in modules() for finding in reads_environment(module)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tlserve.http.x", "import tlserve.api.errors"),
        ("tlserve.http.x", "from tlserve.chat import template"),
        ("tlserve.http.x", "def f():\n    from tlserve.programs import server"),
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
def test_each_rule_detects_forbidden_imports(name: str, text: str) -> None:
    assert [finding for rule in RULES for finding in rule(small(name, text))]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "tlserve.http.x",
            "import h11, trio\nfrom tlserve.http.sse import event\nfrom tlserve.config.settings import Settings",
        ),
        ("tlserve.cli.x", "from tlserve import __version__, errors\nfrom tlserve.programs import server"),
        ("tlserve.config.x", "import os\nos.environ"),
        ("tlserve.cli.x", "import os\nos.fsync(environ)"),
    ],
)
def test_no_rule_detects_allowed_imports(name: str, text: str) -> None:
    assert [finding for rule in RULES for finding in rule(small(name, text))] == []
