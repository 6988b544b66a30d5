"""What a machine has for a first recipe: interpreters with SGLang, model folders, cards, servers that run already.

Nothing that is found is run or changed: an interpreter shows by the metadata of its packages that it has SGLang, a
model by its ``config.json``. A folder on a disk that hangs holds up only the thread that looks; what was found until
then stands.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import psutil

from tuner.metrics.model import GpuReading
from tuner.modelcard import Family, ModelError
from tuner.modelfile import load_shape
from tuner.place import expanded
from tuner.planner.model import GIB
from tuner.recipe.model import Recipe, RecipeError
from tuner.server.cards import Foreign, running_sglang
from tuner.session.processes import recipe_of

#: Seconds for all of it; a machine with local disks needs far less than one.
LIMIT_S = 8.0
#: Folders looked into for models, in each of the places where models are.
_MOST_FOLDERS = 3000
_MOST_MODELS = 200
_CONDAS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "conda", "mamba")
#: Where environments are, below the home folder and below the root.
_HOME_ENVIRONMENTS = (
    ".venv", "venv", "*/.venv", "*/venv", ".virtualenvs/*", "venvs/*", "envs/*", ".pyenv/versions/*",
    ".local/share/uv/tools/*", ".local/share/pipx/venvs/*", *_CONDAS,
    *(f"{conda}/envs/*" for conda in (*_CONDAS, ".conda")),
)  # fmt: skip
_ROOT_ENVIRONMENTS = (
    "opt/*", "opt/*/.venv", "opt/*/venv", "opt/*/envs/*", "opt/venvs/*", "srv/*/.venv", "srv/*/venv", "workspace/.venv",
    "workspace/venv", "workspace/*/.venv", "workspace/*/venv", "data/venvs/*", "data/*/.venv", "data/*/envs/*",
)  # fmt: skip
#: Where models are, and how many folders deep.
_ROOT_MODELS = ("models", "data/models", "srv/models", "opt/models", "workspace/models", "mnt/models", "root/models")
_MODELS_DEPTH = 3
_TEXT_MODELS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
#: Longest list of environments, or name of a revision, that is read, bytes.
_LONGEST_TEXT = 1 << 20
_DIST_INFO = re.compile(r"^sglang-(.+)\.dist-info$")
_PYTHON = re.compile(r"^python3\.\d+$")


class NotHere(Exception):
    """What an operator wrote is not there; the message is one sentence."""


class FoundInterpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python interpreter beside which SGLang is installed."""

    path: str
    version: str


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with the ``config.json`` of a language model and weights."""

    path: str
    name: str
    #: Whether it has layers that keep a state.
    hybrid: bool
    #: Size of the weight files, GiB.
    weights_gib: float
    #: When its config was last written, seconds since 1970.
    changed_at: float


class FoundServer(msgspec.Struct, frozen=True, kw_only=True):
    """An SGLang that runs, whoever started it. ``recipe`` None: it may not be looked at, ``problem`` says why."""

    pid: int
    port: int
    recipe: Recipe | None = None
    problem: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found so far."""

    interpreters: tuple[FoundInterpreter, ...] = ()
    models: tuple[FoundModel, ...] = ()
    servers: tuple[FoundServer, ...] = ()
    gpus: tuple[GpuReading, ...] = ()
    #: What is being looked at now; empty when it is over.
    at: str = ""
    folders: int = 0
    over: bool = False
    #: Whether the time ran out, or there were too many folders.
    cut: bool = False


def servers_here() -> list[FoundServer]:
    """The SGLang servers of this machine, with their flags where they may be read."""
    return [_server(server) for server in running_sglang()]


def _server(server: Foreign) -> FoundServer:
    try:
        return FoundServer(pid=server.pid, port=server.port, recipe=recipe_of(server.pid).recipe)
    except psutil.Error:
        problem = "It belongs to another user."
    except RecipeError as error:
        # What gave itself a title, such as a scheduler that outlived its server, has no flags left to read.
        titled = server.command.startswith("sglang::")
        problem = f"It is titled {server.command}: its flags cannot be read." if titled else str(error)
    return FoundServer(pid=server.pid, port=server.port, problem=problem)


