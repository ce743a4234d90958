"""The file descriptors of the process: as many as the system allows, and some that connections cannot take.

Owns the limit of the process, and what is kept back from it for the health port and for files. Sources: getrlimit(2); systemd's
advice to services: raise the soft limit, which is low for the sake of programs that use select(2), to the hard one.
"""

from __future__ import annotations

import logging
import os
import resource

HEALTH_CONNECTIONS = 64
"""The most connections of the health port."""

KEPT_BACK = HEALTH_CONNECTIONS + 64
"""Descriptors that connections of the API never use: those of the health port, and of files, pipes and other programs."""

_WANTED = (1 << 20, 65_536, 10_240)
"""Limits to try in turn: macOS refuses more than its own, although the hard limit says that there is none."""

_FEWEST_CONNECTIONS = 8
_USUALLY_OPEN = 32

_log = logging.getLogger("tlserve")


def raise_descriptor_limit() -> None:
    """Let this process open as many files and sockets as the system allows it to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in _WANTED:
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        if soft == resource.RLIM_INFINITY or soft >= most:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):
            continue
        return


def possible_connections(wanted: int) -> int:
    """Return `wanted`, or the number of connections that the process has descriptors for, if that is less; log it then."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    possible = max(_FEWEST_CONNECTIONS, soft - _open_descriptors() - KEPT_BACK)
    if possible < wanted:
        _log.warning(
            "http.max_connections is %d, but the process can have only %d file descriptors: at most %d connections are open; "
            "raise the limit (ulimit -Hn, LimitNOFILE), or lower the setting",
            wanted,
            soft,
            possible,
        )
    return min(wanted, possible)


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:  # not every container has /dev/fd
        return _USUALLY_OPEN
