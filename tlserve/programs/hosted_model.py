"""A model as a server hosts it: what makes its tokens, how it is spoken with, and what is said of it.

Owns the type and the protocols, whether the tokens come from an engine in this process (`tlserve.programs.local_models`) or
from the nodes of a fleet. Refuses to make any of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import attrs
import trio

from tlserve.chat.served_model import Served
from tlserve.generation import Backend
from tlserve.telemetry.fleet_figures import FleetFigures


class HostedBackend(Backend, Protocol):
    """A backend with a life: it runs beside the server, and is told when to take nothing more, and when to end."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; started once requests can be made. Raises `EngineFailed`, after every open request got it."""

    def close(self) -> None:
        """Admit nothing more: new requests raise `Draining`; those inside go on."""

    def cut(self) -> None:
        """End every open request with `DrainCut`."""


async def wait_for_ever() -> str:
    """Wait for ever, for what does not happen."""
    await trio.sleep_forever()
    raise AssertionError


@attrs.frozen(kw_only=True, eq=False)
class HostedModel:
    """One model of a server. `lines` say of it what a person wants to know at the start, `facts` the same for a program.

    `about` is what /healthz says of it besides; `fleet` what /metrics says of its nodes, if it has any. `wait_unfit` returns,
    with the reason, when it can take nothing new for ever: then the server drains.
    """

    served: Served
    backend: HostedBackend
    description: str
    lines: tuple[str, ...] = ()
    facts: Mapping[str, object] = attrs.field(factory=dict)
    about: Callable[[], Mapping[str, object]] = dict
    fleet: Callable[[], FleetFigures] = FleetFigures
    wait_unfit: Callable[[], Awaitable[str]] = wait_for_ever


MakeModels = Callable[[], tuple[HostedModel, ...]]
"""What loading gives: to be called on the event loop, which the backends belong to."""
