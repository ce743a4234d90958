"""The one place where the process environment is read, and the names in it that belong to tlserve or resemble them.

Other modules get the mapping as an argument, so that tests can pass a dict. Nothing is written: a variable for a child process
is set on a copy. Does not know the settings: their names are an argument.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping

MODEL_CACHE = "TL_MODEL_CACHE"
SERVER_KEY = "TL_API_KEY"
PEER_KEY = "TL_PEER_API_KEY"
OTHER_VARIABLES = {
    MODEL_CACHE: "the folder of pulled models",
    SERVER_KEY: "the key that `tlserve chat` and `tlserve bench` send",
    PEER_KEY: "the key that `tlserve bench` sends to the other server",
}
"""The variables of tlserve that are not settings, and what they are for."""

_CLOSE = 0.85  # a letter or two too many, missing, or swapped, in names of this length
# What Kubernetes sets in every container for a service whose name starts with "tl-", such as TL_ENGINE_PORT_80_TCP_ADDR.
_KUBERNETES = re.compile(
    r"TL_[A-Z0-9_]*?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def process_environ() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ


def is_not_a_setting(name: str) -> bool:
    """Return whether the variable `name` is one of those that tlserve or Kubernetes use for something else."""
    return name in OTHER_VARIABLES or _KUBERNETES.fullmatch(name) is not None


def meant_variable(name: str, settings: Iterable[str]) -> str | None:
    """Return the variable of tlserve that `name` nearly spells, among `settings` and the others; None if it is none of ours."""
    if not name.upper().startswith("TL"):
        return None
    known = {_plain(variable): variable for variable in (*settings, *OTHER_VARIABLES)}
    close = difflib.get_close_matches(_plain(name), known, n=1, cutoff=_CLOSE)
    return known[close[0]] if close else None


def _plain(name: str) -> str:
    """Return `name` in capitals and without its underscores, which are easily too few or too many."""
    return name.upper().replace("_", "")
