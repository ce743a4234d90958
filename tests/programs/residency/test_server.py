"""A server whose models come and go, over real sockets."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cli.processes import server_process
from tests.kit.http.gated_server import parse_metrics
from tests.kit.http.http_calls import chat, get, post
from tests.kit.model.tiny_models import tiny_shape, write_tiny_gguf
from tlserve.errors import SettingsError
from tlserve.testing import serve_in_thread

CHAT, LOAD = "/v1/chat/completions", "/api/generate"
ONE_MODEL = 300_000
"""More than one of the tiny models takes with its keys and values, and less than two."""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_tiny_gguf(folder / f"{name}.gguf", seed) for seed, name in enumerate(("one", "two"))}


def serve_two(files, room: int = 262_144 + ONE_MODEL, **settings: Any):
    models: list[dict[str, Any]] = [
        {"model_dir": str(path), "load": "first_use", "kv_memory_bytes": 65_536} for path in files.values()
    ]
    return serve_in_thread("succ", models=models, settings={"loading.memory_bytes": room, **settings})


def states(server) -> dict[str, str]:
    return {card["id"]: card["state"] for card in get(server.address, "/v1/models").json["data"]}


def wait_for(server, **expected: str) -> None:
    end = time.monotonic() + 30
    while {name: states(server)[name] for name in expected} != expected:
        assert time.monotonic() < end, (states(server), expected)


def answer(server, model: str, **fields: Any) -> Any:
    return post(server.address, CHAT, chat("Hello", model=model, max_tokens=8, seed=1, logprobs=True, **fields))


@pytest.mark.spec("RES-2", "RES-9", "RES-11", "RES-12", "RES-14")
def test_models_take_turns_and_answer_with_the_same_bits(files) -> None:
    with serve_two(files) as server:
        assert states(server) == {"succ": "loaded", "one": "unloaded", "two": "unloaded"}
        assert get(server.health_address, "/readyz").status == get(server.address, "/health").status == 200
        counted = post(server.address, "/v1/tokenize", {"model": "one", "text": "Hello"}).json["count"]
        assert (counted, states(server)["one"]) == (5, "unloaded")
        first = [answer(server, name).json for name in ("one", "two")]
        assert states(server) == {"succ": "loaded", "one": "unloaded", "two": "loaded"}
        again = [answer(server, name).json for name in ("one", "two")]
        for before, after in zip(first, again, strict=True):
            assert before["choices"] == after["choices"]
            assert before["system_fingerprint"] == after["system_fingerprint"] != ""
        samples = parse_metrics(get(server.health_address, "/metrics").body.decode())
        assert samples["tl_model_loads_total{model='one'}"] == samples["tl_model_unloads_total{model='one'}"] == 2
        assert samples["tl_engine_generated_tokens_total{model='one'}"] == 16
        assert (samples["tl_model_loaded{model='one'}"], samples["tl_model_loaded{model='two'}"]) == (0, 1)
        assert samples["tl_model_memory_bytes{model='one'}"] == 0 < samples["tl_model_memory_bytes{model='two'}"]


@pytest.mark.spec("RES-3", "RES-4")
def test_requests_to_both_models_at_once_are_all_answered(files) -> None:
    with serve_two(files) as server, ThreadPoolExecutor(12) as clients:
        streams = [
            clients.submit(answer, server, name, stream=number % 3 == 0) for number in range(4) for name in files
        ]
        embeddings = [
            clients.submit(post, server.address, "/v1/embeddings", {"model": name, "input": "Hello"}) for name in files
        ]
        replies = [future.result(60) for future in streams + embeddings]
        pairs = {"query": "Hello", "documents": ["Hello", "a"]}
        scored = [clients.submit(post, server.address, "/v1/rerank", {"model": name, **pairs}) for name in files]
        replies += [future.result(60) for future in scored]
    assert {reply.status for reply in replies} == {200}
    assert all(
        reply.events[-1] == "[DONE]" for reply in replies if reply.headers["content-type"] == "text/event-stream"
    )


@pytest.mark.spec("RES-6", "RES-11")
def test_a_file_that_is_gone_is_a_named_error_until_it_is_back(files, tmp_path, caplog) -> None:
    away = tmp_path / "away.gguf"
    with serve_two(files) as server:
        files["one"].rename(away)
        for damaged in (False, True):
            if damaged:
                files["one"].write_bytes(b"GGUF, and no more")
            refused = answer(server, "one")
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")
            assert refused.json["error"]["code"] == "model_load_failed"
            assert "'one'" in refused.json["error"]["message"]
            assert str(files["one"]) not in refused.json["error"]["message"]
            wait_for(server, one="failed")
            assert answer(server, "two").status == 200
        assert str(files["one"]) in caplog.text
        away.rename(files["one"])
        assert answer(server, "one").status == 200


@pytest.mark.spec("RES-15")
def test_another_tokenizer_is_not_taken_for_the_one_of_the_start(files, tmp_path) -> None:
    own = {"one": tmp_path / "one.gguf"}
    write_tiny_gguf(own["one"])
    with serve_two(own) as server:
        own["one"].unlink()
        write_tiny_gguf(own["one"], chat_template="other {{ messages }}")
        assert answer(server, "one").json["error"]["code"] == "model_load_failed"
        own["one"].unlink()
        write_tiny_gguf(own["one"], seed=7)  # other weights are another model under the same name
        assert answer(server, "one").status == 200


@pytest.mark.spec("RES-7")
def test_models_that_cannot_fit_are_refused_at_the_start(files) -> None:
    with (
        pytest.raises(SettingsError, match=r"the weights of one take [0-9]+ bytes, and 1000 are left"),
        serve_two(files, 263_144),
    ):
        pass
    with (
        pytest.raises(SettingsError, match=r"need 262144 bytes \(succ 0 MiB\), and the limit is 1000"),
        serve_two(files, 1000),
    ):
        pass


@pytest.mark.spec("RES-7")
def test_a_model_whose_keys_and_values_do_not_fit_is_507(tmp_path) -> None:
    path = write_tiny_gguf(tmp_path / "one.gguf", shape=tiny_shape(context_tokens=4096))
    models: list[dict[str, Any]] = [{"model_dir": str(path), "load": "first_use", "kv_memory_bytes": 1 << 20}]
    with serve_in_thread("succ", models=models, settings={"loading.memory_bytes": 262_144 + ONE_MODEL}) as server:
        refused = answer(server, "one")
        assert (refused.status, refused.json["error"]["code"]) == (507, "model_too_large")
        assert "retry-after" not in refused.headers
        assert answer(server, "succ").status == 200


@pytest.mark.spec("RES-1", "RES-10")
def test_a_model_of_the_start_leaves_when_it_is_idle() -> None:
    settings: dict[str, Any] = {"engine.load": "start", "engine.idle_unload_ms": 100}
    with serve_in_thread("succ", settings=settings) as server:
        wait_for(server, succ="unloaded")
        assert answer(server, "succ").json["choices"][0]["message"]["content"] == "pqrstuvw"
        wait_for(server, succ="unloaded")


@pytest.mark.spec("OLL-5", "OLL-13", "OLL-14", "OLL-15")
def test_ollamas_requests_load_keep_and_unload(files) -> None:
    with serve_two(files) as server:

        def ps() -> dict[str, Any]:
            return {model["name"]: model for model in get(server.address, "/api/ps").json["models"]}

        assert list(ps()) == ["succ:latest"]
        loaded = post(server.address, LOAD, {"model": "one", "keep_alive": "1h"}).json
        assert (loaded["done"], loaded["done_reason"]) == (True, "load")
        assert list(ps()) == ["succ:latest", "one:latest"]
        assert (ps()["succ:latest"]["expires_at"][:4], ps()["one:latest"]["size"] > 0) == ("9999", True)
        assert ps()["one:latest"]["expires_at"] < "9999"
        body = {"model": "one", "prompt": "a", "stream": False, "options": {"num_predict": 2}}
        assert post(server.address, LOAD, {**body, "keep_alive": -1}).json["load_duration"] == 0
        assert ps()["one:latest"]["expires_at"][:4] == "9999"
        unloaded = post(server.address, LOAD, {"model": "one", "keep_alive": 0}).json
        assert unloaded["done_reason"] == "unload"
        wait_for(server, one="unloaded")
        assert post(server.address, LOAD, {**body, "keep_alive": "0s"}).json["load_duration"] > 0
        wait_for(server, one="unloaded")
        assert post(server.address, "/api/embed", {"model": "one", "input": "a", "keep_alive": 0}).status == 200
        wait_for(server, one="unloaded")
        refused = post(server.address, LOAD, {"model": "succ", "prompt": "a", "keep_alive": 0})
        assert (refused.status, "always in memory" in refused.json["error"]) == (422, True)


@pytest.mark.spec("RES-3")
def test_a_response_in_the_background_holds_its_model_until_it_has_ended(files) -> None:
    fields = {"input": "Hello", "background": True, "store": True, "max_output_tokens": 200}
    with serve_two(files) as server:
        begun = post(server.address, "/v1/responses", {"model": "one", **fields}).json
        assert answer(server, "two").status == 200  # it had to wait for the other model to leave
        found = get(server.address, f"/v1/responses/{begun['id']}").json
        assert (found["status"], found["usage"]["output_tokens"]) == ("incomplete", 200)
        wait_for(server, one="unloaded")


@pytest.mark.spec("RES-8")
def test_a_drain_during_a_load_answers_the_request_that_waits(files) -> None:
    with serve_two(files) as server, ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(answer, server, "one")
        while states(server)["one"] == "unloaded":
            assert not waiting.done()
        server.drain()
        assert waiting.result(30).status == 200
        assert server.join() == 0


@pytest.mark.spec("RES-13")
@pytest.mark.parametrize("role", [{"fleet.internal": True}, {"fleet.nodes": "http://127.0.0.1:9"}])
def test_the_model_of_a_fleet_is_always_loaded(role) -> None:
    with (
        pytest.raises(SettingsError, match=r"engine\.load"),
        serve_in_thread("succ", settings={"engine.load": "first_use", **role}),
    ):
        pass


def anonymous_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError


@pytest.mark.slow
@pytest.mark.spec("RES-9")
def test_memory_returns_after_every_unload(tmp_path) -> None:
    path = write_tiny_gguf(tmp_path / "big.gguf", shape=tiny_shape(layers=6, hidden=512, intermediate=2048))
    config = tmp_path / "runtime.toml"
    config.write_text(f'[engine]\nmodel_dir = "succ"\n[[models]]\nmodel_dir = "{path}"\nload = "first_use"\n')
    # A process of its own: in this one other tests leave free pages.
    with server_process("--config", str(config)) as server:
        loaded, left = [], []
        for _ in range(20):
            assert answer(server, "big").status == 200
            loaded.append(anonymous_mib(server.process.pid))
            post(server.address, LOAD, {"model": "big", "keep_alive": 0})
            wait_for(server, big="unloaded")
            left.append(anonymous_mib(server.process.pid))
    size = path.stat().st_size / (1 << 20)
    assert min(loaded) - max(left) > size / 2, (size, loaded, left)
    assert max(left[1:]) - left[0] < size / 4, (size, loaded, left)
