"""How a file stores the slots of a decoder: its names, rows that share a tensor, experts in one tensor, norms less one.

`Storage` is the table of one kind of file, and `homes` says where each slot is. Reads no file and knows no architecture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.decoder.record import Attention, Decoder
from tlserve.model.decoder.slots import TensorSlot, slots

Shape = tuple[int, ...]


@attrs.frozen(kw_only=True)
class Stack:
    """A tensor that holds something of every expert of a layer: (experts, rows, inputs), or (experts, rows) of vectors.

    The rows of an expert are those of `parts` one after the other, or (`alternate`) one of each in turn. `transposed`:
    (experts, inputs, rows).
    """

    parts: tuple[str, ...]
    alternate: bool = False
    transposed: bool = False


@attrs.frozen(kw_only=True)
class Storage:
    """How one kind of file stores one architecture.

    Slots are without the numbers of their layer and expert here, and {} in a name stands for them. `names`: a slot -> the
    stem of the tensor's name. `exact`: a slot -> the whole name. `fused`: the stem of a tensor -> the slots whose rows it holds
    one after the other. `stacks`: the whole name of a tensor -> what it holds of every expert; where a file does not have it,
    each expert has tensors of its own by `names`. `half_split`: the halves of what turns in a head are stored apart.
    `less_one`: norms are stored less one. `ignored`, `ignored_starts`: how the names of tensors end or begin that no slot needs
    and that may be there; `further_layers`: what the names of layers begin with, where there may be more than the model has.
    """

    names: Mapping[str, str]
    exact: Mapping[str, str] = {}
    fused: Mapping[str, tuple[str, ...]] = {}
    stacks: Mapping[str, Stack] = {}
    half_split: bool = False
    less_one: bool = False
    ignored: tuple[str, ...] = ()
    ignored_starts: tuple[str, ...] = ()
    further_layers: str = ""

    def is_ignored(self, name: str, layers: int) -> bool:
        """Return whether a tensor that no slot of a model with so many layers needs may be there."""
        if name.endswith(self.ignored) or name.startswith(self.ignored_starts):
            return True
        number = name.removeprefix(self.further_layers).partition(".")[0] if self.further_layers else ""
        return name.startswith(self.further_layers) and number.isdecimal() and int(number) >= layers


@attrs.frozen
class Home:
    """Where a slot is: some rows of the tensor `name`, whose matrices are one after the other.

    With `columns`, the slot is the transpose of these columns of the rows. `shape`: of the whole tensor.
    """

    name: str
    shape: Shape
    slot: TensorSlot
    rows: slice
    columns: slice | None = None


@attrs.frozen
class _SlotName:
    """A slot's name without its numbers: `3.ffn.experts.17.gate` is ffn.experts.gate of expert 17 of layer 3."""

    layer: str
    expert: str
    base: str

    @classmethod
    def of(cls, name: str) -> _SlotName:
        """Take the name of a slot apart."""
        layer, _, part = name.partition(".")
        if not layer.isdigit():
            return cls("", "", name)
        before, found, after = part.partition(".experts.")
        if not found:
            return cls(layer, "", part)
        number, _, rest = after.partition(".")
        return cls(layer, number, f"{before}.experts.{rest}")

    def slot(self, base: str) -> str:
        """Return the name of the slot `base` of the same layer and expert."""
        numbered = base.replace(".experts.", f".experts.{self.expert}.") if self.expert else base
        return f"{self.layer}.{numbered}" if self.layer else numbered

    def named(self, template: str) -> str:
        """Return a name of the file with the numbers filled in."""
        return template.format(self.layer, self.expert)


def homes(decoder: Decoder, storage: Storage, found: Collection[str]) -> dict[str, Home]:
    """Return where every slot is, for a file with tensors of the names `found`."""
    finder = _Finder(decoder.architecture, storage, slots(decoder), found)
    return {name: finder.home(name) for name in finder.slots}


