"""The YAML of Kubernetes and the units of systemd in the pages: their settings are accepted, and their parts fit together."""

import configparser
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.cli.pages import Block, blocks
from tests.kit.source_tree import CHECKOUT
from tlserve.cli.commands import COMMANDS, DEFAULT_COMMAND
from tlserve.cli.parser import OneLineParser
from tlserve.cli.settings_arguments import settings_of
from tlserve.config.settings import Settings
from tlserve.lifecycle.drain import CUT_GRACE_S

SECRET = "a-secret-of-the-test-{}"
PAGES = {name: CHECKOUT / f"docs/how-to/{name}.md" for name in ("restart", "run-on-kubernetes", "run-a-fleet")}


def blocks_of(page: str, language: str) -> list[Block]:
    return [block for block in blocks(PAGES[page].read_text(encoding="utf-8")) if block.language == language]


def documents() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every document of YAML with its page."""
    for page in PAGES:
        for block in blocks_of(page, "yaml"):
            yield from ((page, document) for document in yaml.safe_load_all(block.text))


DEPLOYMENTS = [
    pytest.param(*found, id=found[1]["metadata"]["name"]) for found in documents() if "template" in str(found)
]
UNITS = {block.file: block.text for block in blocks_of("restart", "ini")}


@pytest.fixture
def settings_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return the settings of a command line with its environment; a file that it names is that of the page."""

    def read(page: str, arguments: list[str], environ: Mapping[str, str]) -> Settings:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        if "--config" in arguments:
            (toml,) = [block for block in blocks_of(page, "toml") if block.file == "fleet-k8s.toml"]
            (tmp_path / "runtime.toml").write_text(toml.text)
            arguments = [*arguments[: arguments.index("--config")], "--config", str(tmp_path / "runtime.toml")]
        name, rest = (arguments[0], arguments[1:]) if arguments[0] in COMMANDS else (DEFAULT_COMMAND, arguments)
        parser = OneLineParser(prog="tlserve", allow_abbrev=False)
        COMMANDS[name].load().add_arguments(parser)
        return settings_of(parser.parse_all(rest))

    return read


def container_of(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def environ_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", SECRET.format(entry["name"])) for entry in container["env"]}


@pytest.mark.parametrize(("page", "deployment"), DEPLOYMENTS)
def test_a_pod_has_time_for_its_drain_and_listens_on_its_ports(page, deployment, settings_for):
    container = container_of(deployment)
    settings = settings_for(page, container["args"], environ_of(container))
    pre_stop_s = int(container.get("lifecycle", {}).get("preStop", {}).get("exec", {"command": [0]})["command"][-1])
    needed_s = pre_stop_s + settings.http.drain_timeout_ms / 1000 + CUT_GRACE_S
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > needed_s
    ports = {port["name"]: f":{port['containerPort']}" for port in container["ports"]}
    assert ports == {"http": settings.engine.http_listen, "health": settings.engine.health_listen}
    assert settings.access.api_key
    if "resources" in container:
        assert settings.engine.threads == int(container["resources"]["limits"]["cpu"])


@pytest.mark.parametrize(("page", "deployment"), DEPLOYMENTS)
def test_what_a_pod_refers_to_exists(page, deployment):
    text = PAGES[page].read_text(encoding="utf-8")
    spec, container = deployment["spec"]["template"]["spec"], container_of(deployment)
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    assert {mount["name"] for mount in container.get("volumeMounts", ())} == volumes
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    probed = {container[probe]["httpGet"]["port"] for probe in container if probe.endswith("Probe")}
    assert probed == {"health"}
    for entry in container["env"]:
        if "valueFrom" in entry:
            secret = entry["valueFrom"]["secretKeyRef"]
            assert re.search(rf"create secret generic {secret['name']} [^`]*--from-literal={secret['key']}=", text)


def test_a_service_selects_pods_of_its_page():
    pods = [
        (page, found["spec"]["selector"]["matchLabels"]) for page, found in documents() if found["kind"] == "Deployment"
    ]
    services = [(page, found["spec"]["selector"]) for page, found in documents() if found["kind"] == "Service"]
    assert services
    assert all(service in pods for service in services)


def unit(name: str) -> dict[str, list[tuple[str, str]]]:
    """Return the sections of a unit; a key can be repeated, so each is a list of pairs."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for line in UNITS[name].splitlines():
        if line.startswith("["):
            pairs = sections.setdefault(line.strip("[]"), [])
        elif line:
            key, _, value = line.partition("=")
            pairs.append((key, value))
    configparser.ConfigParser(strict=False, interpolation=None).read_string(UNITS[name])
    return sections


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".service")])
def test_a_unit_starts_a_server_and_gives_it_time_to_drain(name, settings_for):
    service = unit(name)["Service"]
    environ = dict(value.split("=", 1) for key, value in service if key == "Environment")
    program, *arguments = shlex.split(dict(service)["ExecStart"])
    settings = settings_for("restart", arguments, environ)
    assert program.endswith("/tlserve")
    assert int(dict(service)["TimeoutStopSec"]) > settings.http.drain_timeout_ms / 1000 + CUT_GRACE_S
    assert dict(service)["Type"] == "notify"
    folder = dict(service).get("RuntimeDirectory")
    assert folder is None or settings.http.handover_socket.startswith(f"/run/{folder}/")
    assert {socket for socket in dict(service).get("Sockets", "").split() if socket not in UNITS} == set()


def test_the_socket_units_name_the_health_port():
    sockets = {name: dict(unit(name)["Socket"]) for name in UNITS if name.endswith(".socket")}
    assert len(sockets) == 2
    assert [name for name, socket in sockets.items() if socket.get("FileDescriptorName") == "health"] == [
        "tlserve-health.socket"
    ]


def test_the_image_has_the_model_that_the_fleet_serves():
    (image,) = blocks_of("run-on-kubernetes", "dockerfile")
    assert 'ENTRYPOINT ["tlserve"]' in image.text
    (pulled,) = re.findall(r"^RUN tlserve pull (\S+)$", image.text, re.MULTILINE)
    nodes = [
        container_of(found)["args"]
        for page, found in documents()
        if "node" in str(found["metadata"]) and "template" in str(found)
    ]
    assert all(pulled in arguments for arguments in nodes)
