"""What is known of a model's loads: its state, its counters, and the log lines.

Owns them, and the error that a request gets for a load that failed. Loads nothing.
"""

from __future__ import annotations

import logging

import attrs

from tlserve.errors import ModelLoadFailed, ModelTooLarge, TlserveError
from tlserve.generation import ModelState, ModelStatus

log = logging.getLogger("tlserve")

MIB = 1 << 20
RETRY_AFTER_FAILURE_S = 5


class LoadRecord:
    """The record of the model `name`; `status` has its state and counters, without its memory."""

    def __init__(self, name: str, loads: int) -> None:
        self._name = name
        self.status = ModelStatus(state=ModelState.UNLOADED, loads_total=loads)

    @property
    def state(self) -> ModelState:
        """Return the state of the model."""
        return self.status.state

    def enter(self, state: ModelState) -> None:
        """Note a new state."""
        self.status = attrs.evolve(self.status, state=state)

    def note_load(self, seconds: float, memory_bytes: int) -> None:
        """Count a load that took `seconds`."""
        self.status = attrs.evolve(
            self.status,
            loads_total=self.status.loads_total + 1,
            load_seconds_total=self.status.load_seconds_total + seconds,
        )
        log.info("%s: loaded in %.1f s, %d MiB", self._name, seconds, memory_bytes // MIB)

    def note_unload(self, memory_bytes: int) -> None:
        """Count an unload."""
        self.status = attrs.evolve(self.status, unloads_total=self.status.unloads_total + 1)
        log.info("%s: unloaded, %d MiB", self._name, memory_bytes // MIB)

    def note_failure(self, error: Exception) -> None:
        """Count a load that failed; the log has the reason."""
        self.status = attrs.evolve(self.status, load_failures_total=self.status.load_failures_total + 1)
        unforeseen = None if isinstance(error, TlserveError | OSError) else error
        # the text of the error: its traceback refers to what was loaded
        log.error("%s: could not be loaded: %s", self._name, str(error) or type(error).__name__, exc_info=unforeseen)

    def request_error(self, too_large: str) -> TlserveError:
        """Return the error of a request whose load failed; `too_large` says so, if the model was that."""
        if too_large:
            return ModelTooLarge(too_large)
        return ModelLoadFailed(
            f"the model {self._name!r} could not be loaded; the log of the server has the reason",
            retry_after_s=RETRY_AFTER_FAILURE_S,
        )
