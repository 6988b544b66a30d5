"""systemd units: written and read."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from tuner.recipe import references
from tuner.recipe.carried import (
    SET_BY_STARTS,
    carried_lines,
    head_lines,
    read_marks,
    variables,
    variables_say,
    with_carried,
    words_say,
)
from tuner.recipe.imported import Imported
from tuner.recipe.model import SIMULATOR, Recipe, RecipeError
from tuner.recipe.script_file import MODULE, SIMULATOR_MODULE, loads_script, read_command, server_command
from tuner.recipe.shell import STAND_IN_NOTE, by_option, server_words
from tuner.recipe.slots import PYTHON, Slot
from tuner.redact import redact_text

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "s": " "}
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


def to_unit(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """A systemd service that keeps the recipe's server up.

    systemd itself refuses a second start. ``${NAME}`` comes from the file ``/etc/sglang/PORT.env``, readable by root
    only; the start is refused while one of them is not set.
    """
    note = [STAND_IN_NOTE] if recipe.simulated and STAND_IN_NOTE not in comments else []
    words = server_words(recipe)
    literal = {name: value for name, value in variables(recipe) if set(references.names(value)) <= {"HOME"}}
    # The environment file sets these under their own names: a secret needs no place on a command line.
    passed = {name for name, value in recipe.environment.items() if value == f"${{{name}}}"} - set(literal)
    referring = {n: value for n, value in variables(recipe) if n not in literal and n not in passed}
    python = _interpreter(recipe)
    needed = sorted(
        # The home folder is known to systemd as %h.
        ({name for text in (*words, *referring.values(), python) for name in references.names(text)} | passed)
        - {"HOME"}
    )
    said: set[Slot] = {*words_say(recipe), PYTHON, *variables_say(recipe)} - {("environment", n) for n in passed}
    lines = [*head_lines([*comments, *note]), *carried_lines(recipe, said), "", "[Unit]"]
    lines += [
        f"Description={_percent('SGLang ' + _one_line(str(recipe.flags.get('served_model_name', recipe.model_path))))}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
    ]
    folder = python.rpartition("/")[0]
    if folder:
        lines.append(f"Environment={_word(f'PATH={folder}:{_SYSTEM_PATH}', dollars=False)}")
    lines += [f"Environment={_word(f'{name}={value}', dollars=False)}" for name, value in literal.items()]
    if needed:
        lines.append(f"EnvironmentFile=/etc/sglang/{recipe.port}.env")
    lines += [
        f"""ExecStartPre=/bin/sh -c 'test -n "$${{{name}}}" || {{ echo "{name} is not set" >&2; exit 1; }}'"""
        for name in needed
    ]
    before = ["/usr/bin/env", *(f"{name}={value}" for name, value in referring.items())] if referring else []
    if not before and not (recipe.launcher or (python,))[0].startswith(("/", "${HOME}/")):
        before = ["/usr/bin/env"]
    start = [*(_word(word) for word in (*before, *recipe.launcher)), _word(python), "-m"]
    start.append(SIMULATOR_MODULE if recipe.simulated else MODULE)
    lines.append("ExecStart=" + " \\\n  ".join([" ".join(start), *by_option(words, _word)]))
    lines += ["Restart=on-failure", "RestartSec=15", "TimeoutStopSec=120", "KillMode=mixed", "LimitMEMLOCK=infinity"]
    lines += ["", "[Install]", "WantedBy=multi-user.target"]
    return "\n".join(lines) + "\n"


def loads_unit(text: str, name: str = "") -> Imported:
    """The recipe of a unit's ``ExecStart``; :class:`RecipeError` in one sentence."""
    head, carried = read_marks(text)
    entries = _entries(text)
    environment: dict[str, str] = {}
    remarks: list[str] = []
    for key, value in entries:
        if key == "Environment":
            for word in split(value, dollars=False):
                variable, equals, content = word.partition("=")
                if equals and variable not in SET_BY_STARTS:
                    environment[variable] = content
        elif key == "EnvironmentFile" and not value.startswith("/etc/sglang/"):
            remarks.append(f"The variables of {redact_text(value)} are not read: put them under [environment].")
    starts = [value for key, value in entries if key == "ExecStart" and value]
    called = name or "The unit"
    if not starts:
        raise RecipeError(f"{called} has no ExecStart under [Service]: it starts nothing.")
    words = split(starts[0].lstrip("@-:+!"), dollars=True)
    base = with_carried(Recipe(name=name), carried)
    command = server_command(words, base.launcher)
    if command is None:
        inner = next((word for word in words if MODULE in word or "sglang serve" in word), None)
        if inner is None:
            raise RecipeError(f"{called} starts no SGLang itself: import the script that its ExecStart names.")
        read = loads_script(inner, name)
        for variable, content in environment.items():
            read.recipe.environment.setdefault(variable, content)
    else:
        whole = msgspec.structs.replace(command, environment={**environment, **command.environment})
        read = read_command(whole, Recipe(name=name, tuner=base.tuner))
    return Imported(recipe=with_carried(read.recipe, carried), head=head, remarks=(*remarks, *read.remarks))


