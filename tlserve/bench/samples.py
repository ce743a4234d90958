"""The outcome of one request for its client: a sample, or a failure of a named kind.

Owns the two types. All times are in seconds of this process's clock.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Sample:
    """One complete answer.

    `due_s` is the time at which the request should have been sent: in a closed loop the time at which it was sent, in an open
    loop its arrival, so that the wait for a free client counts. `counted`: the tokens are those of the server's usage; else
    pieces were counted.
    """

    due_s: float
    first_token_s: float
    last_token_s: float
    ended_s: float
    prompt_tokens: int
    output_tokens: int
    counted: bool = True

    @property
    def time_to_first_token_s(self) -> float:
        """Seconds from the start to the first piece of text."""
        return self.first_token_s - self.due_s

    @property
    def time_per_token_s(self) -> float | None:
        """Seconds between tokens after the first; None if there is only one."""
        if self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def whole_time_s(self) -> float:
        """Seconds from the start to the last piece of text."""
        return self.last_token_s - self.due_s


@attrs.frozen(kw_only=True)
class Failure:
    """One request without a complete answer. `kind` is short and the same for the same fault; `message` has details."""

    kind: str
    message: str
    due_s: float
    ended_s: float


Outcome = Sample | Failure
