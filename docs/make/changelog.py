"""Build a section of CHANGELOG.md from the fragments in docs/changelog/.

    python -m docs.make.changelog VERSION

A fragment is one small file, NAME.KIND.md, that says in a sentence or two what changes for a user. The new
section goes above the others, with today's date, and the fragments are removed. `docs/changelog/README.md` lists the kinds.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "removed": "Removed"}


class BadFragment(Exception):
    """A fragment whose name has no known kind, or that is empty."""


def read_fragments(folder: Path) -> dict[Path, str]:
    """Return the text of every fragment, each as one line, in the order of their names; raises BadFragment."""
    found = {}
    for path in sorted(folder.glob("*.md")):
        if path.name != "README.md":
            found[path] = " ".join(path.read_text(encoding="utf-8").split())
            if kind_of(path) not in KINDS or not found[path]:
                raise BadFragment(f"{path.name}: expected NAME.KIND.md with a text; KIND is one of {', '.join(KINDS)}")
    return found


def kind_of(path: Path) -> str:
    """Return the kind that a fragment's name gives."""
    return path.stem.rpartition(".")[2]


def section(version: str, date: datetime.date, fragments: Mapping[Path, str]) -> str:
    """Return the section of a version, its changes in groups by kind."""
    lines = [f"## {version} ({date})"]
    for kind, title in KINDS.items():
        texts = [f"- {text}" for path, text in fragments.items() if kind_of(path) == kind]
        lines += ["", f"### {title}", "", *texts] if texts else []
    return "\n".join(lines) + "\n"


def with_section(changelog: str, new: str) -> str:
    """Return the changelog with `new` above its newest section."""
    head, mark, rest = changelog.partition("\n## ")
    return f"{head}\n{new}{mark}{rest}"


def main(words: Sequence[str]) -> int:
    """Write the section and remove the fragments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.make.changelog", description=__doc__)
    parser.add_argument("version", help="the version that is released, as in tlserve/__init__.py")
    version = parser.parse_args(words).version
    changelog, fragments = ROOT / "CHANGELOG.md", read_fragments(ROOT / "docs" / "changelog")
    if not fragments:
        print("docs/changelog/ has no fragments: nothing to release", file=sys.stderr)
        return 1
    new = section(version, datetime.datetime.now(datetime.UTC).date(), fragments)
    changelog.write_text(with_section(changelog.read_text(encoding="utf-8"), new), encoding="utf-8")
    for path in fragments:
        path.unlink()
    print(new, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