def unused_keys(decoder: Decoder, storage: Storage) -> frozenset[str]:
    """Return the tensors of keys and values that files have in layers which use those of another one."""
    parts = [
        storage.names[f"attention.{part}"] for part in ("k", "v", "k_norm") if f"attention.{part}" in storage.names
    ]
    return frozenset(
        f"{part.format(index)}.weight"
        for index, layer in enumerate(decoder.layers)
        for block in layer.blocks
        for mixer in block.mixers
        if isinstance(mixer, Attention) and mixer.kv_from is not None
        for part in parts
    )


class _Finder:
    """Finds the homes of slots, one after the other."""

    def __init__(
        self, architecture: str, storage: Storage, all_slots: Mapping[str, TensorSlot], found: Collection[str]
    ) -> None:
        self.slots = all_slots
        self._architecture = architecture
        self._storage = storage
        self._found = found
        self._shared = {part: (stem, parts) for stem, parts in storage.fused.items() for part in parts}
        self._stacks: dict[str, list[str]] = {}
        for name, stack in storage.stacks.items():
            for part in stack.parts:
                self._stacks.setdefault(part, []).append(name)
        places = map(_SlotName.of, all_slots)
        self._experts = Counter((place.layer, place.base) for place in places if place.expert)

    def home(self, name: str) -> Home:
        """Return where one slot is; raises `ModelRefused` where the file has no name for it."""
        place = _SlotName.of(name)
        stems = self._stacks.get(place.base, [])
        stack = next((stem for stem in stems if place.named(stem) in self._found), "")
        if not stack and stems and place.base.removesuffix(".bias") not in self._storage.names:
            stack = stems[0]
        if stack:
            return self._in_stack(name, place, stack)
        if place.base in self._storage.exact:
            slot = self.slots[name]
            return Home(place.named(self._storage.exact[place.base]), slot.shape, slot, slice(0, slot.shape[0], 1))
        return self._with_others(name, place)

    def _in_stack(self, name: str, place: _SlotName, stem: str) -> Home:
        stack, slot = self._storage.stacks[stem], self.slots[name]
        part = stack.parts.index(place.base)
        counts = [self.slots[place.slot(base)].shape[0] for base in stack.parts]
        start, expert = sum(counts[:part]), int(place.expert)
        own = slice(part, None, len(counts)) if stack.alternate else slice(start, start + counts[part], 1)
        experts, rows, inputs = self._experts[place.layer, place.base], sum(counts), slot.shape[1:]
        if not inputs:  # a vector
            return Home(place.named(stem), (experts, rows), slot, slice(expert, expert + 1, 1), own)
        if stack.transposed:
            all_inputs = slice(expert * inputs[0], (expert + 1) * inputs[0], 1)
            return Home(place.named(stem), (experts, *inputs, rows), slot, all_inputs, own)
        end = rows if stack.alternate else own.stop
        of_all = slice(expert * rows + own.start, expert * rows + end, own.step)
        return Home(place.named(stem), (experts, rows, *inputs), slot, of_all)

    def _with_others(self, name: str, place: _SlotName) -> Home:
        """Return the home of a slot in a tensor of its own, or in one whose rows several slots share."""
        ending = ".bias" if place.base.endswith(".bias") else ".weight"
        base = place.base.removesuffix(".bias")
        stem, parts = self._shared.get(base, ("", (base,)))
        if not stem and base not in self._storage.names:
            raise ModelRefused(f"{self._architecture} has no name for the tensor {name}")
        bases = [part + ".bias" if ending == ".bias" else part for part in parts]
        counts = [self.slots[place.slot(part)].shape[0] for part in bases]
        start, slot = sum(counts[: parts.index(base)]), self.slots[name]
        whole = (sum(counts), *slot.shape[1:])
        own = slice(start, start + slot.shape[0], 1)
        return Home(place.named(stem or self._storage.names[base]) + ending, whole, slot, own)
