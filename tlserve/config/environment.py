"""The one place where the process environment is read.

Other modules get the mapping as an argument, so that tests can pass a dict. Nothing is written: a variable for a child process
is set on a copy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def process_environ() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ
