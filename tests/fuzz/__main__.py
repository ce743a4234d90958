"""Search for input that breaks the server: `python -m tests.fuzz parsers|sockets|framing|native|api`, from the repository's root.

`--help` after one of them lists its options.
"""

from __future__ import annotations

import sys
from importlib import import_module

SEARCHES = {
    "sockets": "tests.fuzz.sockets",
    "parsers": "tests.fuzz.parsers.search",
    "framing": "tests.fuzz.framing",
    "native": "tests.fuzz.native.search",
    "api": "tests.fuzz.api",
}


def main() -> int:
    chosen = sys.argv[1:2]
    if not chosen or chosen[0] not in SEARCHES:
        print(f"{(__doc__ or '').strip()}\n", file=sys.stderr)
        return 2
    return int(import_module(SEARCHES[chosen[0]]).main(sys.argv[2:]))


if __name__ == "__main__":
    raise SystemExit(main())
