"""What a server holds once it serves."""

import gc
import weakref

import trio

from tlserve.config.load import load_settings
from tlserve.programs.residency.models import load_models
from tlserve.programs.server import serve

SETTINGS = [("engine.model_dir", "succ"), ("engine.http_listen", "127.0.0.1:0"), ("engine.health_listen", "")]


async def test_what_a_model_was_made_of_is_released_when_the_server_is_ready():
    settings, made = load_settings(None, {}, SETTINGS), []

    def load():
        make = load_models(settings)
        made.append(weakref.ref(make))
        return make

    async def run(*, task_status):
        await serve(settings, load=load, handle_signals=False, task_status=task_status)

    async with trio.open_nursery() as nursery:
        running = await nursery.start(run)
        gc.collect()
        assert made[0]() is None
        running.stop()
