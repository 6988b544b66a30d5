"""Comment lines of the tuner in scripts, units and YAML: what the file itself has no word for.

``#: text`` is for people; ``#= key = value`` is TOML, so that a file that is read again says the whole recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.flags import catalogue
from tuner.recipe import references
from tuner.recipe.layout import item, ordered, toml_value
from tuner.recipe.model import Recipe
from tuner.recipe.reader import Reading, read_document, recipe_from, where
from tuner.recipe.slots import PYTHON, Slot, from_slots, slots_of
from tuner.recipe.toml_file import HEAD_MARK, parsed
from tuner.redact import redact_text
from tuner.text import plain

CARRY_MARK = "#="
#: Variables that a start sets itself: none of a script's own is taken into a recipe, and one of a recipe is carried.
SET_BY_STARTS = frozenset({"PATH", "PWD", "OLDPWD", "SHLVL", "_", "NO_PROXY", "no_proxy"})


def head_lines(comments: Sequence[str]) -> list[str]:
    """Comments as they stand in a file: one line each, without secrets and control characters."""
    return [
        f"{HEAD_MARK} {shown(line).strip()}"
        for comment in comments
        for line in plain(redact_text(comment)).splitlines()
        if line.strip()
    ]


def carried_lines(recipe: Recipe, said: Iterable[Slot]) -> list[str]:
    """All of the recipe but the slots that the file says itself, and the keys without effect."""
    spoken = set(said)
    left = {slot: value for slot, value in slots_of(recipe).items() if slot not in spoken}
    lines = [_line(slot, value) for slot, value in ordered(left)]
    return lines + [_escaped(f"{CARRY_MARK} {kept.where} = {item(kept.value).as_string()}") for kept in recipe.kept]


def shown(text: str) -> str:
    """A text for a comment: no character that a reader of YAML, systemd or a shell would stumble over."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def words_say(recipe: Recipe) -> set[Slot]:
    """Slots that the words of a command line say: all flags but switches that are off without a negation."""
    infos = catalogue()
    said = {
        ("flags", name)
        for name, value in recipe.flags.items()
        if value is not False or infos[name].negation or infos[name].kind != "bool"
    }
    if recipe.simulated:
        said |= {PYTHON, ("tuner", "simulator")}
        if recipe.tuner.model_shape and "shape" not in recipe.tuner.simulator:
            said.add(("tuner", "model_shape"))
    return said


def variables_say(recipe: Recipe) -> set[Slot]:
    """Slots that the variables of a script or unit say."""
    return {("environment", name) for name in recipe.environment if name not in SET_BY_STARTS}


def variables(recipe: Recipe) -> list[tuple[str, str]]:
    """The variables as a script sets them one after the other: those that refer to another come before it is set."""
    return sorted(recipe.environment.items(), key=lambda entry: (not references.names(entry[1]), entry[0]))


def read_marks(text: str) -> tuple[tuple[str, ...], Reading]:
    """(the head's lines, what the carried lines say)."""
    head: list[str] = []
    carried: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if line.startswith(HEAD_MARK):
            head.append(line.removeprefix(HEAD_MARK).strip())
        elif line.startswith(CARRY_MARK):
            carried.append(line.removeprefix(CARRY_MARK).strip())
    document: Mapping[str, Any] = parsed("\n".join(carried), "What the tuner noted in the file")
    return tuple(head), read_document(document)


def with_carried(recipe: Recipe, carried: Reading) -> Recipe:
    """The recipe that a file says, completed by what it carries; where both speak, the file itself counts."""
    base = recipe_from(carried, Recipe(name=recipe.name))
    said = slots_of(recipe)
    kept = {key.where: key for key in (*base.kept, *recipe.kept)}
    return from_slots(recipe, slots_of(base) | said, tuple(kept[name] for name in sorted(kept)))


def _line(slot: Slot, value: Any) -> str:
    return _escaped(f"{CARRY_MARK} {where(slot)} = {item(toml_value(slot, value)).as_string()}")


def _escaped(line: str) -> str:
    """What is not printable stands in quotes, where TOML takes it as ``\\uXXXX`` too."""
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08X}" for letter in line)
