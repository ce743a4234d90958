"""The table from an error to the exit code of the process; `specs/cli-roles.md` explains each code.

Owns the numbers. Does not know how an error is shown (`tlserve.cli.entry`). An exception without a row is a defect of this
program: Python prints its traceback and exits with 1.
"""

from __future__ import annotations

import errno
import os

from tlserve import errors

DONE = 0
DEFECT = 1
USAGE = 2
DRAIN_CUT = 3
REFUSED = 10
NOT_ANSWERED = 11
INTERRUPTED = 130
PIPE_CLOSED = 141

_CODES: dict[type[errors.TlserveError], int] = {
    errors.DrainCut: DRAIN_CUT,
    errors.SettingsError: 4,
    errors.ModelMissing: 5,
    errors.ModelRefused: 6,
    errors.AddressInUse: 7,
    errors.DownloadFailed: 8,
    errors.EngineFailed: 9,
    errors.OperatorError: REFUSED,
    errors.TlserveError: DEFECT,
}


_OF_THE_MACHINE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    }
)


def machine_fault(fault: OSError | MemoryError) -> str:
    """Return the line for what the machine refuses: a full disk, a permission, memory; "" for what may be a defect."""
    if isinstance(fault, MemoryError):
        return f"there is not enough memory{f': {fault}' if str(fault) else ''}; use a smaller model or engine.kv_memory_bytes"
    if fault.errno not in _OF_THE_MACHINE:
        return ""
    place = f"{fault.filename}: " if fault.filename is not None else ""
    return f"{place}{os.strerror(fault.errno)}"


def exit_code_of(fault: errors.TlserveError) -> int:
    """Return the code of the nearest class of `fault` in the table."""
    return next(_CODES[cls] for cls in type(fault).__mro__ if cls in _CODES)


def fault_lines(fault: errors.TlserveError) -> tuple[str, ...]:
    """Return the message for the operator: one line, or one for each refused setting."""
    messages = fault.refusals if isinstance(fault, errors.SettingsError) else (fault.message,)
    return tuple(" ".join(message.split()) for message in messages)
