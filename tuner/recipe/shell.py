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

#: Variables that the script itself looks at and adds to. The others reach the server alone: a shell's own variables
#: (IFS, UID, BASHOPTS), and what the script is told by (HOME, TUNER_HOME), are not to be changed by a recipe.
_SEEN_BY_SCRIPT = frozenset(
    {"PATH", "no_proxy", "http_proxy", "https_proxy", "all_proxy"}
    | {"NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
)

#: Bash lets nobody set these, and stops a script that tries.
_KEPT_BY_BASH = frozenset({"UID", "EUID", "PPID", "GROUPS", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"})

_ANY_ADDRESS = ("0.0.0.0", "::", "")

_GUARDS = """\
case "$tuner_python" in
  */*) ;;
  *) tuner_python="$(command -v -- "$tuner_python" || true)" ;;
esac
if [ ! -x "$tuner_python" ]; then
  echo "There is no interpreter at ${tuner_python:-the name given}: set tuner_python in this script." >&2
  exit 1
fi
export PATH="$(dirname -- "$tuner_python"):$PATH"

tuner_state="${XDG_STATE_HOME:-$HOME/.local/state}/sglang"
if [ -n "${TUNER_HOME:-}" ]; then
  tuner_servers="${TUNER_HOME/#\\~\\//$HOME/}/state/servers"
else
  tuner_servers="${XDG_STATE_HOME:-$HOME/.local/state}/tuner/servers"
fi
(
  umask 077 && mkdir -p -- "$tuner_state" "$tuner_servers" &&
    touch -- "$tuner_servers"/{start.lock,"$tuner_port.lock","$tuner_port.live"}
)
if ! command -v flock >/dev/null; then
  echo "flock is missing (package util-linux); without it a double start cannot be refused." >&2
  exit 1
fi
# The tuner's own locks: two are held for the start, the last one by the server itself for its whole life.
exec 7<>"$tuner_servers/start.lock" 8<>"$tuner_servers/$tuner_port.lock"
if ! { flock -w 60 7 && flock -w 60 8; }; then
  echo "Another start is under way (port $tuner_port, or the same GPU): wait until it is up." >&2
  exit 1
fi
exec 9<>"$tuner_servers/$tuner_port.live"
if ! flock -w 0.3 9; then
  tuner_who="$(exec 9>&-; for tuner_fd in /proc/[0-9]*/fd/*; do
    if [ "$tuner_fd" -ef "$tuner_servers/$tuner_port.live" ]; then cut -d/ -f3 <<<"$tuner_fd"; fi
  done 2>/dev/null | grep -vx $$ | sort -un | paste -sd, || true)"
  echo "A server for port $tuner_port is already running or still loading:" \\
    "process ${tuner_who:-that you may not see}." >&2
  exit 1
fi
if (exec 3<>"/dev/tcp/$tuner_address/$tuner_port") 2>/dev/null; then
  echo "Port $tuner_port is taken by another program." >&2
  exit 1
fi

# SGLang asks itself over HTTP at its start: a proxy must not be in between.
if [ -n "${http_proxy:-}${https_proxy:-}${all_proxy:-}${HTTP_PROXY:-}${HTTPS_PROXY:-}${ALL_PROXY:-}" ]; then
  export no_proxy="${no_proxy:+$no_proxy,}${NO_PROXY:+$NO_PROXY,}127.0.0.1,localhost,::1,$tuner_address"
  export NO_PROXY="$no_proxy"
fi

find "$tuner_state" -name "port-$tuner_port-*.log" -mtime +3 -delete
tuner_log="$tuner_state/port-$tuner_port-$(date +%Y%m%d-%H%M%S).log"
(umask 077 && touch -- "$tuner_log")
echo "Log: $tuner_log"
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
        f"tuner_python={_interpreter(recipe)}",
        f"tuner_port={recipe.port}",
        f"tuner_address={quoted(address)}",
        *(f': "${{{name}:?must be set in the environment}}"' for name in needed),
        *(f"export {name}={quoted(value)}" for name, value in variables(recipe) if name in _SEEN_BY_SCRIPT),
        "",
    ]
    later = [(name, value) for name, value in variables(recipe) if name not in _SEEN_BY_SCRIPT]
    # What refers to another variable may be a secret, which must not stand on the command line of env.
    exported = {name: value for name, value in later if references.names(value) and name not in _KEPT_BY_BASH}
    passed = [f"{name}={quoted(value)}" for name, value in later if name not in exported]
    command = ["exec env", *passed, ""] if passed else ["exec "]
    command[-1] += " ".join([*map(quoted, recipe.launcher), f'"$tuner_python" -m {module}'])
    options = by_option(words, quoted)
    exports = "".join(f"export {name}={quoted(value)}\n" for name, value in exported.items())
    start = " \\\n  ".join([*command, *options, '7>&- 8>&- >>"$tuner_log" 2>&1'])
    return "\n".join(lines) + _GUARDS + exports + start + "\n"


def _interpreter(recipe: Recipe) -> str:
    if recipe.python is None or recipe.python == SIMULATOR:
        which = "the tuner" if recipe.simulated else "SGLang"
        return f'"${{PYTHON:?must name the interpreter that has {which}}}"'
    if recipe.python.startswith("~/"):
        return f'"$HOME"/{_literal(recipe.python[2:])}'
    return _literal(recipe.python)


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
    parts = [f'"${{{piece}}}"' if is_name else _literal(piece) for is_name, piece in references.pieces(text)]
    return "".join(parts) or "''"


def _literal(text: str) -> str:
    """Characters that a terminal would obey are written by their bytes (``$'\\x1b'``)."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(_byte_by_byte(letter) for letter in text) + "'"


def _byte_by_byte(letter: str) -> str:
    if letter.isprintable():
        return "\\" + letter if letter in "\\'" else letter
    return "".join(f"\\x{byte:02x}" for byte in letter.encode())
