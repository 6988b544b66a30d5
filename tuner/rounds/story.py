"""One sentence for two rounds: what was bought with what. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tuner.rounds.model import Change, ChangeVerdict, Round, RoundState

#: Pools in the order they are told, with the words for a count of them.
_POOLS = (
    ("KV tokens", "KV tokens", "KV token"),
    ("state slots", "slots", "slot"),
    ("requests", "requests", "request"),
    ("longest input, tokens", "tokens of longest input", "token of longest input"),
)
_LATENCIES = (("TTFT", "TTFT p50, s"), ("ITL", "ITL p50, s"))
#: Keeps its small letter at the start of a sentence.
_ROUND_NAME = re.compile(r"r\d")
#: Rounds that ended before their server answered, or with its death.
NEVER_SERVED = frozenset({RoundState.FAILED, RoundState.REFUSED, RoundState.ABORTED})


def story(
    old: Round,
    new: Round,
    *,
    apart: str,
    flags: Sequence[Change],
    pools: Sequence[Change],
    checks: Sequence[Change],
    metrics: Sequence[Change],
) -> str:
    """ "+78,000 KV tokens for 24 slots; TTFT within noise." """
    ended = [round_ for round_ in (old, new) if round_.state in NEVER_SERVED]
    parts = [_ended(round_) for round_ in ended]
    if apart:
        parts.append(f"not comparable, {apart}")
        return _sentence(parts)
    # What was refused was refused for its plan, whose pools are none.
    refused = any(round_.state is RoundState.REFUSED for round_ in ended)
    bought = _bought(pools, ("",) if refused else ("", " (predicted)"))
    if bought:
        parts.append(bought)
    elif not ended:
        parts.append("pools unchanged" if flags else "the same flags and the same pools")
    # A server that never served has neither passed nor missed a check, nor answered late.
    parts += [told for told in (_checks(checks), _latencies(metrics)) if told and not ended]
    return _sentence(parts)


def _ended(round_: Round) -> str:
    where = f" at {round_.phase}" if round_.phase else ""
    how = {RoundState.REFUSED: "was refused", RoundState.ABORTED: "was broken off"}.get(round_.state, "failed")
    return f"{round_.name} {how}{where}"


def _bought(pools: Sequence[Change], suffixes: Sequence[str]) -> str:
    """Gains for losses, from the actual pools, or from the predicted ones where no actual ones are known."""
    for suffix in suffixes:
        gains, losses = _counts(pools, suffix)
        if gains or losses:
            if gains and losses:
                told = f"{_list(f'+{gain}' for gain in gains)} for {_list(losses)}"
            else:
                told = _list([*(f"+{gain}" for gain in gains), *(f"-{loss}" for loss in losses)])
            return told + suffix
    return ""


def _counts(pools: Sequence[Change], suffix: str) -> tuple[list[str], list[str]]:
    gains: list[str] = []
    losses: list[str] = []
    for name, many, one in _POOLS:
        for change in pools:
            if change.name != name + suffix or change.old is None or change.new is None:
                continue
            step = change.new - change.old
            (gains if step > 0 else losses).append(f"{abs(step):,} {one if abs(step) == 1 else many}")
    return gains, losses


def _checks(checks: Sequence[Change]) -> str:
    told = []
    for verdict, words in ((ChangeVerdict.WORSE, "does not pass any more"), (ChangeVerdict.BETTER, "passes now")):
        names = [c.name for c in checks if c.verdict is verdict]
        if names:
            words = words if len(names) == 1 else words.replace("does", "do").replace("passes", "pass")
            told.append(f"{_list(names)} {words}")
    return "; ".join(told)


def _latencies(metrics: Sequence[Change]) -> str:
    by_verdict: dict[str, list[str]] = {}
    for label, name in _LATENCIES:
        for change in metrics:
            if change.name == name:
                by_verdict.setdefault(_words(change), []).append(label)
    return ", ".join(f"{_list(labels)} {words}" for words, labels in by_verdict.items())


def _words(change: Change) -> str:
    if change.verdict in (ChangeVerdict.BETTER, ChangeVerdict.WORSE):
        return f"{change.change.lstrip('+-')} {'lower' if change.new < change.old else 'higher'}"
    if change.verdict is ChangeVerdict.NOT_COMPARABLE:
        missing = change.old is None or change.new is None
        return "measured in one round only" if missing else "not comparable (too few samples)"
    return str(change.verdict)


def _list(items: Iterable[str]) -> str:
    words = list(items)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    named = _ROUND_NAME.match(text) is not None
    return f"{text if named else text[0].upper() + text[1:]}."
