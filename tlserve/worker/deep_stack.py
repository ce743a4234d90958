"""Run a function on a thread with a stack of a chosen size.

The grammar compiler recurses as deep as a grammar nests, and a stack that overflows in native code ends the process. Measured:
chains of thousands of rules or references took some 3 kB a link, and a link is at least 14 bytes of text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
_STACK_BYTES = 64 << 20
_STACK_PER_BYTE = 1024


def stack_bytes(text_bytes: int) -> int:
    """Return the stack, in bytes, that compiling a grammar of `text_bytes` needs at most."""
    return _STACK_BYTES + _STACK_PER_BYTE * text_bytes


def run_with_deep_stack(work: Callable[[], Result], text_bytes: int) -> Result:
    """Return what `work` returns in a thread whose stack fits `text_bytes` of grammar; raise what it raises.

    The stack is reserved, not filled: memory is used only as deep as `work` goes.
    """
    results = list[Result]()
    errors = list[BaseException]()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again in the calling thread
            errors.append(error)

    usual = threading.stack_size(stack_bytes(text_bytes))
    try:
        thread = threading.Thread(target=run, name="tlserve-grammar", daemon=True)
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
