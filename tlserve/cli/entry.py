"""The entry points: from an argument list to a command, and from an error to one clear line and an exit code.

Owns the top of the command line. Imports nothing slow: `import tlserve.cli` and `--help` must be fast, so a command imports
numpy, trio and rich only if it needs them.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Sequence

from tlserve import __version__
from tlserve.cli import exit_codes
from tlserve.cli.commands import COMMANDS, DEFAULT_COMMAND
from tlserve.cli.parser import OneLineParser
from tlserve.errors import TlserveError, single_cause


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tlserve ARGUMENTS` and return the exit code; `argv` is without the program's name, None: of this process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        if sys.stdout is not None:  # None: it was closed before the start, and print does nothing
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _leave_pipe()
    except (TlserveError, KeyboardInterrupt, BaseExceptionGroup, OSError, MemoryError) as error:
        cause = single_cause(error)
        if isinstance(cause, KeyboardInterrupt):
            return _report(("interrupted",), exit_codes.INTERRUPTED)
        if isinstance(cause, TlserveError):
            return _report(exit_codes.fault_lines(cause), exit_codes.exit_code_of(cause))
        if isinstance(cause, OSError | MemoryError) and (line := exit_codes.machine_fault(cause)):
            _drop_output()
            return _report((line,), exit_codes.REFUSED)
        raise


def trio_run(argv: Sequence[str] | None = None) -> int:
    """Run `trio-run tlserve ARGUMENTS`, which is the same as `tlserve ARGUMENTS`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] != ["tlserve"]:
        return _report(("trio-run runs only one program: write `trio-run tlserve ...`",), exit_codes.USAGE)
    return main(arguments[1:])


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "--version"):
        return _top(first)
    if first in COMMANDS:
        return _run(first, arguments[1:])
    if first and not first.startswith("-"):
        return _report((_unknown(first),), exit_codes.USAGE)
    return _run(DEFAULT_COMMAND, arguments)


def _run(name: str, arguments: list[str]) -> int:
    command = COMMANDS[name]
    module = command.load()
    parser = OneLineParser(prog=f"tlserve {name}", description=command.about, allow_abbrev=False)
    module.add_arguments(parser)
    return module.run(parser.parse_all(arguments))


def _top(option: str) -> int:
    if option == "--version":
        print(f"tlserve {__version__}")
    else:
        rows = "".join(f"  {name:<14}{command.about}\n" for name, command in COMMANDS.items())
        print(f"usage: tlserve [COMMAND] [ARGUMENTS]\n\n{rows}\n`tlserve COMMAND --help` lists the arguments.")
    return exit_codes.DONE


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(COMMANDS)}"
    return f"there is no command {name!r}; {hint}"


def _leave_pipe() -> int:
    """Stop printing into a closed pipe (`tlserve check-config | head`), which is not an error."""
    _drop_output()
    return exit_codes.PIPE_CLOSED


def _drop_output() -> None:
    """Discard the output that was not written, so that Python's own last flush does not fail."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed, or not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(lines: tuple[str, ...], code: int) -> int:
    for line in lines:
        print(f"tlserve: {line}", file=sys.stderr)
    return code