def split(text: str, *, dollars: bool) -> list[str]:
    """A value cut into words by systemd's rules: quotes, C escapes, ``%%``, with ``dollars`` ``$$`` and ``$NAME``."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if quote and letter == quote:
            quote = ""
        elif not quote and letter in "\"'" and word is None:
            quote, word = letter, []
        elif not quote and letter.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = [] if word is None else word
            if letter == "\\":
                piece, at = _unescaped(text, at)
                word.append(piece)
            elif letter == "%":
                following = text[at : at + 1]
                at += 1
                word.append({"%": "%", "h": "${HOME}"}.get(following, "%" + following))
            elif letter == "$" and dollars and text[at : at + 1] == "$":
                at += 1
                word.append("$")
            elif letter == "$" and dollars and (match := _REFERENCE.match(text, at - 1)):
                at = match.end()
                word.append(f"${{{match[1] or match[2]}}}")
            else:
                word.append(letter)
    if quote:
        raise RecipeError("The unit has a quote that is not closed.")
    if word is not None:
        words.append("".join(word))
    return words


def _unescaped(text: str, at: int) -> tuple[str, int]:
    code = _CODE.match(text, at)
    if code is not None:
        number = int(code[1] or code[2] or code[3] or "0", 16) if code[4] is None else int(code[4], 8)
        return (chr(number) if number < 0x110000 else "\ufffd"), code.end()
    letter = text[at : at + 1]
    return _ESCAPES.get(letter, letter), at + 1


def _entries(text: str) -> list[tuple[str, str]]:
    entries: list[tuple[str, str]] = []
    section, joined = "", ""
    for raw in text.replace("\r\n", "\n").split("\n"):
        line = raw.strip()
        if line.startswith(("#", ";")):
            continue
        if line.endswith("\\") and (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1] + " "
            continue
        line, joined = joined + line, ""
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section == "Service" and "=" in line:
            key, _, value = line.partition("=")
            entries.append((key.strip(), value.strip()))
    return entries


def _interpreter(recipe: Recipe) -> str:
    if recipe.python is None or recipe.python == SIMULATOR:
        return "${PYTHON}"
    return f"${{HOME}}/{recipe.python[2:]}" if recipe.python.startswith("~/") else recipe.python


def _word(text: str, *, dollars: bool = True) -> str:
    """A word by systemd's rules; with ``dollars`` only ``${NAME}`` is filled in, without them nothing but ``%h`` is."""
    if _PLAIN.fullmatch(text):
        return text
    pieces = references.pieces(text)
    known = {"HOME": "%h"}
    return f'"{"".join(known.get(p, f"${{{p}}}") if is_name else _escape(p, dollars) for is_name, p in pieces)}"'


def _escape(text: str, dollars: bool) -> str:
    letters = []
    for letter in text:
        if letter in "\\\"'":
            letters.append("\\" + letter)
        elif letter == "%":
            letters.append("%%")
        elif letter == "$" and dollars:
            letters.append("$$")
        elif letter == "\n":
            letters.append("\\n")
        elif not letter.isprintable():
            number = ord(letter)
            letters.append(f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}")
        else:
            letters.append(letter)
    return "".join(letters)


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:200]
