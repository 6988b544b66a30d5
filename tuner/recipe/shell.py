"""A start script for a recipe, as robust as a start by the tuner.

It names the interpreter by its full path and puts its folder first on PATH (``conda activate`` can do nothing, and a
child that finds no ninja fails late), keeps three days of logs, and refuses a second start also while the first still
loads its weights. It takes the tuner's own locks (``tuner.paths.Home.servers``; ``tuner.server.handles`` and
``tuner.server.presence``), so the tuner knows of its server and the other way round.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from tuner.recipe import references
from tuner.recipe.argv import simulator_argv, to_argv
from tuner.recipe.carried import carried_lines, head_lines, variables, variables_say, words_say
from tuner.recipe.model import SIMULATOR, Recipe
from tuner.recipe.slots import PYTHON

#: Said in every file that starts the stand-in.
STAND_IN_NOTE = "This starts the stand-in server of the tuner, not SGLang: it answers without a model."

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
if [ -n "${TUNER_HOME:-}" ]; then
  servers="${TUNER_HOME/#\\~\\//$HOME/}/state/servers"
else
  servers="${XDG_STATE_HOME:-$HOME/.local/state}/tuner/servers"
fi
(umask 077 && mkdir -p -- "$state" "$servers" && touch -- "$servers"/{start.lock,"$port.lock","$port.live"})
if ! command -v flock >/dev/null; then
  echo "flock is missing (package util-linux); without it a double start cannot be refused." >&2
  exit 1
fi
# The tuner's own locks: two are held for the start, the last one by the server itself for its whole life.
exec 7<>"$servers/start.lock" 8<>"$servers/$port.lock"
if ! { flock -w 60 7 && flock -w 60 8; }; then
  echo "Another start is under way (port $port, or the same GPU): wait until it is up." >&2
  exit 1
fi
exec 9<>"$servers/$port.live"
if ! flock -w 0.3 9; then
  who="$(exec 9>&-; for fd in /proc/[0-9]*/fd/*; do
    if [ "$fd" -ef "$servers/$port.live" ]; then cut -d/ -f3 <<<"$fd"; fi
  done 2>/dev/null | grep -vx $$ | sort -un | paste -sd, || true)"
  echo "A server for port $port is already running or still loading: process ${who:-that you may not see}." >&2
  exit 1
fi
if (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; then
  echo "Port $port is taken by another program." >&2
  exit 1
fi

# SGLang asks itself over HTTP at its start: a proxy must not be in between.
if [ -n "${http_proxy:-}${https_proxy:-}${all_proxy:-}${HTTP_PROXY:-}${HTTPS_PROXY:-}${ALL_PROXY:-}" ]; then
  export no_proxy="${no_proxy:+$no_proxy,}${NO_PROXY:+$NO_PROXY,}127.0.0.1,localhost,::1,$address"
  export NO_PROXY="$no_proxy"
fi

find "$state" -name "port-$port-*.log" -mtime +3 -delete
log="$state/port-$port-$(date +%Y%m%d-%H%M%S).log"
(umask 077 && touch -- "$log")
echo "Log: $log"
"""


def to_shell(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """A bash script that starts the recipe's server in the foreground with its output in a log file.

    ``${NAME}`` is read when the script runs, which ends at once if it is not set.
    """
    module = "tuner.sim" if recipe.simulated else "sglang.launch_server"
    note = [STAND_IN_NOTE] if recipe.simulated and STAND_IN_NOTE not in comments else []
    words = server_words(recipe)
    address = "127.0.0.1" if recipe.host in _ANY_ADDRESS else recipe.host
    needed = sorted({name for text in (*words, *recipe.environment.values()) for name in references.names(text)})
    said = words_say(recipe) | variables_say(recipe)
    said |= {PYTHON} if recipe.python is not None else set()
    lines = ["#!/usr/bin/env bash", *head_lines([*comments, *note]), *carried_lines(recipe, said)]
    lines += ["set -euo pipefail", ""]
    lines += [
        f"python={_interpreter(recipe)}",
        f"port={recipe.port}",
        f"address={quoted(address)}",
        *(f': "${{{name}:?must be set in the environment}}"' for name in needed),
        *(f"export {name}={quoted(value)}" for name, value in variables(recipe)),
        "",
    ]
    command = f'exec "$python" -m {module}'
    options = by_option(words, quoted)
    return "\n".join(lines) + _GUARDS + " \\\n  ".join([command, *options, '7>&- 8>&- >>"$log" 2>&1']) + "\n"


def _interpreter(recipe: Recipe) -> str:
    if recipe.python is None or recipe.python == SIMULATOR:
        which = "the tuner" if recipe.simulated else "SGLang"
        return f'"${{PYTHON:?must name the interpreter that has {which}}}"'
    if recipe.python.startswith("~/"):
        return f'"$HOME"/{shlex.quote(recipe.python[2:])}'
    return shlex.quote(recipe.python)


def server_words(recipe: Recipe) -> list[str]:
    """The flags, and the switches of the stand-in where it is started."""
    if not recipe.simulated:
        return to_argv(recipe)
    shape = recipe.tuner.model_shape
    told = [] if shape is None or "shape" in recipe.tuner.simulator else ["--sim-shape", shape]
    return [*to_argv(recipe), *told, *simulator_argv(recipe)]


def by_option(words: Sequence[str], quote: Callable[[str], str]) -> list[str]:
    """One line per flag, with its values."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(quote(word))
        else:
            lines[-1] += f" {quote(word)}"
    return lines


def quoted(text: str) -> str:
    """A word for the shell in which only ``${NAME}`` is expanded."""
    parts = [f'"${{{piece}}}"' if is_name else shlex.quote(piece) for is_name, piece in references.pieces(text)]
    return "".join(parts) or "''"
