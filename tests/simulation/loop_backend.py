"""The real engine behind the real backend, stepped in the event loop: no thread, and every step takes virtual time.

Only the thread is replaced: commands wait in the real mailbox, the real `EngineThread` takes its turns, reports come back by
`run_sync_soon`. Around each step the engine's rules are checked; what breaks one is in `broken`, because the server takes it
for a failure of the engine. A test can hold the engine and make it fail.
"""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from tests.kit.engine.hash_model import HashModel
from tests.simulation.engine_rules import EngineRules
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.generation import BackendInfo, GenerationRequest, TokenStream
from tlserve.worker.engine_thread import Command, EngineThread, Report
from tlserve.worker.local_backend import BackendLimits, LocalBackend
from tlserve.worker.mailbox import Mailbox

VOCABULARY = 256

OTHER_HEAD = "other-head"
"""The name of a head that is not the server, and the id and the tenant of its requests."""


class LoopMailbox(Mailbox[Command, Report]):
    """A mailbox whose reader is a task: a command wakes it."""

    def __init__(self, deliver: Callable[[Report], None]) -> None:
        super().__init__(deliver, trio.current_time)
        self.arrived = trio.Event()

    def put(self, command: Command) -> None:
        super().put(command)
        self.arrived.set()


class EngineBroken(Exception):
    """What a simulated engine fails with."""


class LoopBackend(LocalBackend):
    """One backend; `step_s` is what a step takes. `requests` are all that came, for the comparison with the truth."""

    def __init__(self, config: EngineConfig, *, admission: int, queue_deadline_s: float, step_s: float) -> None:
        self.engine = Engine(HashModel(vocabulary_size=VOCABULARY, context_tokens=512), config)
        info = BackendInfo(
            model_id="hash",
            context_tokens=self.engine.context_tokens,
            vocabulary_size=VOCABULARY,
            embedding_size=8,
            system_fingerprint="fp_hash",
            kernels="none",
            admission_limit=admission,
        )
        limits = BackendLimits(admission=admission, queue_deadline_s=queue_deadline_s, heartbeat_stale_s=1e9)
        super().__init__(self.engine, info, limits)
        self.loop_mailbox = LoopMailbox(self._deliver)
        self._mailbox = self.loop_mailbox
        self._thread = EngineThread(self.engine, self._mailbox)
        self._rules = EngineRules(self.engine)
        self.broken: list[str] = []
        self.slots = config.max_num_seqs
        self.requests: list[GenerationRequest] = []
        self.admitted_at: dict[str, float] = {}
        self.admissions: list[tuple[str, int]] = []
        self.drained_at: float | None = None
        self._step_s = step_s
        self._held = trio.Event()
        self._held.set()
        self._is_broken = False
        self.is_over = False

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenStream]:
        """Serve `request`; remember it, and when it was admitted."""
        if request.request_id != OTHER_HEAD:
            self.requests.append(request)
        async with super().generate(request) as tokens:
            self.admitted_at[request.request_id] = trio.current_time()
            if request.request_id != OTHER_HEAD:
                self.admissions.append((request.request_id, request.choice))
            yield tokens

    # --- faults

    def hold(self) -> None:
        """Let no step begin."""
        if self._held.is_set():
            self._held = trio.Event()

    def go_on(self) -> None:
        """Let steps begin again."""
        self._held.set()

    def fail(self) -> None:
        """Let the next step raise."""
        self._is_broken = True
        self.loop_mailbox.arrived.set()

    # --- the loop

    async def _run_engine(self) -> None:
        try:
            await self._loop()
        except EngineBroken:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.broken.append(f"{error!r} in {place.name}: {place.line}")
            raise
        finally:
            self.is_over = True

    async def _loop(self) -> None:
        assert self._thread is not None
        while True:
            await self._wait_for_work()
            self._rules.before()
            report = self._thread.turn(self._mailbox.take(wait=False))
            if self._is_broken:
                raise EngineBroken("the simulated engine broke")
            if report is None:
                return
            self._rules.after()
            self._mailbox.post(report)

    async def _wait_for_work(self) -> None:
        """Wait for a command, or let the time of a step pass; a held engine does not go on."""
        if self.engine.has_work:
            await trio.sleep(self._step_s)
        else:
            await self.loop_mailbox.arrived.wait()
        self.loop_mailbox.arrived = trio.Event()
        await self._held.wait()
