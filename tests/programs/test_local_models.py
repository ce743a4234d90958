"""Several models in one process: the request's `model` selects one, and each has its own engine and queue."""

from typing import Any

import attrs
import pytest
import trio

from tests.kit.engine.gated_model import GatedModel
from tests.kit.http.gated_server import gated_succ, parse_metrics
from tests.kit.http.http_calls import chat, get, post
from tests.kit.model.tiny_models import load_succ, write_tiny_gguf
from tlserve.config.addresses import parse_address
from tlserve.errors import EngineFailed, ModelMissing, SettingsError
from tlserve.http.client.connection import connect
from tlserve.kernels.interface import KvStore, StepBatch, StepOutput
from tlserve.testing import serve, serve_in_thread

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    tiny = write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")
    models: list[dict[str, Any]] = [
        {"model_dir": str(tiny), "model_aliases": ("small", "org/tiny"), "embedding_min_dimensions": 2}
    ]
    with serve_in_thread("succ", models=models) as server:
        yield server


@pytest.mark.spec("API-43")
def test_the_requests_model_picks_by_every_name(two) -> None:
    listed = get(two.address, "/v1/models").json["data"]
    assert [(card["id"], card["root"]) for card in listed] == [
        ("succ", "succ"),
        ("tiny", "tiny"),
        ("small", "tiny"),
        ("org/tiny", "tiny"),
    ]
    answers = {
        name: post(two.address, CHAT, chat("a", model=name, max_tokens=3)).json for name in ("succ", "tiny", "small")
    }
    assert answers["succ"]["choices"][0]["message"]["content"] == "bcd"
    assert answers["tiny"]["choices"] == answers["small"]["choices"] != answers["succ"]["choices"]
    assert answers["tiny"]["system_fingerprint"] != answers["succ"]["system_fingerprint"]
    refused = post(two.address, CHAT, chat("a", model="nobody"))
    assert refused.status == 404
    assert "succ, tiny, small, org/tiny" in refused.json["error"]["message"]


@pytest.mark.spec("API-43")
def test_each_model_answers_as_alone(two, tmp_path) -> None:
    body = chat("Hello", model="tiny", max_tokens=8)
    with serve_in_thread(write_tiny_gguf(tmp_path / "tiny.gguf")) as alone:
        assert post(two.address, CHAT, body).json["choices"] == post(alone.address, CHAT, body).json["choices"]


def test_a_model_with_smaller_dimensions_has_its_own_setting(two) -> None:
    sizes = [
        post(two.address, "/v1/embeddings", {"model": m, "input": "a", "dimensions": 4}).status
        for m in ("tiny", "succ")
    ]
    assert sizes == [200, 422]


def test_health_names_the_kernels_of_every_model(two) -> None:
    for address in (two.address, two.health_address):
        assert list(get(address, "/healthz").json["kernels"]) == ["succ", "tiny"]


def test_the_engines_metrics_name_the_model_only_if_there_are_several(two) -> None:
    post(two.address, CHAT, chat("a", model="tiny", max_tokens=3))
    samples = parse_metrics(get(two.health_address, "/metrics").body.decode())
    assert samples["tl_engine_generated_tokens_total{model='tiny'}"] >= 3
    assert samples["tl_engine_kv_blocks{model='succ',state='used'}"] == 0
    assert "tl_engine_queue_depth{}" not in samples


@pytest.mark.spec("API-43")
async def test_a_step_of_one_model_does_not_delay_another() -> None:
    gate, loaded = gated_succ()
    async with serve("succ", loaded=loaded, models=[{"model_dir": "succ", "model_id": "other"}]) as server:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, server, "succ")
                await trio.to_thread.run_sync(gate.wait_for_step)
                assert b'"bcd"' in await ask(server, "other")
                gate.open_all()


async def ask(server, model: str) -> bytes:
    address = parse_address(server.address)
    async with await connect(address.host, address.port) as client:
        body = (
            b'{"model":"%s","messages":[{"role":"user","content":"a"}],"max_tokens":3,"temperature":0}' % model.encode()
        )
        return (await client.request("POST", CHAT, (), body)).body


async def test_a_drain_waits_for_the_requests_of_every_model() -> None:
    gate, loaded = gated_succ()
    async with serve("succ", loaded=loaded, models=[{"model_dir": "succ", "model_id": "other"}]) as server:
        async with trio.open_nursery() as nursery:
            answers: list[bytes] = []

            async def keep() -> None:
                answers.append(await ask(server, "succ"))

            nursery.start_soon(keep)
            await trio.to_thread.run_sync(gate.wait_for_step)
            server.drain()
            gate.open_all()
        assert b'"bcd"' in answers[0]
        assert await server.join() == 0


class Dying(GatedModel):
    """A model that fails in its first step."""

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        raise MemoryError


async def test_one_engines_death_ends_the_server() -> None:
    succ = load_succ()
    dying = attrs.evolve(succ, model=Dying(succ.model))
    with pytest.raises(EngineFailed):
        async with serve("one", loaded=dying, models=[{"model_dir": "succ", "model_id": "other"}]) as server:
            await ask(server, "one")
            await server.ended.wait()


def test_an_encoder_next_to_a_chat_model_embeds_and_refuses_to_chat() -> None:
    encoder = attrs.evolve(load_succ(), generates=False)
    with serve_in_thread("encoder", loaded=encoder, models=[{"model_dir": "succ"}]) as server:
        assert post(server.address, "/v1/embeddings", {"model": "encoder", "input": ["a", "b"]}).status == 200
        refused = post(server.address, CHAT, chat("a", model="encoder"))
        assert (refused.status, refused.json["error"]["param"]) == (422, "model")
        assert "'encoder' makes embeddings" in refused.json["error"]["message"]
        assert post(server.address, CHAT, chat("a", max_tokens=3)).json["choices"][0]["message"]["content"] == "bcd"


@pytest.mark.spec("SET-18")
@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([{"model_dir": "succ"}], "2 models have the id 'succ'"),
        ([{"model_dir": "x", "model_aliases": ("succ",)}], "2 models have the id 'succ'"),
        ([{"model_dir": ""}], "models[0].model_dir is missing"),
    ],
)
async def test_models_with_conflicting_names_are_refused(tables, words: str) -> None:
    with pytest.raises(SettingsError, match="models") as refused:
        async with serve("succ", models=tables):
            pass
    assert words in refused.value.message


async def test_a_missing_second_model_keeps_the_server_from_starting() -> None:
    with pytest.raises(ModelMissing):
        async with serve("succ", models=[{"model_dir": "no-such-model"}]):
            pass
