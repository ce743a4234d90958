"""A model whose every step waits until the test opens the gate: the test controls the order of engine and loop."""

import threading

from tlserve.kernels.interface import KvStore, Model, ModelSpec, StepBatch, StepOutput

PATIENCE_S = 20.0


class GatedModel:
    """Wrap `model`; each `forward` announces itself and waits for one `open_one`, until `open_all`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._waiting = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)
        self._open = threading.Event()
        self.steps = 0

    @property
    def spec(self) -> ModelSpec:
        return self._model.spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        return self._model.new_kv_store(blocks, block_size)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        self._waiting.release()
        if not self._open.is_set() and not self._gate.acquire(timeout=PATIENCE_S):
            raise TimeoutError("the test did not open the gate")
        self.steps += 1
        return self._model.forward(batch, kv)

    # --- the test's side

    def wait_for_step(self) -> None:
        """Block until a step waits at the gate; call it in a thread."""
        if not self._waiting.acquire(timeout=PATIENCE_S):
            raise TimeoutError("no step reached the gate")

    def open_one(self) -> None:
        """Let one step pass."""
        self._gate.release()

    def open_all(self) -> None:
        """Let all steps pass from now on."""
        self._open.set()
        self._gate.release()
