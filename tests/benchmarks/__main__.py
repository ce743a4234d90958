"""The maintainers' benchmarks: `python -m tests.benchmarks NAME`, from the root of the repository.

`tests/benchmarks/README.md` explains each of them and every field of their JSON documents.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from tests.benchmarks.attention import command as attention
from tests.benchmarks.embeddings import command as embeddings
from tests.benchmarks.engine import command as engine
from tests.benchmarks.fleet import command as fleet
from tests.benchmarks.hostile import command as hostile
from tests.benchmarks.http import command as http
from tests.benchmarks.restarts import command as restarts
from tests.benchmarks.soak import command as soak
from tests.benchmarks.table import command as table
from tlserve.cli.exit_codes import exit_code_of, fault_lines
from tlserve.cli.parser import OneLineParser
from tlserve.errors import TlserveError, single_cause
from tlserve.telemetry.logs import set_up_logs

BENCHMARKS: dict[str, tuple[ModuleType, str]] = {
    "engine": (engine, "time the steps of the engine without HTTP"),
    "attention": (attention, "measure attention's share of the f32 peak and of the memory bandwidth"),
    "embeddings": (embeddings, "time an encoder beside torch, ONNX Runtime and OpenVINO"),
    "http": (http, "count events per second through HTTP without an engine"),
    "table": (table, "compare tlserve with the servers and programs of --peers: the table of performance"),
    "fleet": (fleet, "measure heads and nodes on this machine"),
    "restarts": (restarts, "replace a server again and again under load, and count what clients notice"),
    "soak": (soak, "send a mixed load with faults for a long time, and report what the server holds afterwards"),
    "hostile": (hostile, "measure what hostile schemas cost a server and its other streams"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code; `argv` is without the program's name, None: that of this process."""
    parser = OneLineParser(prog="python -m tests.benchmarks", allow_abbrev=False)
    parsers = parser.add_subparsers(dest="benchmark", required=True)
    for name, (module, about) in BENCHMARKS.items():
        module.add_arguments(parsers.add_parser(name, help=about, description=about, allow_abbrev=False))
    arguments = parser.parse_all(sys.argv[1:] if argv is None else argv)
    set_up_logs("warning")
    try:
        return int(BENCHMARKS[arguments.benchmark][0].run(arguments))
    except (TlserveError, BaseExceptionGroup) as error:
        cause = single_cause(error)
        if not isinstance(cause, TlserveError):
            raise
        print(*(f"benchmarks: {line}" for line in fault_lines(cause)), sep="\n", file=sys.stderr)
        return exit_code_of(cause)


if __name__ == "__main__":
    sys.exit(main())
