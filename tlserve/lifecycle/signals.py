"""SIGTERM, SIGINT and SIGHUP become calls: the first starts the drain, the second cuts it, a third has its default effect.

Owns the signals that stop a server. Does not know what a stop means. Source: POSIX; trio's `open_signal_receiver`, which must run
in the main thread.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

import trio

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""These stop a server also if it was started with them ignored, as a shell starts a command with `&` in a script."""

_log = logging.getLogger("tlserve.lifecycle")


async def watch_stop_signals(
    drain: Callable[[], None],
    cut: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `drain` at the first stop signal and `cut` at the second, then return.

    Started when the signals are received; before that, and after the return, they have their default effect.
    """
    with trio.open_signal_receiver(*STOP_SIGNALS, *_hangup()) as received:
        task_status.started()
        _say("draining; a second signal cuts open requests", await anext(received))
        drain()
        _say("cutting", await anext(received))
        cut()


def _hangup() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, by which a terminal says that it has gone, unless the program was started with it ignored, as by `nohup`."""
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)


def _say(what: str, number: int) -> None:
    _log.info("%s: %s", signal.Signals(number).name, what)
