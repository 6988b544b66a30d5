"""A start script for a recipe, as robust as a start by the tuner.

It names the interpreter by its full path and puts its folder first on PATH (``conda activate`` can do nothing, and a
child that finds no ninja fails late), keeps three days of logs, and refuses a second start also while the first still
loads its weights: the lock is held by the server itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tuner.recipe import references
from tuner.recipe.argv import simulator_argv, to_argv
from tuner.recipe.model import SIMULATOR, Recipe
from tuner.redact import redact_text
from tuner.text import plain

_ANY_ADDRESS = ("0.0.0.0", "::", "")

_GUARDS = """\
case "$python" in
  */*) ;;
  *) python="$(command -v -- "$python" || true)" ;;
esac
if [ ! -x "$python" ]; then
  echo "There is no interpreter at ${python:-the name given}: set python in this script." >&2
  exit 1
fi
export PATH="$(dirname -- "$python"):$PATH"

state="${XDG_STATE_HOME:-$HOME/.local/state}/sglang"
mkdir -p -- "$state"
chmod 700 -- "$state"
if ! command -v flock >/dev/null; then
  echo "flock is missing (package util-linux); without it a double start cannot be refused." >&2
  exit 1
fi
exec 9>"$state/port-$port.lock"
if ! flock -n 9; then
  echo "A server for port $port is already running or still loading." >&2
  exit 1
fi
if (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; then
  echo "Port $port is taken by another program." >&2
  exit 1
fi

find "$state" -name "port-$port-*.log" -mtime +3 -delete
log="$state/port-$port-$(date +%Y%m%d-%H%M%S).log"
echo "Log: $log"
"""


def to_shell(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """A bash script that starts the recipe's server in the foreground with its output in a log file.

    ``${NAME}`` is read when the script runs, which ends at once if it is not set.
    """
    said = [line for comment in comments for line in plain(redact_text(comment)).splitlines()]
    module = "tuner.sim" if recipe.simulated else "sglang.launch_server"
    if recipe.simulated:
        said.append("This starts the stand-in server of the tuner, not SGLang: it answers without a model.")
    words = to_argv(recipe) + (simulator_argv(recipe) if recipe.simulated else [])
    address = "127.0.0.1" if recipe.host in _ANY_ADDRESS else recipe.host
    needed = sorted({name for text in (*words, *recipe.environment.values()) for name in references.names(text)})
    lines = ["#!/usr/bin/env bash", *(f"# {line}".rstrip() for line in said), "set -euo pipefail", ""]
    lines += [
        f"python={_interpreter(recipe)}",
        f"port={recipe.port}",
        f"address={_quoted(address)}",
        *(f': "${{{name}:?must be set in the environment}}"' for name in needed),
        *(f"export {name}={_quoted(value)}" for name, value in recipe.environment.items()),
        "",
    ]
    command = f'exec "$python" -m {module}'
    options = _by_option(words)
    return "\n".join(lines) + _GUARDS + " \\\n  ".join([command, *options, '>"$log" 2>&1']) + "\n"


def _interpreter(recipe: Recipe) -> str:
    if recipe.python is None or recipe.python == SIMULATOR:
        which = "the tuner" if recipe.simulated else "SGLang"
        return f'"${{PYTHON:?must name the interpreter that has {which}}}"'
    if recipe.python.startswith("~/"):
        return f'"$HOME"/{shlex.quote(recipe.python[2:])}'
    return shlex.quote(recipe.python)


def _by_option(words: Sequence[str]) -> list[str]:
    """One line per flag, with its values."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(_quoted(word))
        else:
            lines[-1] += f" {_quoted(word)}"
    return lines


def _quoted(text: str) -> str:
    """A word for the shell in which only ``${NAME}`` is expanded."""
    parts = [f'"${{{piece}}}"' if is_name else shlex.quote(piece) for is_name, piece in references.pieces(text)]
    return "".join(parts) or "''"
