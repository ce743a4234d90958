"""SIGTERM, SIGINT and SIGHUP become calls: the first starts the drain, the second cuts it, a third has its default effect.

Owns the signals that stop a server. Does not know what a stop means. Source: POSIX; trio's `open_signal_receiver`, which must run
in the main thread.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

import trio

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP says that the terminal has gone. A program that was started with it ignored, as `nohup` does, continues to ignore it."""

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
    watched = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    with trio.open_signal_receiver(*watched) as received:
        task_status.started()
        _say("draining; a second signal cuts open requests", await anext(received))
        drain()
        _say("cutting", await anext(received))
        cut()


def _say(what: str, number: int) -> None:
    _log.info("%s: %s", signal.Signals(number).name, what)
