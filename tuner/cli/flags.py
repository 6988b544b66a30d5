"""``tuner flags``: what each flag of SGLang does, what it may be and which pool it moves."""

from __future__ import annotations

import click
import msgspec

from tuner.cli.output import DONE, FAILED, command, fail, json_option, print_json, say
from tuner.flags import FlagInfo, catalogue, lookup, suggest

_MOVES = {
    "kv": "KV tokens (the KV pool)",
    "mamba": "state slots (the state pool)",
    "both": "both pools",
    "requests": "requests (how many are admitted)",
    "none": "no pool",
}
_KINDS = {
    "bool": "switch",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "json": "JSON",
    "list": "list",
}


@click.command("flags", context_settings={"ignore_unknown_options": True})
@click.argument("word", required=False)
@click.option("--all", "everything", is_flag=True, help="Also the flags that have nothing to do with tuning.")
@json_option
@command
def flags_command(word: str | None, everything: bool, as_json: bool) -> int:
    """Print the catalogue of flags: all that matter to tuning, or those that WORD is a part of.

    WORD is looked for in names, old names, sections and descriptions; a whole name prints that flag alone.
    """
    found = _found(word, everything)
    if not found:
        near = suggest(word or "")
        hint = f" Perhaps {near} is meant." if near else " See tuner flags --all."
        fail(f"No flag has {word!r} in its name or description.{hint}", as_json=as_json)
        return FAILED
    if as_json:
        print_json([{"flag": info.flag, **msgspec.to_builtins(info)} for info in found])
        return DONE
    if len(found) == 1 or (word is not None and len(found) <= 3):
        for info in found:
            _say_whole(info)
        return DONE
    for info in found:
        say(f"{info.flag:<40} {info.help or _kind(info)}")
    say(f"{len(found)} flags. A name prints all about one: tuner flags mem_fraction_static")
    return DONE


def _found(word: str | None, everything: bool) -> list[FlagInfo]:
    infos = list(catalogue().values())
    if word is None:
        return infos if everything else [info for info in infos if info.tuning]
    exact = lookup(word)
    if exact is not None:
        return [exact]
    wanted = word.lower().removeprefix("--").replace("-", "_")
    named = [info for info in infos if any(wanted in name for name in (info.name, *info.aliases))]
    told = [info for info in infos if word.lower() in f"{info.section} {info.help} {info.cost}".lower()]
    return list({info.name: info for info in (*named, *told) if everything or info.tuning or info in named}.values())


def _say_whole(info: FlagInfo) -> None:
    say(info.flag)
    rows = {
        "does": info.help or "The tuner has nothing to say about it.",
        "takes": _kind(info),
        "range": _range(info),
        "default": "SGLang decides" if info.default is None else _plain(info.default),
        "moves": _MOVES[info.moves] if info.tuning else "",
        "costs": info.cost,
        "versions": _versions(info),
        "other names": ", ".join("--" + alias.replace("_", "-") for alias in info.aliases),
        "instead": info.replaced_by or "",
        "off with": info.negation or "",
        "in files": f"[{info.section}]",
        "change": "needs a restart" if info.restart else "while the server runs",
    }
    for name, text in rows.items():
        if text:
            say(f"  {name:<12}{text}")


def _kind(info: FlagInfo) -> str:
    kind = _KINDS[info.kind]
    if info.kind == "list":
        kind = f"list of {_KINDS[info.element]}s"
    if info.choices:
        kind += ", one of " + ", ".join(str(choice) for choice in info.choices)
    if info.suffixes:
        kind += ", also like 100k or 256Ki"
    return f"{kind} ({info.unit})" if info.unit else kind


def _range(info: FlagInfo) -> str:
    limits = []
    if info.above is not None:
        limits.append(f"above {info.above:g}")
    if info.least is not None:
        limits.append(f"at least {info.least:g}")
    if info.most is not None:
        limits.append(f"at most {info.most:g}")
    if info.low is not None and info.high is not None:
        limits.append(f"usually {info.low:g} to {info.high:g}")
    return ", ".join(limits)


def _versions(info: FlagInfo) -> str:
    parts = (f"since {info.since}" if info.since else "", f"until {info.until}" if info.until else "")
    return " ".join(part for part in parts if part)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
