"""Notice that files have changed, and reload what was made from them.

Owns the check once a second, and the rule that a failure is logged and changes nothing. Does not know what the files are. A file
has changed if its place on the disk, its size or its time differs, so a link that points to another file, as Kubernetes does with
a secret, is also a change. So is another owner or another permission: a file that could not be read may be readable now.
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
    """Something made from `paths`; `reload` makes it again, or raises `SettingsError` and changes nothing."""

    what: str
    paths: Sequence[str]
    reload: Callable[[], None]


async def watch_files(
    reloadings: Sequence[Reloading], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Reload files that change, until cancelled; started when the files have been checked for the first time.

    Without files it returns at once, so that an idle server does not wake up.
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
    """Return a value that differs between two states of the files; None for a missing file."""
    return tuple(map(_look_at_one, paths))


def _look_at_one(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _reload(one: Reloading) -> None:
    try:
        one.reload()
    except SettingsError as error:
        for line in error.refusals:
            _log.error("%s not reloaded and unchanged: %s", one.what, line)
    else:
        _log.info("%s reloaded", one.what)
