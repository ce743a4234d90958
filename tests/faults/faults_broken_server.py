"""Start `tlserve ARGUMENTS` with a model that is broken in the way that the first argument names.

`dies`: each step says so and waits for a line on standard input, "go", or it fails. `loads`: loading says so and never ends by
itself. Everything else is the real program, the way from the failure to the exit code too.
"""

import sys

import attrs

from tlserve import app, assembly
from tlserve.cli import main
from tlserve.model.load import LoadedModel


class DyingModel:
    """Wrap a model whose steps fail as soon as standard input says so."""

    def __init__(self, model):
        self.spec, self.new_kv_store = model.spec, model.new_kv_store
        self._forward = model.forward

    def forward(self, batch, kv):
        print("a step waits", file=sys.stderr, flush=True)
        if sys.stdin.readline() != "go\n":
            raise ArithmeticError("the arithmetic broke")
        return self._forward(batch, kv)


def load_dying(settings) -> LoadedModel:
    loaded = assembly.load(settings)
    return attrs.evolve(loaded, model=DyingModel(loaded.model))


def load_for_ever(settings) -> LoadedModel:
    print("loading", file=sys.stderr, flush=True)
    sys.stdin.read()
    raise AssertionError("nobody closes the input")


app.load = {"dies": load_dying, "loads": load_for_ever}[sys.argv[1]]
sys.exit(main(sys.argv[2:]))
