"""Print one of the README's two commands: `serve` or `test`. CI runs what users are told to run."""

import sys
from pathlib import Path

MARKS = {"serve": "trio-run tlserve", "test": "-m pytest"}


def readme_command(name: str) -> str:
    """Return the one line of README.md that makes an environment and does `name`."""
    lines = Path("README.md").read_text().splitlines()
    (command,) = [line for line in lines if line.startswith("python3 -m venv") and MARKS[name] in line]
    return command


if __name__ == "__main__":
    print(readme_command(sys.argv[1]))
