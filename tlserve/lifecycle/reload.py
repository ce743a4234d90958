"""Notice that files have changed, and make again what was made from them.

Owns the looking, once a second, and that a failure is told and changes nothing. Refuses to know what the files are. A file is
another one if its place on the disk, its size or its time differ: so a link that is turned to another file, as Kubernetes
does with a secret, is a change, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import attrs
import trio

from tlserve.errors import SettingsError

INTERVAL_S = 1.0

_log = logging.getLogger("tlserve.lifecycle")

Look = tuple[tuple[int, ...] | None, ...]


@attrs.frozen(kw_only=True)
class Reloading:
    """What is made of `paths`; `reload` makes it again, or raises `SettingsError` and leaves what was there."""

    what: str
    paths: Sequence[str]
    reload: Callable[[], None]


async def watch_files(
    reloadings: Sequence[Reloading], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Reload whatever changes, until cancelled; started once the files were looked at for the first time.

    Without files there is nothing to wake up for, and it returns at once: an idle server is woken by nobody.
    """
    seen = [look_at(one.paths) for one in reloadings]
    task_status.started()
    while reloadings:
        await trio.sleep(INTERVAL_S)
        for index, one in enumerate(reloadings):
            now = look_at(one.paths)
            if now != seen[index]:
                seen[index] = now
                _reload(one)


def look_at(paths: Sequence[str]) -> Look:
    """Return what tells one state of the files from another; None for one that is not there."""
    return tuple(map(_look_at_one, paths))


def _look_at_one(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _reload(one: Reloading) -> None:
    try:
        one.reload()
    except SettingsError as error:
        for line in error.refusals:
            _log.error("%s not reloaded, what was there stays: %s", one.what, line)
    else:
        _log.info("%s reloaded", one.what)
