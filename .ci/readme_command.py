"""Prints the command of the README that stands under ``<!-- command: NAME -->``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def command(name: str, text: str) -> str:
    """The fenced block after the marker of ``name``; ends the program with a sentence when there is none."""
    match = re.search(rf"<!-- command: {re.escape(name)} -->\s*```\w*\n(.*?)```", text, re.DOTALL)
    if match is None:
        sys.exit(f"README.md has no block marked <!-- command: {name} -->")
    return match[1].strip()


if __name__ == "__main__":
    print(command(sys.argv[1], README.read_text(encoding="utf-8")))  # noqa: T201
