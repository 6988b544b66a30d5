"""The words of a SGLang command line read as its own argument parser (argparse, 0.5.17) reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tuner.flags import FlagInfo, FlagValueError, catalogue, check_value, is_in, parse_value
from tuner.flags.catalogue import underscored
from tuner.flags.values import shown_value
from tuner.recipe.argv import looks_like_a_flag
from tuner.recipe.checking import CATALOGUE_VERSION, checked_flag, checked_setting, checked_variable, other_version
from tuner.recipe.keys import Meaning, NotAFlag, meaning
from tuner.recipe.model import SIMULATOR, KeptKey, Recipe, RecipeError
from tuner.recipe.reader import Placement, Reading, recipe_from, where
from tuner.recipe.references import is_whole
from tuner.recipe.slots import PYTHON
from tuner.redact import redact

_SIM = "--sim-"
#: Given anew at every start.
_OURS = frozenset({"card"})


class Words(msgspec.Struct):
    """A reader of one command line; ``remarks`` grow while it reads."""

    base: Recipe
    remarks: list[str] = []

    def flags(self, words: Sequence[str]) -> Recipe:
        """``base`` with all that the words say put over it; :class:`RecipeError` for what the parser would refuse.

        A flag that SGLang does not know is kept, without effect and explained.
        """
        placements: list[Placement] = []
        kept: list[KeptKey] = []
        simulator: dict[str, Any] = {}
        at = 0
        while at < len(words):
            word = words[at]
            if not word.startswith("--") or word == "--":
                raise RecipeError(
                    f"The word {shown_value(word)} belongs to no flag of the command: quote or remove it."
                )
            end = at + 1
            while end < len(words) and not looks_like_a_flag(words[end]):
                end += 1
            name, equals, attached = word.partition("=")
            values = [attached, *words[at + 1 : end]] if equals else list(words[at + 1 : end])
            at = end
            if name.startswith(_SIM):
                self._simulator_switch(name, values, simulator)
                continue
            found = self._one(name, values, attached=bool(equals))
            if isinstance(found, Placement):
                placements.append(found)
            elif found is not None:
                kept.append(found)
        placements += _simulator_slots(simulator)
        # As in argparse, the last of several counts.
        last = {placement.slot: placement for placement in placements}
        kept_by_place = {key.where: key for key in kept}
        return recipe_from(Reading(tuple(last.values()), tuple(kept_by_place.values()), "words"), self.base)

    def environment(self, variables: Mapping[str, str]) -> Recipe:
        """``base`` with environment variables; a secret in clear becomes the ``${NAME}`` it should have been."""
        placements = []
        for name, value in variables.items():
            if not is_whole(value) and redact({name: value}) != {name: value}:
                self.remarks.append(f"{name} was written in clear and is not kept: export {name} before a start.")
                value = f"${{{name}}}"
            placed = checked_variable(name, value, f"environment.{name}")
            placements.append(Placement(("environment", name), ("environment", name), placed))
        return recipe_from(Reading(tuple(placements), (), "words"), self.base)

    def _one(self, flag: str, values: list[str], *, attached: bool) -> Placement | KeptKey | None:
        off = _negations().get(flag)
        if off is not None:
            _no_values(flag, values)
            return _placed(off, False)
        means = self._meaning(flag)
        if isinstance(means, NotAFlag):
            return self._kept(flag, values, means)
        info = means.info
        if means.opposite:
            _no_values(flag, values)
            return _placed(info, False)
        self._tell_age(flag, info)
        value = _value(info, flag, values, attached=attached, any_choice=other_version(self.base))
        if info.secret and isinstance(value, str) and not is_whole(value):
            variable = info.name.upper()
            self.remarks.append(
                f"{info.flag} was written in clear and is not kept: the recipe reads it from ${{{variable}}}; "
                f"export {variable} before a start."
            )
            value = f"${{{variable}}}"
        return _placed(info, checked_flag(info, value, info.flag, any_choice=other_version(self.base)))

    def _meaning(self, flag: str) -> Meaning | NotAFlag:
        means = meaning("flags", underscored(flag))
        if isinstance(means, Meaning):
            if underscored(flag) not in (means.info.name, *means.info.aliases):
                self.remarks.append(f"{flag} is not a flag of SGLang; read as {means.info.flag}.")
            return means
        begun = {info.name: info for spelling, info in _spellings().items() if spelling.startswith(flag)}
        if len(begun) == 1 and len(flag) > 3:
            (info,) = begun.values()
            self.remarks.append(f"{flag} is short for {info.flag}.")
            return Meaning(info)
        return means

    def _tell_age(self, flag: str, info: FlagInfo) -> None:
        name = underscored(flag)
        if name in info.aliases:
            since = f" since SGLang {info.since}" if info.since else ""
            self.remarks.append(f"{flag} is another name of {info.flag}{since}.")
        version = self.base.tuner.sglang_version or CATALOGUE_VERSION
        if not is_in(info, version) and name not in info.aliases:
            ages = (f"came with {info.since}" if info.since else "", f"went after {info.until}" if info.until else "")
            self.remarks.append(
                f"{info.flag} is not in SGLang {version}: it {' and '.join(age for age in ages if age)}."
            )
        if info.replaced_by:
            self.remarks.append(f"{info.flag} is deprecated; write {info.replaced_by} instead.")

    def _kept(self, flag: str, values: list[str], reason: NotAFlag) -> KeptKey | None:
        name = underscored(flag)
        value: Any = True if not values else values[0] if len(values) == 1 else values
        if redact({name: value}) != {name: value}:
            self.remarks.append(f"{flag} looks like a secret in clear and is not kept: {reason.why}")
            return None
        return KeptKey(where=where(("flags", name)), value=value, why=reason.why, nearest=reason.nearest)

    def _simulator_switch(self, flag: str, values: list[str], into: dict[str, Any]) -> None:
        name = flag.removeprefix(_SIM).replace("-", "_")
        if len(values) > 1:
            raise RecipeError(f"{flag} takes one value, not {len(values)}.")
        if name in _OURS:
            return
        value: Any = True
        if values:
            value = parse_value(None, values[0])
            value = values[0] if isinstance(value, bool) else value
        into[name] = value


def as_simulator(recipe: Recipe) -> Recipe:
    """The recipe of a command that starts the stand-in."""
    return msgspec.structs.replace(recipe, python=SIMULATOR)


def with_interpreter(recipe: Recipe, python: str) -> Recipe:
    """The recipe with the interpreter that a command names."""
    return recipe_from(Reading((Placement(PYTHON, PYTHON, checked_setting(*PYTHON, python)),), (), "words"), recipe)


def _placed(info: FlagInfo, value: Any) -> Placement:
    return Placement(("flags", info.name), ("flags", info.name), value)


def _simulator_slots(switches: dict[str, Any]) -> list[Placement]:
    if not switches:
        return []
    slots = []
    shape = switches.pop("shape", None)
    if shape is not None:
        slot = ("tuner", "model_shape")
        slots.append(Placement(slot, slot, checked_setting(*slot, shape)))
    if switches:
        slot = ("tuner", "simulator")
        slots.append(Placement(slot, slot, checked_setting(*slot, switches)))
    return slots


def _value(info: FlagInfo, flag: str, values: list[str], *, attached: bool, any_choice: bool) -> Any:
    if info.kind == "bool":
        _no_values(flag, values)
        return True
    if not values:
        if info.bare:
            return [] if info.kind == "list" else True
        raise RecipeError(f"{flag} needs a value.")
    try:
        if info.kind == "list":
            return check_value(info, [_number(info, info.element, word) for word in values], any_choice=any_choice)
        if len(values) > 1:
            raise RecipeError(
                f"{flag} takes one value; {shown_value(values[1])} after it belongs to no flag: quote or remove it."
            )
        word = values[0]
        if info.kind == "json":
            return _json(info, word)
        return check_value(info, _number(info, info.kind, word), any_choice=any_choice)
    except FlagValueError as error:
        raise RecipeError(str(error)) from None


def _number(info: FlagInfo, kind: str, word: str) -> Any:
    """A word as the number that it spells for this kind, else as it stands."""
    if kind == "str":
        return int(word) if info.choices and not isinstance(info.choices[0], str) and word.isdecimal() else word
    plainest = parse_value(None, word)
    if isinstance(plainest, bool) or (kind == "int" and not isinstance(plainest, int)):
        return word
    return plainest


def _json(info: FlagInfo, word: str) -> Any:
    if info.form != "text":
        return check_value(info, word)
    # A table only where writing it again gives the same word: such a flag also takes the name of a file.
    if re.match(r"\{", word):
        try:
            table = check_value(info, msgspec.json.decode(word.encode("utf-8", "replace")))
        except (msgspec.DecodeError, FlagValueError, RecursionError):
            return check_value(info, word)
        if isinstance(table, dict) and msgspec.json.encode(table).decode() == word:
            return table
    return check_value(info, word)


def _no_values(flag: str, values: list[str]) -> None:
    if values:
        raise RecipeError(f"{flag} is a switch and takes no value, but {shown_value(values[0])} follows it.")


def _negations() -> dict[str, FlagInfo]:
    return {info.negation: info for info in catalogue().values() if info.negation}


def _spellings() -> dict[str, FlagInfo]:
    return {
        "--" + name.replace("_", "-"): info
        for info in catalogue().values()
        if is_in(info, CATALOGUE_VERSION)
        for name in (info.name, *info.aliases)
    }
