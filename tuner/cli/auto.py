"""``tuner auto``: from a need to a server that was seen to meet it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
import msgspec

from tuner.cli.amounts import Gib, Tokens
from tuner.cli.interrupts import Interrupts, leave_at_once
from tuner.cli.named import recipe_named
from tuner.cli.needs import needed
from tuner.cli.output import DONE, FAILED, command, fail, json_option, print_json, say
from tuner.cli.progress import narrator
from tuner.modelcard import ModelError
from tuner.paths import Home
from tuner.planner.model import CannotPlan
from tuner.recipe.model import SIMULATOR, Recipe, RecipeError
from tuner.rounds.errors import HistoryError
from tuner.server.model import StartRefused
from tuner.session.auto.fleet import recipes_for
from tuner.session.auto.latency import times_words
from tuner.session.auto.model import ANSWER_TOKENS, AutoOutcome, AutoRound, Goal
from tuner.session.events import AutoNews, Event, Publish
from tuner.session.needs import Stated
from tuner.session.session import Session
from tuner.units import format_gib, format_tokens

_TOLD = (StartRefused, RecipeError, CannotPlan, ModelError, HistoryError)
_SPECULATION = "speculative_"


@click.command("auto")
@click.argument("preset")
@click.option("--input", "input_tokens", type=Tokens(), metavar="TOKENS", help="Longest input: 90K; the recipe's.")
@click.option("--agents", type=click.IntRange(min=1), metavar="N", help="Agents that run at once; the recipe's.")
@click.option(
    "--output",
    "output_tokens",
    type=Tokens(),
    metavar="TOKENS",
    help=f"Longest answer, beside the input; the recipe's or {ANSWER_TOKENS}.",
)
@click.option("--warm-prefixes", type=click.IntRange(min=0), metavar="M", help="Conversations kept warm; the recipe's.")
@click.option("--headroom", type=Gib(), metavar="GIB", help="VRAM to leave free at ready; the recipe's or 4.4 GiB.")
@click.option(
    "--ttft-p95",
    type=click.FloatRange(0.001),
    metavar="S",
    help="TTFT to stay within; by 130 requests in 10 min, else by the slowest.",
)
@click.option(
    "--itl-p95", type=click.FloatRange(0.0001), metavar="S", help="Time between tokens to stay within, likewise."
)
@click.option("--max-rounds", type=click.IntRange(1, 50), default=5, show_default=True, metavar="K")
@click.option(
    "--keep-speculation/--drop-speculation", default=True, show_default=True, help="Whether it may be given up."
)
@click.option("--keep", multiple=True, metavar="FLAG", help="A flag that stays as it is; repeatable.")
@click.option("--gpus", metavar="0,1", help="One server on each of these GPUs, on the port and those after it.")
@click.option("--sim", is_flag=True, help="On the stand-in server.")
@click.option("--python", metavar="PATH", help="Interpreter that has SGLang, instead of the recipe's.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A flag to change first; repeatable.")
@json_option
@command
def auto_command(
    preset: str,
    input_tokens: int | None,
    agents: int | None,
    output_tokens: int | None,
    warm_prefixes: int | None,
    headroom: float | None,
    ttft_p95: float | None,
    itl_p95: float | None,
    max_rounds: int,
    keep_speculation: bool,
    keep: tuple[str, ...],
    gpus: str | None,
    sim: bool,
    python: str | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run rounds from PRESET (a name, a recipe file, or a round like r3) until a server was seen to meet the need.

    What of the need is not asked for is taken from the need_ keys of the recipe's [tuner] table.
    Each start is planned from the logs before it, and proved: so many inputs at once, none refused or retracted.
    Where the need cannot be met it says so, and what ran before is started again. Ctrl-C does that too; a second one
    leaves at once.
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
        recipe = recipe_named(session.history, preset, assignments)
        if sim or python:
            recipe = msgspec.structs.replace(recipe, python=SIMULATOR if sim else python)
        goal = Goal(
            need=needed(asked, recipe.tuner, output_tokens=ANSWER_TOKENS),
            ttft_p95_s=ttft_p95,
            itl_p95_s=itl_p95,
            max_rounds=max_rounds,
            keep=(*((_SPECULATION,) if keep_speculation else ()), *(name.replace("-", "_") for name in keep)),
        )
        chosen = [gpu.strip() for gpu in gpus.split(",") if gpu.strip()] if gpus else []
        recipes = recipes_for(recipe, chosen) if chosen else (recipe,)
        ended = _run(session, recipes, goal, as_json=as_json)
    finally:
        session.close()
    if as_json:
        told = [_json(one) for one in ended]
        print_json(told if chosen else told[0])
    else:
        for one in ended:
            _say_end(one, many=len(ended) > 1)
    return DONE if all(isinstance(one, AutoOutcome) and one.met for one in ended) else FAILED


#: How one auto ended, or the sentence that says why it did not run.
_End = AutoOutcome | str


def _run(session: Session, recipes: Sequence[Recipe], goal: Goal, *, as_json: bool) -> list[_End]:
    """One auto for each recipe at once."""
    interrupts = Interrupts("Breaking off, and putting back what ran before.")

    def run(recipe: Recipe) -> _End:
        watch = watcher(quiet=as_json, mark=f"[{recipe.port}] " if len(recipes) > 1 else "")
        try:
            # A second Ctrl-C ends the process itself: a server that is on its way back goes on.
            return session.auto(recipe, goal, publish=watch, cancel=interrupts.cancel, leave=threading.Event())
        except _TOLD as error:
            return str(error)

    before = {recipe.port: session.running(recipe.port) for recipe in recipes}
    left = partial(leave_at_once, session, before, as_json=as_json)
    return interrupts.run([partial(run, recipe) for recipe in recipes], left)


def watcher(*, quiet: bool, mark: str = "") -> Publish:
    """Prints each step of auto, and within a round what ``tuner run`` prints, to standard error."""
    narrate = narrator(quiet=quiet)

    def watch(event: Event) -> None:
        if not isinstance(event, AutoNews):
            narrate(event)
        elif not quiet and event.kind not in ("met", "end"):
            place = _place(event) if event.kind == "plan" else ""
            indent = "  " if event.kind in ("proof", "proved", "short") else ""
            say(f"{mark}{indent}{place}{_KINDS.get(event.kind, '')}{event.text}", err=True)

    return watch


def _place(event: AutoNews) -> str:
    return f"round {event.number} of {event.of} at the most: " if event.number else "as it runs: "


_KINDS = {"proof": "proof: ", "proved": "proved: ", "short": "lacks: "}


def _json(ended: _End) -> dict[str, Any]:
    if isinstance(ended, str):
        return {"met": False, "error": ended}
    told: dict[str, Any] = msgspec.to_builtins(ended)
    return {"met": ended.met, **told}


def _say_end(ended: _End, *, many: bool) -> None:
    if isinstance(ended, str):
        fail(ended, as_json=False)
        return
    say(outcome_text(ended, many=many))


def outcome_text(outcome: AutoOutcome, *, many: bool = False) -> str:
    """How auto ended, in lines."""
    mark = f"port {outcome.port}: " if many else ""
    mark += "[SIMULATED] " if outcome.simulated else ""
    starts = f"{outcome.starts} round{'' if outcome.starts == 1 else 's'}"
    head = f"{mark}Met in {starts}." if outcome.met else f"{mark}Not met ({outcome.ended}) after {starts}."
    lines = [f"{head} {outcome.reason}"]
    lines += [_round_line(one, outcome.goal) for one in outcome.rounds]
    if not outcome.met and outcome.nearest is not None and outcome.nearest.fits:
        plan = outcome.nearest
        lines.append(
            f"The nearest that starts: {format_tokens(plan.kv_tokens)} KV tokens, {plan.max_running_requests} "
            f"requests, {format_gib(plan.ready_free_gib)} free at ready, with"
        )
        lines += [
            f"  {name} = {value}" if value is not None else f"  {name}: left out"
            for name, value in outcome.nearest_flags.items()
        ]
    if outcome.serving:
        lines.append(f"The server of {outcome.serving} runs on port {outcome.port}.")
    else:
        again = f" Before, {outcome.former} ran: tuner run {outcome.former} starts it again." if outcome.former else ""
        lines.append(f"No server of the tuner is on port {outcome.port}.{again}")
    return "\n".join(lines)


def _round_line(one: AutoRound, goal: Goal) -> str:
    tokens = f"{format_tokens(one.kv_tokens)} KV tokens" if one.kv_tokens is not None else "no pools"
    slots = f", {one.mamba_slots} slots" if one.mamba_slots else ""
    free = f", {format_gib(one.ready_free_gib)} free" if one.ready_free_gib is not None else ""
    times = times_words(goal, one.proof) if one.proof is not None else ""
    came = " ".join(one.lacks) or "meets the need"
    return f"  {one.name}: {one.state}, {tokens}{slots}{free}{times}: {came}"