class Finder:
    """Looks around once. ``look`` blocks and belongs in a thread; ``found`` may be asked at any time."""

    def __init__(
        self,
        *,
        home: Path,
        environ: Mapping[str, str],
        cards: Callable[[], Iterable[GpuReading]],
        servers: Callable[[], list[FoundServer]] = servers_here,
        root: Path = Path("/"),
        limit_s: float = LIMIT_S,
    ) -> None:
        """``home`` is the operator's home folder; ``root`` another one than "/" for a test."""
        self._home = home
        self._environ = environ
        self._cards = cards
        self._servers = servers
        self._root = root
        self._limit_s = limit_s
        self._ends_at = 0.0
        #: Count of folders at which a place is left, and whether any was left before its end.
        self._folders_end = 0
        self._left_out = False
        self._found = Found(at="the processes")

    def found(self) -> Found:
        """What was found until now."""
        return self._found

    def look(self) -> None:
        """Servers and cards first, then interpreters, then models."""
        self._ends_at = time.monotonic() + self._limit_s
        self._put(servers=tuple(self._servers()), at="the GPUs")
        self._put(gpus=tuple(self._cards()), at="Python environments")
        self._look_for_interpreters()
        self._look_for_models()
        self._put(at="", over=True, cut=self._found.cut or self._left_out)

    def interpreter_at(self, text: str) -> FoundInterpreter:
        """The interpreter, or the environment's folder, that an operator wrote. Raises NotHere."""
        place = expanded(text.strip())
        python = place / "bin" / "python" if _is_folder(place) else place
        if not _is_file(python):
            raise NotHere(
                f"There is no interpreter {python}: give the path of a python, or of an environment's folder."
            )
        version = self._sglang_of(python)
        if version is None:
            raise NotHere(f"Beside {python} no SGLang is installed: give the python of its environment.")
        return FoundInterpreter(path=str(python), version=version)

    def model_at(self, text: str) -> FoundModel:
        """The model folder that an operator wrote. Raises NotHere."""
        place = expanded(text.strip())
        if not _is_folder(place):
            raise NotHere(f"There is no folder {place}: give the folder that holds the model's config.json.")
        try:
            shape = load_shape(place)
        except ModelError as error:
            raise NotHere(str(error)) from error
        except OSError as error:
            raise NotHere(f"{place} may not be looked into ({error.strerror}): make it readable first.") from error
        return FoundModel(
            path=str(place),
            name=place.name,
            hybrid=shape.family is not Family.PLAIN,
            weights_gib=_weights_gib(place),
            changed_at=_changed_at(place / "config.json"),
        )

    def _put(self, **parts: object) -> None:
        # One assignment: a reader in another thread sees the old value or the new one.
        self._found = msgspec.structs.replace(self._found, **parts)

    def _late(self) -> bool:
        if time.monotonic() > self._ends_at and not self._found.cut:
            self._put(cut=True)
        return self._found.cut

    # interpreters

    def _look_for_interpreters(self) -> None:
        known: dict[str, FoundInterpreter] = {}
        for python in self._pythons():
            if self._late():
                return
            if str(python) in known:
                continue
            version = self._sglang_of(python)
            if version is not None:
                known[str(python)] = FoundInterpreter(path=str(python), version=version)
                self._put(interpreters=tuple(known.values()))

    def _pythons(self) -> Iterator[Path]:
        for server in self._found.servers:
            if server.recipe is not None and server.recipe.python and not server.recipe.simulated:
                yield Path(server.recipe.python)
        for folder in self._environments():
            for name in ("python", "python3"):
                python = folder / "bin" / name
                if _is_file(python):
                    yield python
                    break

    def _environments(self) -> Iterator[Path]:
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            if self._environ.get(variable):
                yield Path(self._environ[variable])
        for folder in self._environ.get("PATH", "").split(":"):
            if folder.startswith("/"):
                yield Path(folder).parent
        yield from _lines(self._home / ".conda" / "environments.txt")
        for base, patterns in ((self._home, _HOME_ENVIRONMENTS), (self._root, _ROOT_ENVIRONMENTS)):
            for pattern in patterns:
                if self._late():
                    return
                self._put(at=f"{base / pattern}")
                yield from _matching(base, pattern)
        yield from (self._root / "usr" / "local", self._root / "usr")

    def _sglang_of(self, python: Path) -> str | None:
        """The version of SGLang that is installed beside an interpreter, by the metadata of the package."""
        prefix = python.parent.parent
        places = [prefix]
        if not _is_file(prefix / "pyvenv.cfg") and not _is_folder(prefix / "conda-meta"):
            # The system's own: pip installs beside it and into the home folder.
            places += [self._root / "usr" / "local", self._home / ".local"]
        real = _file_behind(python).name
        version = real if _PYTHON.match(real) else "python3*"
        for place in places:
            for packages in (
                f"lib/{version}/site-packages",
                f"lib/{version}/dist-packages",
                "lib/python3/dist-packages",
            ):
                for folder in _matching(place, packages):
                    found = next((m[1] for entry in _entries(folder) if (m := _DIST_INFO.match(entry.name))), None)
                    if found is not None:
                        return found
        return None

    # models

    def _look_for_models(self) -> None:
        known: dict[str, FoundModel] = {}
        for folder, name in self._model_folders():
            if self._late() or len(known) >= _MOST_MODELS:
                return
            model = _model(folder, name)
            if model is not None and model.path not in known:
                known[model.path] = model
                self._put(models=tuple(known.values()))

    def _model_folders(self) -> Iterator[tuple[Path, str]]:
        for server in self._found.servers:
            if server.recipe is not None and server.recipe.model_path.startswith("/"):
                place = Path(server.recipe.model_path)
                yield place, place.name
        yield from self._hub()
        for place in self._model_places():
            # A data set of 100,000 folders in one place must not hide the models in the next.
            self._folders_end = self._found.folders + _MOST_FOLDERS
            for folder in self._below(place, _MODELS_DEPTH):
                yield folder, folder.name

    def _hub(self) -> Iterator[tuple[Path, str]]:
        """Snapshots of the Hugging Face cache; of several revisions the one that ``main`` is at, else the newest."""
        told = self._environ.get("HF_HUB_CACHE") or self._environ.get("HUGGINGFACE_HUB_CACHE")
        hubs = [Path(told)] if told else []
        if self._environ.get("HF_HOME"):
            hubs.append(Path(self._environ["HF_HOME"]) / "hub")
        hubs.append(self._home / ".cache" / "huggingface" / "hub")
        for hub in hubs:
            self._put(at=str(hub))
            for repository in _matching(hub, "models--*"):
                main = _text(repository / "refs" / "main").strip()
                snapshots = sorted(_matching(repository, "snapshots/*"), key=_changed_at, reverse=True)
                chosen = next((s for s in snapshots if s.name == main), snapshots[0] if snapshots else None)
                if chosen is not None:
                    yield chosen, repository.name.removeprefix("models--").rsplit("--", 1)[-1]

    def _model_places(self) -> Iterator[Path]:
        if self._environ.get("MODELSCOPE_CACHE"):
            yield Path(self._environ["MODELSCOPE_CACHE"])
        yield self._home / ".cache" / "modelscope" / "hub"
        yield self._home / "models"
        for place in _ROOT_MODELS:
            yield self._root / place
        yield from _matching(self._root, "mnt/*/models")
        yield from _matching(self._root, "data/*/models")

    def _below(self, folder: Path, depth: int) -> Iterator[Path]:
        if self._late():
            return
        if self._found.folders >= self._folders_end:
            self._left_out = True
            return
        self._put(at=str(folder), folders=self._found.folders + 1)
        if _is_file(folder / "config.json"):
            yield folder
        elif depth:
            for entry in _entries(folder):
                if not entry.name.startswith(".") and _is_folder(entry):
                    yield from self._below(entry, depth - 1)


def _model(folder: Path, name: str) -> FoundModel | None:
    """The model in a folder; None where there is none that SGLang could serve as it is."""
    try:
        shape = load_shape(folder)
    except (ModelError, OSError):
        return None
    weights_gib = _weights_gib(folder)
    if not weights_gib or not shape.architecture.endswith(_TEXT_MODELS):
        return None
    return FoundModel(
        path=str(folder),
        name=name,
        hybrid=shape.family is not Family.PLAIN,
        weights_gib=weights_gib,
        changed_at=_changed_at(folder / "config.json"),
    )


def _weights_gib(folder: Path) -> float:
    return sum(_size(entry) for entry in _entries(folder) if entry.suffix == ".safetensors") / GIB


# Of what may not be looked at there is nothing to find; that is no error here.


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _file_behind(link: Path) -> Path:
    try:
        return link.resolve()
    except (OSError, RuntimeError):
        # RuntimeError: links that lead to each other.
        return link


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _text(path: Path) -> str:
    # Of a named pipe the end never comes.
    if not _is_file(path):
        return ""
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


def _lines(path: Path) -> Iterator[Path]:
    yield from (Path(line.strip()) for line in _text(path).splitlines() if line.strip().startswith("/"))
