"""``tuner advise``: what to try after a round, ranked, or that it is good enough."""

from __future__ import annotations

import shlex
from typing import Any

import click

from tuner.advice.model import Advice, Effect, Proposal
from tuner.cli.amounts import Gib, Tokens
from tuner.cli.named import find_round
from tuner.cli.output import DONE, UsageProblem, command, json_option, print_json, say
from tuner.paths import Home
from tuner.planner.need import Need
from tuner.recipe.model import TunerSettings
from tuner.rounds.model import Round
from tuner.session.advising import advised_round
from tuner.session.needs import Stated
from tuner.session.session import Session
from tuner.units import format_gib, format_tokens

#: Effects in words, in the order of lines.
_EFFECTS = {
    "kv_tokens": "KV tokens",
    "mamba_slots": "state slots",
    "max_running_requests": "requests at once",
    "longest_input_tokens": "longest input",
    "ready_free_gib": "free at ready",
}


@click.command("advise")
@click.argument("name", required=False, metavar="[rN]")
@click.option("--input", "input_tokens", type=Tokens(), metavar="TOKENS", help="Longest input: 90K.")
@click.option("--agents", type=click.IntRange(min=1), metavar="N", help="Agents that run at once.")
@click.option(
    "--warm-prefixes", type=click.IntRange(min=0), metavar="M", help="Conversations to keep warm beside those that run."
)
@click.option("--output", "output_tokens", type=Tokens(), metavar="TOKENS", help="Longest answer, beside the input.")
@click.option("--headroom", type=Gib(), metavar="GIB", help="VRAM to leave free at ready; the recipe's unless set.")
@json_option
@command
def advise_command(
    name: str | None,
    input_tokens: int | None,
    agents: int | None,
    warm_prefixes: int | None,
    output_tokens: int | None,
    headroom: float | None,
    as_json: bool,
) -> int:
    """Rank what to try after a round (the running one unless named), with reason, effect and price.

    Without --input and --agents the need is the one in the recipe's [tuner] table, else read off the round's readings.
    """
    asked = Stated(
        input_tokens=input_tokens,
        agents=agents,
        warm_prefixes=warm_prefixes,
        output_tokens=output_tokens,
        headroom_gib=headroom,
    )
    session = Session(Home.find())
    try:
        round_ = _round(session, name)
        need = _need(asked, round_.recipe.tuner)
        advice = session.advise(round_, need)
    finally:
        session.close()
    if as_json:
        print_json({"round": round_.name, "simulated": round_.simulated, **_fields(advice)})
    else:
        _say(round_, advice)
    return DONE


def _need(asked: Stated, settings: TunerSettings) -> Need | None:
    need = asked.over(settings).need()
    if need is None and asked != Stated():
        raise click.UsageError("Give --input too, or need_input_tokens in [tuner]: how long the longest input is.")
    return need


def _round(session: Session, name: str | None) -> Round:
    if name is not None:
        return find_round(session.history, name)
    running = session.running()
    round_ = advised_round(session.history, running.round if running is not None else None)
    if round_ is None:
        raise UsageProblem("The history is empty: run a first round with tuner run.")
    return round_


def _fields(advice: Advice) -> dict[str, Any]:
    return {
        "enough": advice.enough,
        "sentence": advice.sentence,
        "need": advice.need,
        "derived_need": advice.derived_need,
        "missing": advice.missing,
        "proposals": advice.proposals,
        "notes": advice.notes,
    }


def _say(round_: Round, advice: Advice) -> None:
    mark = " (simulated)" if round_.simulated else ""
    say(f"After {round_.name}{mark}: {advice.sentence}")
    if advice.derived_need is not None:
        say(advice.derived_need.sentence)
    for sentence in advice.missing:
        say(f"Missing: {sentence}")
    for number, proposal in enumerate(advice.proposals, 1):
        _say_proposal(round_, number, proposal)
    if advice.notes:
        say()
    for note in advice.notes:
        say(f"Note: {note}")


def _say_proposal(round_: Round, number: int, proposal: Proposal) -> None:
    say()
    say(f"{number}. {proposal.title}" + ("  (meets the need)" if proposal.meets_need else ""))
    say(f"   {proposal.reason}")
    for line in proposal.evidence:
        say(f"   - {line}")
    for effect in proposal.effects:
        if effect.change:
            say(f"   {_EFFECTS[effect.name]:<18}{_shown(effect, effect.old):>12} -> {_shown(effect, effect.new):>12}"
                f"  {effect.change}")  # fmt: skip
    if proposal.gives_up:
        say(f"   gives up: {proposal.gives_up}")
    if proposal.risk:
        say(f"   risk: {proposal.risk}")
    say(f"   {run_line(round_.name, proposal.flags)}")


def _shown(effect: Effect, value: float) -> str:
    return format_gib(value) if effect.name.endswith("_gib") else format_tokens(int(value))


def run_line(round_name: str, flags: dict[str, Any]) -> str:
    """The command that starts the round with these flags changed, to paste; an empty value leaves a flag out."""
    words = ["tuner", "run", round_name]
    for name, value in flags.items():
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        words += ["--set", f"{name}={text}"]
    return shlex.join(words)
