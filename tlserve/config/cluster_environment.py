"""What Ray is told by its environment: it reads these once, when a process loads it, and takes them from nowhere else.

Owns the names, the values and why each is what it is, and the one place where they are set in this process. Refuses to know
what runs in the cluster. Source: Ray's token authentication and fault tolerance pages; the names in lower case are those of its
internal configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_FIXED = {
    "RAY_AUTH_MODE": "token",  # it is off by default, and whoever reaches a port of Ray may run code
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # what the actors run is what is installed, not what `uv run` says
    # a machine that hangs or is cut off is noticed within three seconds; by default in half a minute and more
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # SIGTERM is a drain here, and no failure to print a stack for
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # nodes are drained before, by us
    "RAY_NUM_REDIS_GET_RETRIES": "8",  # a second each, in which a process that is not let in finds out
}


def cluster_variables(*, token_file: Path, reconnect_s: int, loopback: bool) -> dict[str, str]:
    """Return the variables of every process of a cluster.

    `reconnect_s`: how long a process lives on without the control process; then Ray ends it, whatever it does. `loopback` keeps
    every socket on 127.0.0.1: Ray does that only where it thinks that it cannot have several machines, hence the odd name.
    """
    return _FIXED | {
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(reconnect_s),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if loopback else "1",
    }


def set_cluster_variables(variables: Mapping[str, str]) -> None:
    """Set `variables` in this process, for Ray as it is loaded and for the children that it starts."""
    os.environ.update(variables)
