"""The arguments that are settings: `--config`, `--model`, `--host`, `--port`, `--health-port`, `--set`.

Owns their names, and the rule that a host or a port alone replaces its half of the listening address. All commands with settings
have the same arguments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import attrs

from tlserve.config.addresses import UNIX, parse_address
from tlserve.config.environment import process_environ
from tlserve.config.load import Loaded, load_with_sources
from tlserve.config.settings import KERNELS, Settings
from tlserve.errors import SettingsError

Overrides = list[tuple[str, str]]


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments on `parser`."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="a runtime.toml; without it the defaults apply")
    parser.add_argument("--model", "--model-dir", metavar="PATH", help="directory, GGUF file or name of the model")
    parser.add_argument("--host", help="host of the API; an empty host is every interface")
    parser.add_argument("--port", type=_port, help="port of the API; 0 picks a free one")
    parser.add_argument(
        "--kernels",
        choices=KERNELS,
        help="the arithmetic: native (C), reference (numpy), or native with the instructions of this name",
    )
    parser.add_argument("--health-port", type=_port, help="port of /healthz, /readyz and /metrics")
    add_pair_argument(parser, "any setting")


def add_pair_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare `--set KEY=VALUE`; the values are collected as `pairs`."""
    parser.add_argument(
        "--set",
        dest="pairs",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help=f"{what}, such as http.max_body_bytes=1000; a key without a table belongs to [engine]",
    )


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the file, the environment and `arguments`; raises `SettingsError`."""
    return loaded_settings_of(arguments).settings


def loaded_settings_of(arguments: argparse.Namespace) -> Loaded:
    """Do the same as `settings_of`, and keep the source of each value."""
    overrides: Overrides = list(arguments.pairs)
    if arguments.model is not None:
        overrides.append(("engine.model_dir", arguments.model))
    if arguments.kernels is not None:
        overrides.append(("engine.kernels", arguments.kernels))
    loaded = load_with_sources(arguments.config, process_environ(), overrides)
    moved = _moved_addresses(arguments, loaded.settings)
    return load_with_sources(arguments.config, process_environ(), overrides + moved) if moved else loaded


def _moved_addresses(arguments: argparse.Namespace, settings: Settings) -> Overrides:
    """Return the listening addresses in which arguments replace a half."""
    engine = settings.engine
    return [
        *_moved("engine.http_listen", engine.http_listen, arguments.host, arguments.port),
        *_moved("engine.health_listen", engine.health_listen, None, arguments.health_port),
    ]


def _moved(name: str, text: str, host: str | None, port: int | None) -> Overrides:
    if host is None and port is None:
        return []
    address = parse_address("127.0.0.1:0" if not text or text.startswith(UNIX) else text)
    host = address.host if host is None else host.removeprefix("[").removesuffix("]")
    return [(name, str(attrs.evolve(address, host=host, port=address.port if port is None else port)))]


def _port(text: str) -> int:
    try:
        return parse_address(f":{text}").port
    except SettingsError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 65535") from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (equals and key):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
