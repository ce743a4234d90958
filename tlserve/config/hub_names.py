"""Names of models on a hub, as users write them: "ORG/NAME" and "ORG/NAME@REVISION".

Owns the parser, and the folder of a name in the model cache: the slash becomes "--", which a hub does not allow in names. Knows
nothing of the hub and the cache.
"""

from __future__ import annotations

import re

import attrs

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(rf"(?P<org>{_PART})/(?P<name>{_PART})(@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{{0,199}}))?")


@attrs.frozen
class HubName:
    """A model of an organisation or a person; `revision` is a branch, a tag or a commit, empty for the default branch."""

    org: str
    name: str
    revision: str = ""

    @property
    def repository(self) -> str:
        """The name without its revision."""
        return f"{self.org}/{self.name}"

    @property
    def folder(self) -> str:
        """The name of its folder in the model cache."""
        return f"{self.org}--{self.name}"

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def parse_hub_name(text: str) -> HubName | None:
    """Return the name in `text`, or None if `text` is not such a name."""
    found = _NAME.fullmatch(text)
    if found is None or ".." in text or "--" in found["org"] + "/" + found["name"] or text.endswith(("/", ".")):
        return None
    return HubName(found["org"], found["name"], found["revision"] or "")
