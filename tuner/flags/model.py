"""What is known of one flag."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["float", "int", "str", "bool", "json", "list"]


class FlagInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One flag of SGLang, by the name of its 0.5.17 spelling.

    ``kind`` is what the command line takes: "bool" is a switch without a value, "list" several words,
    "json" one word of JSON. ``low``, ``high`` and ``step`` make a knob; ``above`` (not included), ``least``
    and ``most`` are the limits of what is accepted. Flags outside the tuner's interest have no ``help`` and no range.
    """

    name: str
    kind: Kind
    #: Value that SGLang uses when the flag is left out; None: it decides itself.
    default: Any = None
    choices: tuple[str | int, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float | None = None
    above: float | None = None
    least: float | None = None
    most: float | None = None
    help: str = ""
    unit: str = ""
    #: Which pool changes with it.
    moves: Literal["kv", "mamba", "both", "requests", "none"] = "none"
    #: What more of it is paid with.
    cost: str = ""
    #: Section of a config.toml that the tuner writes.
    section: str = "flags"
    #: First and last version that has it, of 0.5.5, 0.5.9, 0.5.12, 0.5.17 and 0.5.23; None: all of them, or not known.
    since: str | None = None
    until: str | None = None
    #: Other spellings, old names among them.
    aliases: tuple[str, ...] = ()
    #: Spelling in ``/server_info`` and ``server_args=`` when it differs from ``name``.
    dest: str | None = None
    #: Kind of the items of a list.
    element: Literal["float", "int", "str"] = "str"
    #: JSON flags: what the word must hold; "text" also takes a file name.
    form: Literal["object", "array", "text"] = "object"
    #: Spelling that turns a switch off which is on by default.
    negation: str | None = None
    #: The flag may stand without its value.
    bare: bool = False
    #: Whole numbers that also take k, M, G, T and Ki, Mi, Gi, Ti.
    suffixes: bool = False
    #: What to write instead of this deprecated flag.
    replaced_by: str | None = None
    #: The value must never reach a file, log or screen.
    secret: bool = False
    #: False: the running server can change it.
    restart: bool = True

    @property
    def flag(self) -> str:
        """Spelling on the command line: ``--mem-fraction-static``."""
        return "--" + self.name.replace("_", "-")

    @property
    def tuning(self) -> bool:
        """Whether the tuner has something to say about it."""
        return bool(self.help)
