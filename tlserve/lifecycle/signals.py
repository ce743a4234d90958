"""SIGTERM, SIGINT and SIGHUP become calls: the first starts the drain, the second cuts it, a third has its default effect.

A signal that comes when the server has ended, while Python ends, changes nothing: else the exit code would be lost.

Owns the signals that stop a server. Does not know what a stop means. Source: POSIX; trio's `open_signal_receiver`, which must run
in the main thread.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from typing import Any

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

    Started when the signals are received; before that, and after the return, they have their default effect. If it is cancelled
    instead, the server has ended, and the signals are ignored from then on.
    """
    numbers = (*STOP_SIGNALS, *_hangup())
    early: list[int] = []
    before = {number: signal.signal(number, lambda number, _frame: early.append(number)) for number in numbers}
    try:
        with trio.open_signal_receiver(*numbers) as received:
            for number in early:
                signal.raise_signal(number)
            task_status.started()
            _say("draining; a second signal cuts open requests", await anext(received))
            drain()
            _say("cutting", await anext(received))
    except BaseException:
        _set_all(dict.fromkeys(numbers, signal.SIG_IGN))
        raise
    _set_all(before)
    cut()


def _set_all(effects: Mapping[signal.Signals, Any]) -> None:
    for number, effect in effects.items():
        signal.signal(number, effect)


def _hangup() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, by which a terminal says that it has gone, unless the program was started with it ignored, as by `nohup`."""
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)


def _say(what: str, number: int) -> None:
    _log.info("%s: %s", signal.Signals(number).name, what)
