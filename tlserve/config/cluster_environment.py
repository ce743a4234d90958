"""The environment variables that configure Ray, which reads them once, when a process loads it, and has no other way.

Owns the names, the values with their reasons, and the one place where they are set in this process. Does not know what runs in
the cluster. Source: Ray's pages on token authentication and fault tolerance; the names in lower case are those of its internal
configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_FIXED = {
    "RAY_AUTH_MODE": "token",  # off by default, and then anyone who can reach a port of Ray can run code
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # the actors run what is installed, not what `uv run` selects
    # a machine that hangs or is cut off is noticed within three seconds; by default it takes half a minute or more
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # SIGTERM starts a drain; it is not a failure with a stack to print
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # tlserve has drained its nodes before
    "RAY_NUM_REDIS_GET_RETRIES": "8",  # one second each; then a process with a wrong token gives up
}


def cluster_variables(*, token_file: Path, reconnect_s: int, loopback: bool) -> dict[str, str]:
    """Return the variables of every process of a cluster.

    `reconnect_s`: how long a process lives without the control process before Ray ends it. `loopback` keeps every socket on
    127.0.0.1: Ray does that only on systems where it cannot have several machines, hence the odd name.
    """
    return _FIXED | {
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(reconnect_s),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if loopback else "1",
    }


def set_cluster_variables(variables: Mapping[str, str]) -> None:
    """Set `variables` in this process, for Ray as it is loaded and for the children that it starts."""
    os.environ.update(variables)
