"""Start `tlserve ARGUMENTS` with the built-in model broken in the way that the first argument names.

`dies`: each step prints a line and waits for the line "go" on standard input, or else fails. `loads`: loading prints a line and
never ends by itself. Everything else is the real program, including the way from the failure to the exit code.
"""

import sys

from tlserve.cli import main
from tlserve.model import bigram

forward_well = bigram.BigramModel.forward
assert callable(bigram.read_bigram_model)  # the replacement below must be the function that the loader calls


def forward_when_told(model, batch, kv):
    print("a step waits", file=sys.stderr, flush=True)
    if sys.stdin.readline() != "go\n":
        raise ArithmeticError("the arithmetic broke")
    return forward_well(model, batch, kv)


def read_for_ever(*_, **__):
    print("loading", file=sys.stderr, flush=True)
    sys.stdin.read()
    raise AssertionError("the input must stay open")


if sys.argv[1] == "dies":
    bigram.BigramModel.forward = forward_when_told  # type: ignore[method-assign]
else:
    bigram.read_bigram_model = read_for_ever
sys.exit(main(sys.argv[2:]))
