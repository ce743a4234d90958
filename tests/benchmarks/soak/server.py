"""The server of a soak: `python -m tests.benchmarks.soak.server FILE ARGUMENTS`, as `tlserve serve ARGUMENTS`.

Owns one more task, which writes the number of trio's tasks into FILE: the server itself does not report it.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

import trio

from tlserve.cli.settings_arguments import add_settings_arguments, settings_of
from tlserve.programs.server import serve
from tlserve.telemetry.logs import set_up_logs

WRITE_EVERY_S = 0.5


async def _write_tasks(path: Path) -> None:
    while True:
        draft = path.with_suffix(".draft")
        draft.write_text(str(trio.lowlevel.current_statistics().tasks_living))
        os.replace(draft, path)
        await trio.sleep(WRITE_EVERY_S)


async def _main(path: Path, arguments: argparse.Namespace) -> int:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_tasks, path)
        code = await serve(settings_of(arguments))
        nursery.cancel_scope.cancel()
    return code


def main() -> int:
    """Serve until a stop signal."""
    parser = argparse.ArgumentParser()
    add_settings_arguments(parser)
    set_up_logs("critical")
    return trio.run(partial(_main, Path(sys.argv[1]), parser.parse_args(sys.argv[2:])))


if __name__ == "__main__":
    sys.exit(main())
