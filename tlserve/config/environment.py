"""The one place where the process environment is read.

Owns the access, and nothing of the names: whoever needs a variable is handed the mapping, so that tests hand in a
dict. Refuses to write: a variable for a child process is set on a copy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def process_environ() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ
