"""Shell commands and scripts, docker commands among them, read as recipes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tuner.flags.values import shown_value
from tuner.recipe import docker_options
from tuner.recipe.bash_words import Piece, Word, commands
from tuner.recipe.carried import SET_BY_STARTS, read_marks, with_carried
from tuner.recipe.imported import Imported
from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.references import names
from tuner.recipe.toml_file import LONGEST
from tuner.recipe.words import Words, as_simulator, with_interpreter

MODULE = "sglang.launch_server"
SIMULATOR_MODULE = "tuner.sim"

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)(.*)", re.DOTALL)
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash"})
_INNER_COMMAND = re.compile(r"-[a-z]*c")
_DEEPEST = 4
_MOST_WORDS = 20_000


class ServerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that starts a server: what stands before the flags, and the flags."""

    before: tuple[str, ...]
    flags: tuple[str, ...]
    simulated: bool = False
    environment: dict[str, str] = {}
    remarks: tuple[str, ...] = ()
    #: The command as words; differs from another in the same script.
    docker: bool = False


def loads_script(text: str, name: str = "") -> Imported:
    """The recipe of the server that a command or script starts; :class:`RecipeError` in one sentence.

    Of several the first counts. ``$NAME`` of the script's own is filled in, any other stays as ``${NAME}``.
    """
    head, carried = read_marks(text)
    base = with_carried(Recipe(name=name), carried)
    found = _servers(text, {}, 0, base.launcher)
    if not found:
        raise RecipeError(
            f"{name or 'The command'} starts no SGLang: there is neither python -m {MODULE} nor sglang serve in it."
        )
    read = read_command(found[0], Recipe(name=name, tuner=base.tuner))
    remarks = list(read.remarks)
    if any(other.flags != found[0].flags for other in found[1:]):
        remarks.append(f"{name or 'The script'} starts {len(found)} servers; the first is read.")
    return Imported(recipe=with_carried(read.recipe, carried), head=head, remarks=tuple(remarks))


def read_command(command: ServerCommand, base: Recipe) -> Imported:
    """One command as a recipe."""
    remarks = list(command.remarks)
    plain = msgspec.structs.replace(base, tuner=type(base.tuner)(sglang_version=base.tuner.sglang_version))
    reader = Words(plain, remarks)
    reader.base = reader.environment(command.environment)
    recipe = reader.flags(command.flags)
    if command.simulated:
        return Imported(recipe=as_simulator(recipe), remarks=tuple(remarks))
    python = None if command.docker else _interpreter(command.before, remarks)
    return Imported(recipe=with_interpreter(recipe, python) if python else recipe, remarks=tuple(remarks))


def server_command(words: Sequence[str], launcher: Sequence[str] = ()) -> ServerCommand | None:
    """The words of a process or command cut where a server's flags begin, or None when they start none.

    ``launcher`` are words that the recipe puts in front of its interpreter: they are no part of what is read.
    """
    words = _without(words, launcher)
    for at, word in enumerate(words):
        after = words[at + 1] if at + 1 < len(words) else ""
        if word == "-m" and after in (MODULE, SIMULATOR_MODULE):
            return _command(words[:at], words[at + 2 :], simulated=after == SIMULATOR_MODULE)
        if word.rsplit("/", 1)[-1] == "launch_server.py" and at > 0:
            return _command(words[:at], words[at + 1 :])
        if word.rsplit("/", 1)[-1] == "sglang" and after == "serve":
            folder = word.rpartition("/")[0]
            return _command([*words[:at], f"{folder}/python" if folder else ""], words[at + 2 :])
    return None


def _without(words: Sequence[str], launcher: Sequence[str]) -> Sequence[str]:
    count = len(launcher)
    for at in range(len(words) - count + 1 if count else 0):
        if list(words[at : at + count]) == list(launcher):
            return [*words[:at], *words[at + count :]]
    return words


def _command(before: Sequence[str], flags: Sequence[str], *, simulated: bool = False) -> ServerCommand:
    command = ServerCommand(before=tuple(before), flags=tuple(flags), simulated=simulated)
    set_before = [match for word in before if (match := _ASSIGNMENT.fullmatch(word)) and match[2] == "="]
    container = docker_options.read(before)
    if container is None:
        return msgspec.structs.replace(
            command, environment={match[1]: match[3] for match in set_before if match[1] not in SET_BY_STARTS}
        )
    mapped = container.outside(flags)
    remarks = list(container.remarks)
    if tuple(mapped) != tuple(flags):
        remarks.append("Paths in the container are read as the folders they are outside of it.")
    return msgspec.structs.replace(
        command, flags=tuple(mapped), environment=container.environment, remarks=tuple(remarks), docker=True
    )


def _interpreter(before: Sequence[str], remarks: list[str]) -> str | None:
    named = [word for word in before if word and not word.startswith("-") and not _ASSIGNMENT.fullmatch(word)]
    python = named[-1] if named else ""
    if python.startswith("${HOME}/"):
        python = "~/" + python.removeprefix("${HOME}/")
    if not python or python == "${PYTHON}":
        return None
    if names(python):
        remarks.append(f"The interpreter {python} is known only when the script runs: set python in the recipe.")
        return None
    if "/" not in python:
        remarks.append(f"{python} is looked up on PATH, which may be another one: give its full path in the recipe.")
    return python


def _servers(text: str, known: dict[str, str], depth: int, launcher: Sequence[str]) -> list[ServerCommand]:
    if depth > _DEEPEST:
        return []
    found: list[ServerCommand] = []
    scope = _Scope(known)
    for words in commands(text):
        plain = scope.take(words)
        if not plain:
            continue
        server = server_command(plain, launcher) or _image_with_flags(plain)
        if server is not None:
            merged = dict(server.environment) if server.docker else {**scope.exported, **server.environment}
            found.append(msgspec.structs.replace(server, environment=merged))
            continue
        inner = _inner(plain)
        if inner is not None:
            container = docker_options.read(plain)
            for command in _servers(inner, dict(scope.known), depth + 1, launcher):
                if container is not None:
                    mapped = tuple(container.outside(command.flags))
                    command = msgspec.structs.replace(
                        command,
                        flags=mapped,
                        environment={**container.environment, **command.environment},
                        remarks=container.remarks,
                        docker=True,
                    )
                found.append(command)
    return found


def _inner(words: Sequence[str]) -> str | None:
    """The text of ``bash -c TEXT``."""
    for at, word in enumerate(words[:-2]):
        if word.rsplit("/", 1)[-1] in _SHELLS and _INNER_COMMAND.fullmatch(words[at + 1]):
            return words[at + 2]
    return None


def _image_with_flags(words: Sequence[str]) -> ServerCommand | None:
    """``docker run ... IMAGE --model-path ...``: an image whose entry point is the server."""
    container = docker_options.read(words)
    if container is None or "sglang" not in container.image or not container.command:
        return None
    if not container.command[0].startswith("--"):
        return None
    return _command(words[: len(words) - len(container.command)], container.command)


class _Scope:
    """Variables of a script while it is read."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = dict(known)
        self.arrays: dict[str, list[str]] = {}
        self.exported: dict[str, str] = {}

    def take(self, words: tuple[Word, ...]) -> list[str]:
        """A command's words with variables filled in; assignments are noted, and are no words."""
        first = self._first(words[0])
        if first in ("export", "declare", "readonly", "local", "typeset", "set"):
            for word in words[1:]:
                self._assign(word, exported=first == "export")
            return []
        at = 0
        while at < len(words) and self._is_assignment(words[at]):
            at += 1
        if at == len(words):
            for word in words:
                self._assign(word, exported=False)
            return []
        return self._filled(words)

    def _filled(self, words: tuple[Word, ...]) -> list[str]:
        filled: list[str] = []
        unknown: list[str] = []
        for word in words:
            _refuse_endless(len(filled), _MOST_WORDS)
            sole = _sole(word)
            if sole is not None and sole.kind == "unknown" and sole.text in ("$@", "$*"):
                continue
            try:
                filled += self._expanded(word)
            except _Unknown as piece:
                unknown.append(piece.text)
                filled.append(piece.text)
        server = server_command(filled) if unknown else None
        for text in unknown:
            if server is not None and text in (*server.flags, *server.before):
                raise RecipeError(f"The script works out {shown_value(text)} when it runs: write the value itself.")
        return filled

    def _first(self, word: Word) -> str:
        return word.pieces[0].text if len(word.pieces) == 1 and word.pieces[0].kind == "text" else ""

    def _is_assignment(self, word: Word) -> bool:
        first = word.pieces[0] if word.pieces else None
        return first is not None and first.kind == "text" and not first.quoted and bool(_ASSIGNMENT.match(first.text))

    def _assign(self, word: Word, *, exported: bool) -> None:
        if word.items is not None:
            match = _ASSIGNMENT.match(word.pieces[0].text)
            items: list[str] = []
            for item in word.items:
                items += self._tried(item)
                _refuse_endless(len(items), _MOST_WORDS)
            if match is not None:
                before = self.arrays.get(match[1], []) if match[2] == "+=" else []
                self.arrays[match[1]] = [*before, *items]
            return
        try:
            text = self._joined(word)
        except _Unknown:
            return
        match = _ASSIGNMENT.fullmatch(text)
        if match is None:
            # "export NAME" of a variable set before.
            if exported and text in self.known and text not in SET_BY_STARTS:
                self.exported[text] = self.known[text]
            return
        name, value = match[1], match[3]
        if match[2] == "+=":
            value = self.known.get(name, "") + value
            _refuse_endless(len(value), LONGEST)
        if (exported and name not in SET_BY_STARTS) or name in self.exported:
            self.exported[name] = value
        if f"${{{name}}}" not in value:
            self.known[name] = value

    def _tried(self, word: Word) -> Iterator[str]:
        try:
            yield from self._expanded(word)
        except _Unknown as piece:
            yield piece.text

    def _expanded(self, word: Word) -> list[str]:
        piece = _sole(word)
        if piece is not None and piece.kind == "array" and piece.text in self.arrays:
            return self.arrays[piece.text]
        if piece is not None and piece.kind == "variable" and not piece.quoted and piece.text in self.known:
            return self.known[piece.text].split()
        if word.items is not None:
            return []
        return [self._joined(word)]

    def _joined(self, word: Word) -> str:
        texts: list[str] = []
        length = 0
        for piece in word.pieces:
            texts.append(self._piece(piece))
            length += len(texts[-1])
            _refuse_endless(length, LONGEST)
        return "".join(texts)

    def _piece(self, piece: Piece) -> str:
        if piece.kind == "text":
            return piece.text
        if piece.kind == "variable":
            if piece.text in self.known:
                return self.known[piece.text]
            return f"${{{piece.text}}}" if piece.default is None else piece.default
        if piece.kind == "array" and piece.text in self.arrays:
            return " ".join(self.arrays[piece.text])
        raise _Unknown(piece.text)


def _refuse_endless(length: int, limit: int) -> None:
    """A few lines of variables made of each other can stand for more than a machine holds."""
    if length > limit:
        raise RecipeError("A variable or command of the script is too long to be one.")


def _sole(word: Word) -> Piece | None:
    """The one piece of a word, also where quotes stand around it."""
    pieces = word.pieces[1:] if word.pieces[:1] == (Piece("text", "", quoted=True),) else word.pieces
    return pieces[0] if len(pieces) == 1 else None


class _Unknown(Exception):
    """A piece that only a running shell can know."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
