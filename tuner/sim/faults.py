"""Faults that can be switched on, each the kind of thing that happens to a real server."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Fault(StrEnum):
    """Names for ``--sim-fault NAME[:ARG]``."""

    # the start
    REFUSE_AT_SIZING = "refuse-at-sizing"
    OOM_IN_CAPTURE = "oom-in-capture"
    HANG = "hang"
    DIE_AT = "die-at"
    BIND_LATE = "bind-late"
    FLOOD_LOG = "flood-log"
    LONG_LINE = "long-line"
    KERNEL_CRASH = "kernel-crash"
    # after ready
    DIE_AFTER_READY = "die-after-ready"
    DIE_SILENTLY = "die-silently"
    OOM_WHILE_SERVING = "oom-while-serving"
    HANG_WHILE_SERVING = "hang-while-serving"
    # the stop
    IGNORE_SIGTERM = "ignore-sigterm"
    IGNORE_SIGNALS = "ignore-signals"
    ORPHAN_CHILD = "orphan-child"
    HOLD_VRAM = "hold-vram"
    # answers
    REASONING_LEAKS = "reasoning-leaks"
    TEMPLATE_LEAKS = "template-leaks"
    EMPTY_ANSWER = "empty-answer"
    BROKEN_TOOL_ARGS = "broken-tool-args"
    HOT_ANSWER_DIFFERS = "hot-answer-differs"
    THINKS_ANYWAY = "thinks-anyway"
    CACHE_WRONG = "cache-wrong"
    # numbers
    CACHE_OFF = "cache-off"
    SLOTS_LOST = "slots-lost"
    LIMIT_OFF_BY_ONE = "limit-off-by-one"
    ACCEPTANCE_LENGTH_1 = "acceptance-length-1"


#: What each fault does and what its argument is, for ``--help``.
MEANING: dict[Fault, str] = {
    Fault.REFUSE_AT_SIZING: "the pools are refused, as with a fraction too low",
    Fault.OOM_IN_CAPTURE: "graph capture runs out of memory",
    Fault.HANG: "stands still; ARG: a phase (launching, loading, sizing, capturing, binding, warming; default loading)",
    Fault.DIE_AT: "is killed at the first line that holds ARG",
    Fault.BIND_LATE: "opens its port ARG seconds late (default 5)",
    Fault.FLOOD_LOG: "writes ARG extra lines while loading (default 20000)",
    Fault.LONG_LINE: "writes one line of ARG MB while loading (default 1)",
    Fault.KERNEL_CRASH: "the first forward pass dies in a kernel compiler with memory to spare",
    Fault.DIE_AFTER_READY: "the scheduler dies ARG seconds after ready (default 1)",
    Fault.DIE_SILENTLY: "is killed without a word ARG seconds after ready (default 1)",
    Fault.OOM_WHILE_SERVING: "runs out of memory at the first prompt of ARG tokens (default 4096)",
    Fault.HANG_WHILE_SERVING: "answers no request any more from ARG seconds after ready (default 0)",
    Fault.IGNORE_SIGTERM: "takes no notice of SIGTERM",
    Fault.IGNORE_SIGNALS: "takes no notice of any signal that can be ignored, and neither do its children",
    Fault.ORPHAN_CHILD: "leaves a child behind when it ends; ARG 'session': in a session of its own",
    Fault.HOLD_VRAM: "its memory comes back only ARG seconds after the end (default 30)",
    Fault.REASONING_LEAKS: "reasoning comes as content",
    Fault.TEMPLATE_LEAKS: "template tokens come in the content",
    Fault.EMPTY_ANSWER: "answers have no content",
    Fault.BROKEN_TOOL_ARGS: "arguments of tool calls are not valid JSON; ARG: only those 'streamed', or only 'whole'",
    Fault.THINKS_ANYWAY: "it thinks although the request turns thinking off",
    Fault.HOT_ANSWER_DIFFERS: "an answer on a cached prefix differs from the cold one",
    Fault.CACHE_WRONG: "a cached prefix brings the state of another conversation: no tool call comes on a hit",
    Fault.CACHE_OFF: "the prefix cache never hits, though it is on",
    Fault.SLOTS_LOST: "ARG of its state slots (a share, default 0.5) are lost to the prefix cache",
    Fault.LIMIT_OFF_BY_ONE: "refuses an input one token shorter than it says",
    Fault.ACCEPTANCE_LENGTH_1: "no draft is ever accepted",
}

_DEFAULT_ARGUMENT: dict[Fault, str] = {
    Fault.HANG: "loading",
    Fault.BIND_LATE: "5",
    Fault.FLOOD_LOG: "20000",
    Fault.LONG_LINE: "1",
    Fault.DIE_AFTER_READY: "1",
    Fault.DIE_SILENTLY: "1",
    Fault.OOM_WHILE_SERVING: "4096",
    Fault.HANG_WHILE_SERVING: "0",
    Fault.HOLD_VRAM: "30",
    Fault.SLOTS_LOST: "0.5",
}
_NUMBERS = frozenset(_DEFAULT_ARGUMENT) - {Fault.HANG}
#: Which answers broken tool arguments are in; empty: all.
_TOOL_ARGS = ("", "streamed", "whole")
HANG_PHASES = ("launching", "loading", "sizing", "capturing", "binding", "warming")


class Faults(msgspec.Struct, frozen=True):
    """The faults in force, with their arguments."""

    chosen: dict[Fault, str] = {}

    def has(self, fault: Fault) -> bool:
        """Whether ``fault`` is on."""
        return fault in self.chosen

    def number(self, fault: Fault) -> float | None:
        """The argument of ``fault`` as a number; None when it is off."""
        return float(self.chosen[fault]) if fault in self.chosen else None

    def text(self, fault: Fault) -> str | None:
        """The argument of ``fault`` as text; None when it is off."""
        return self.chosen.get(fault)


def parse_faults(texts: Iterable[str]) -> Faults:
    """``NAME[:ARG]`` texts to faults. Raises ValueError with one sentence."""
    chosen: dict[Fault, str] = {}
    for text in texts:
        name, _, argument = text.partition(":")
        try:
            fault = Fault(name)
        except ValueError:
            raise ValueError(f"There is no fault {name!r}; there are: {', '.join(Fault)}.") from None
        argument = argument or _DEFAULT_ARGUMENT.get(fault, "")
        if fault is Fault.HANG and argument not in HANG_PHASES:
            raise ValueError(f"A start cannot hang at {argument!r}; phases are: {', '.join(HANG_PHASES)}.")
        if fault is Fault.BROKEN_TOOL_ARGS and argument not in _TOOL_ARGS:
            raise ValueError(f"The fault {fault} takes streamed, whole or nothing, not {argument!r}.")
        if fault is Fault.DIE_AT and not argument:
            raise ValueError("The fault die-at needs a text: die-at:TEXT OF A LINE.")
        if fault in _NUMBERS:
            try:
                float(argument)
            except ValueError:
                raise ValueError(f"The fault {fault} takes a number, not {argument!r}.") from None
        chosen[fault] = argument
    return Faults(chosen)
