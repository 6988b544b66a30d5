"""What a Python interpreter has installed, asked of the interpreter itself: SGLang never enters our own process."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from tuner.paths import Home
from tuner.place import expanded
from tuner.recipe.model import SIMULATOR

#: A cold interpreter on a slow disk takes seconds.
_TIMEOUT_S = 30.0
#: One that did not answer is not asked again for so long: a start asks several times.
_NOT_AGAIN_S = 60.0
#: Importing SGLang takes 15 s and CUDA; its metadata do not.
_QUESTION = """
import importlib.metadata as metadata, importlib.util as util, json
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
found = util.find_spec("sglang")
print(json.dumps({
    "has_sglang": found is not None,
    "sglang": version("sglang"),
    "torch": version("torch"),
    "cuda12": version("nvidia-cuda-runtime-cu12"),
    "cuda13": version("nvidia-cuda-runtime"),
    "flashinfer": version("flashinfer-python"),
    "place": list(found.submodule_search_locations or [""])[0] if found else "",
}))
"""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter has. Versions are None where the packages' metadata do not tell."""

    has_sglang: bool = False
    sglang: str | None = None
    torch: str | None = None
    cuda12: str | None = None
    cuda13: str | None = None
    flashinfer: str | None = None
    #: Folder of the package ``sglang``.
    place: str = ""
    #: Why it could not be asked, one sentence; empty when it could.
    problem: str = ""


class _Remembered(msgspec.Struct):
    stamp: list[int]
    interpreter: Interpreter


#: Interpreters that did not answer, and until when (steady clock) they are believed not to.
_silent: dict[str, float] = {}


def resolve_interpreter(python: str, environ: Mapping[str, str]) -> str | None:
    """Absolute path of the interpreter meant; None when there is no such program. Links are kept: a venv is one."""
    found = shutil.which(str(expanded(python)) if python.startswith("~") else python, path=environ.get("PATH"))
    return str(Path.cwd() / found) if found else None


def inspect_interpreter(python: str, home: Home, environ: Mapping[str, str] | None = None) -> Interpreter:
    """Asks the interpreter at the path ``python`` what it has; remembers a good answer until something changes."""
    environ = os.environ if environ is None else environ
    key = hashlib.sha256(f"{python}\0{environ.get('PYTHONPATH', '')}".encode()).hexdigest()[:24]
    file = home.cache / "interpreters" / f"{key}.json"
    remembered = _recall(file)
    if remembered is not None and remembered.stamp == _stamp(python, remembered.interpreter.place):
        return remembered.interpreter
    interpreter = _ask(python, environ)
    if interpreter.has_sglang:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(_Remembered(_stamp(python, interpreter.place), interpreter)))
        draft.replace(file)
    return interpreter


def _recall(file: Path) -> _Remembered | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Remembered)
    except (OSError, msgspec.DecodeError):
        return None


def _stamp(python: str, place: str) -> list[int]:
    """Changes when the interpreter is replaced or packages beside SGLang are installed or removed."""
    stamp = []
    for path in (Path(python), Path(place), Path(place).parent):
        try:
            stamp.append(path.stat().st_mtime_ns)
        except OSError:
            stamp.append(0)
    return stamp


def _ask(python: str, environ: Mapping[str, str]) -> Interpreter:
    silent = Interpreter(problem=f"{python} did not answer within {_TIMEOUT_S:g} s.")
    if time.monotonic() < _silent.get(python, 0.0):
        return silent
    try:
        asked = subprocess.Popen(
            [python, "-c", _QUESTION],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return Interpreter(problem=f"{python} cannot be run: {error.strerror or error}.")
    try:
        answer, _ = asked.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _silent[python] = time.monotonic() + _NOT_AGAIN_S
        return silent
    finally:
        # It may be a script that started others: they hold our pipe, and would outlive the question.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(asked.pid, signal.SIGKILL)
        asked.wait()
        if asked.stdout is not None:
            asked.stdout.close()
    try:
        return msgspec.json.decode(answer, type=Interpreter)
    except msgspec.DecodeError:
        return Interpreter(problem=f"{python} is no Python interpreter, or a broken one (status {asked.returncode}).")


def installed_version(python: str, home: Home, environ: Mapping[str, str]) -> str | None:
    """Version of SGLang that the interpreter has in ``environ``; None when there is none, or it does not tell."""
    if python == SIMULATOR:
        return None
    path = resolve_interpreter(python, environ)
    return inspect_interpreter(path, home, environ).sglang if path else None
