"""From a recipe to the exact command and environment of a start, and the start itself."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tuner.findings import Finding, FindingId, Severity
from tuner.paths import Home
from tuner.recipe import references, resolve_argv, resolve_environment, simulator_argv
from tuner.recipe.model import Recipe
from tuner.server import children, proxies
from tuner.server.family import START_ID_VARIABLE, boot_id, since_boot_s
from tuner.server.interpreter import inspect_interpreter, resolve_interpreter
from tuner.server.model import LaunchSpec, ServerHandle, StartRefused

#: The child waits here until its handle is on disk, then becomes the server under the same process id. When the
#: tuner dies before, the pipe closes and the child ends: a server without a handle cannot come to be.
_GATE = 'read -r go && exec "$@" </dev/null'


def launch_spec(recipe: Recipe, home: Home, environ: Mapping[str, str], round_name: str | None = None) -> LaunchSpec:
    """The command and environment of a start.

    Raises ``StartRefused`` with everything that is missing, and ``RecipeError`` for what no command line can say.
    """
    problems = (*interpreter_findings(recipe, environ), *secret_findings(recipe, environ))
    if problems:
        raise StartRefused(problems)
    environment = {**environ, **resolve_environment(recipe, environ)}
    if recipe.simulated:
        command = [sys.executable, "-m", "tuner.sim", *resolve_argv(recipe, environ), *_stand_in(recipe, home)]
    elif recipe.launcher:
        # What it runs, and where, is the launcher's: the interpreter is named as the recipe names it.
        command = [recipe.python or "python3", "-m", "sglang.launch_server", *resolve_argv(recipe, environ)]
    else:
        python = resolve_interpreter(recipe.python or "", environment) or ""
        # Helpers such as ninja lie beside the interpreter; an activated environment of another kind must not win.
        environment["PATH"] = ":".join(p for p in (str(Path(python).parent), environment.get("PATH", "")) if p)
        spelled = _spelled_for(recipe, inspect_interpreter(python, home, environment).sglang)
        command = [python, "-m", "sglang.launch_server", *resolve_argv(spelled, environ)]
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(proxies.kept_off(environment, recipe.host))
    return LaunchSpec(
        argv=(*recipe.launcher, *command),
        environment=environment,
        host=recipe.host,
        port=recipe.port,
        simulated=recipe.simulated,
        recipe=recipe,
        round_name=round_name,
    )


def _stand_in(recipe: Recipe, home: Home) -> list[str]:
    shape = recipe.tuner.model_shape
    told = [] if shape is None or "shape" in recipe.tuner.simulator else ["--sim-shape", shape]
    return [*told, *simulator_argv(recipe), "--sim-card", str(home.card(recipe.port))]


def interpreter_findings(recipe: Recipe, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """What is wrong with ``[server] python`` and the command in front of it, before either is asked anything."""
    if recipe.launcher and shutil.which(recipe.launcher[0], path=environ.get("PATH")) is None:
        return (
            Finding(
                id=FindingId.TOOL_CHAIN_MISSING,
                severity=Severity.FATAL,
                title=f"There is no command {recipe.launcher[0]}, which is to start the server.",
                remedy="Correct launcher under [tuner], or leave it out to start the interpreter directly.",
            ),
        )
    if recipe.simulated or recipe.launcher:
        return ()
    if not recipe.python:
        return (
            Finding(
                id=FindingId.MODULE_MISSING,
                severity=Severity.FATAL,
                title="The recipe does not say which Python has SGLang.",
                remedy='Set python = "/path/to/env/bin/python" under [server] (or "simulator" for the stand-in).',
            ),
        )
    if resolve_interpreter(recipe.python, environ) is None:
        return (
            Finding(
                id=FindingId.MODULE_MISSING,
                severity=Severity.FATAL,
                title=f"There is no interpreter {recipe.python}.",
                remedy="Set python under [server] to the absolute path of the interpreter that has SGLang.",
            ),
        )
    return ()


def secret_findings(recipe: Recipe, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """One finding for each ``${NAME}`` of the recipe that the environment does not have."""
    wanted: dict[str, list[str]] = {}
    for where, value in (*recipe.environment.items(), *recipe.flags.items()):
        for name in _references(value):
            wanted.setdefault(name, []).append(where)
    return tuple(
        Finding(
            id=FindingId.SECRET_MISSING,
            severity=Severity.FATAL,
            title=f"The environment has no {name}, which {', '.join(places)} needs.",
            remedy=f"Set it before the start: export {name}=...",
        )
        for name, places in wanted.items()
        if name not in environ
    )


def _references(value: Any) -> list[str]:
    if isinstance(value, str):
        return list(dict.fromkeys(references.names(value)))
    if isinstance(value, list | tuple):
        return [name for item in value for name in _references(item)]
    if isinstance(value, dict):
        return [name for item in value.values() for name in _references(item)]
    return []


def _spelled_for(recipe: Recipe, version: str | None) -> Recipe:
    """The recipe with the version that is really installed, which decides how flags are spelled."""
    if version is None:
        return recipe
    return msgspec.structs.replace(recipe, tuner=msgspec.structs.replace(recipe.tuner, sglang_version=version))


def spawn(
    spec: LaunchSpec,
    log_path: Path,
    vram_before_mib: dict[str, int],
    keep: Callable[[ServerHandle], None],
    presence: int,
) -> ServerHandle:
    """Starts the server in a session of its own, its output in ``log_path``, once ``keep`` has stored the handle.

    ``presence`` is the descriptor of ``presence.taken``, which the server inherits. Raises OSError when the process
    cannot be made, and whatever ``keep`` raises; the server is then not started.
    """
    start_id = secrets.token_hex(8)
    with log_path.open("ab") as log:
        child = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, "sh", *spec.argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**spec.environment, START_ID_VARIABLE: start_id},
            start_new_session=True,
            pass_fds=(presence,),
        )
    children.remember(child)
    gate = child.stdin
    if gate is None:
        raise OSError("no pipe to the new process")
    try:
        handle = _handle_of(child.pid, spec, log_path, vram_before_mib, start_id)
        keep(handle)
        gate.write(b"go\n")
        gate.flush()
    except BaseException:
        # The pipe closes without a word, and the waiting child ends.
        child.kill()
        child.wait()
        raise
    finally:
        gate.close()
    return handle


def at_gate(process: psutil.Process) -> bool:
    """Whether a started process still waits for the word to become the server."""
    try:
        return process.cmdline()[:3] == ["/bin/sh", "-c", _GATE]
    except psutil.Error:
        return False


def _handle_of(
    pid: int, spec: LaunchSpec, log_path: Path, vram_before_mib: dict[str, int], start_id: str
) -> ServerHandle:
    process = psutil.Process(pid)
    return ServerHandle(
        pid=pid,
        create_time=process.create_time(),
        since_boot_s=since_boot_s(process),
        start_id=start_id,
        boot_id=boot_id(),
        host=spec.host,
        port=spec.port,
        log_path=str(log_path),
        started_at=time.time(),
        simulated=spec.simulated,
        recipe=spec.recipe,
        round_name=spec.round_name,
        vram_before_mib=vram_before_mib,
    )
