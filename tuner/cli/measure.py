"""``tuner measure``: load on the running server, what one request alone gets, and two settings against each other."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from tuner.cli.output import DONE, FAILED, UsageProblem, command, fail, json_option, print_json, say
from tuner.cli.progress import narrator
from tuner.cli.recipes import recipe_for
from tuner.measure.load import measure
from tuner.measure.model import Ask, Load, Measurement, Physics, Progress, Slo, Timing
from tuner.measure.physics import cause_of, lengths_within, physics
from tuner.measure.report import measurement_text, physics_text
from tuner.measure.watch import Budget
from tuner.measure.wire import Target
from tuner.measure.workload import WorkloadError, read_workload
from tuner.paths import Home
from tuner.recipe import merge_set
from tuner.recipe.model import Recipe, TunerSettings
from tuner.rounds.ab import STARTS, Side, alternating, compared
from tuner.rounds.model import Round, RoundState
from tuner.rounds.report import ab_text
from tuner.session.session import Session
from tuner.session.watching import Running, api_key
from tuner.units import format_seconds, format_tokens

_SAY_EVERY_S = 5.0
_MOST_WORKLOAD_BYTES = 256 << 20


@click.command("measure")
@click.argument("preset", required=False)
@click.option("--concurrency", type=click.IntRange(1, 512), default=4, show_default=True, help="Streams at a time.")
@click.option("--requests", type=click.IntRange(1), default=64, show_default=True, help="Requests of each repeat.")
@click.option("--repeats", type=click.IntRange(3), default=3, show_default=True, help="Repeats, with fresh prompts.")
@click.option(
    "--input",
    "input_tokens",
    type=click.IntRange(32),
    default=1024,
    show_default=True,
    metavar="TOKENS",
    help="Length of each prompt.",
)
@click.option(
    "--output",
    "output_tokens",
    type=click.IntRange(2),
    default=64,
    show_default=True,
    metavar="TOKENS",
    help="Length of each answer.",
)
@click.option("--workload", metavar="FILE", help="Replay this JSONL of OpenAI requests instead.")
@click.option("--own-timing", is_flag=True, help="Send the workload when it was recorded, not as streams get free.")
@click.option("--speedup", type=click.FloatRange(0.01, 1000), default=1.0, help="Faster than recorded by this.")
@click.option("--slo-ttft", type=click.FloatRange(0.001), metavar="S", help="Goal for the time to first token.")
@click.option("--slo-itl", type=click.FloatRange(0.01), metavar="MS", help="Goal for the time between tokens.")
@click.option("--physics", "alone", is_flag=True, help="Prefill and decode speed by length, one request alone.")
@click.option("--ab", metavar="KEY=A,B", help="Start PRESET with both values in turn and compare.")
@click.option(
    "--starts", type=click.IntRange(1), default=STARTS, show_default=True, help="Of each side; below 3 no verdict."
)
@click.option(
    "--budget", type=click.FloatRange(1), default=600.0, show_default=True, metavar="S", help="For each load."
)
@json_option
@command
def measure_command(
    preset: str | None,
    concurrency: int,
    requests: int,
    repeats: int,
    input_tokens: int,
    output_tokens: int,
    workload: str | None,
    own_timing: bool,
    speedup: float,
    slo_ttft: float | None,
    slo_itl: float | None,
    alone: bool,
    ab: str | None,
    starts: int,
    budget: float,
    as_json: bool,
) -> int:
    """Measure the running server and keep the samples with its round.

    Prompts are new for each repeat, the warm-up is not scored, and a percentile is told only from enough samples.
    """
    if preset and not ab:
        raise click.UsageError("PRESET goes with --ab; without it the running server is measured.")
    if (own_timing or speedup != 1.0) and not workload:
        raise click.UsageError("--own-timing and --speedup go with --workload.")
    if speedup != 1.0 and not own_timing:
        raise click.UsageError("--speedup goes with --own-timing.")
    load, recorded = _load(
        Load(
            concurrency=concurrency,
            requests=requests,
            repeats=repeats,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        ),
        workload,
        Timing.RECORDED if own_timing else Timing.CLOSED_LOOP,
        speedup,
    )
    cancel = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: cancel.set())
    work = _Work(load, recorded, Slo(ttft_s=slo_ttft, itl_s=slo_itl / 1000 if slo_itl else None), budget, cancel)
    session = Session(Home.find())
    try:
        if ab:
            return _ab(session, preset, ab, starts, work, as_json=as_json)
        running = session.running()
        if running is None:
            fail("No server of the tuner is running: start one with tuner run.", as_json=as_json)
            return FAILED
        return _alone(session, running, work, as_json) if alone else _loaded(session, running, work, as_json)
    finally:
        session.close()


class _Work:
    """A load to run, with its goal, budget and the operator's wish to stop."""

    def __init__(
        self, load: Load, recorded: tuple[Ask, ...], slo: Slo, budget_s: float, cancel: threading.Event
    ) -> None:
        self.load = load
        self.recorded = recorded
        self.asked = slo
        self.budget_s = budget_s
        self.cancel = cancel

    @property
    def budget(self) -> Budget:
        """A fresh time budget."""
        return Budget(self.budget_s, self.cancel)

    def slo(self, settings: TunerSettings) -> Slo:
        """The goal of the command line, and where it is silent the recipe's."""
        itl = settings.slo_itl_ms / 1000 if settings.slo_itl_ms is not None else None
        return Slo(
            ttft_s=self.asked.ttft_s if self.asked.ttft_s is not None else settings.slo_ttft_s,
            itl_s=self.asked.itl_s if self.asked.itl_s is not None else itl,
        )

    def run(self, session: Session, running: Running, on_progress: Callable[[Progress], None]) -> Measurement:
        """Puts the load on the running server and keeps what comes of it with its round."""
        measured = measure(
            target_of(session, running),
            self.load,
            recorded=self.recorded,
            slo=self.slo(running.handle.recipe.tuner),
            budget=self.budget,
            on_progress=on_progress,
        )
        if running.round is not None and measured.samples:
            kept = session.history.get(running.round.number)
            session.history.save(msgspec.structs.replace(kept, measurements=(*kept.measurements, measured)))
        return measured


def target_of(session: Session, running: Running) -> Target:
    """Where the load goes."""
    recipe = running.handle.recipe
    return Target(
        url=running.handle.url,
        model=recipe.served_name,
        api_key=api_key(recipe, session.environ),
    )


def _load(load: Load, workload: str | None, timing: Timing, speedup: float) -> tuple[Load, tuple[Ask, ...]]:
    if workload is None:
        return load, ()
    path = Path(workload)
    try:
        if path.stat().st_size > _MOST_WORKLOAD_BYTES:
            raise UsageProblem(f"{workload} is longer than a workload may be (256 MiB): cut it.")
        read = read_workload(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageProblem(f"{workload} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, WorkloadError) as error:
        sentence = str(error) if isinstance(error, WorkloadError) else "It is no UTF-8 text."
        raise UsageProblem(f"{workload}: {sentence}") from error
    if timing is Timing.RECORDED and not read.timed:
        raise UsageProblem(f"{workload} does not say when its requests were sent: leave out --own-timing.")
    return (
        msgspec.structs.replace(
            load,
            requests=len(read.asks),
            input_tokens=0,
            output_tokens=0,
            timing=timing,
            speedup=speedup,
            workload=f"{path.name}#{read.digest}",
        ),
        read.asks,
    )


def _loaded(session: Session, running: Running, work: _Work, as_json: bool) -> int:
    measured = work.run(session, running, progress_lines(quiet=as_json))
    if as_json:
        print_json({"round": running.handle.round_name, **_without_samples(measured)})
    else:
        say(measurement_text(measured))
        known = running.round.physics if running.round is not None else None
        if known is not None and measured.ttft_s is not None and work.load.input_tokens:
            say(f"  {cause_of(known, work.load.input_tokens, measured.ttft_s.p50)}")
    return DONE if measured.repeats_done and not measured.ended_early and not measured.failed else FAILED


def _alone(session: Session, running: Running, work: _Work, as_json: bool) -> int:
    round_ = running.round
    longest = round_.plan.longest_input_tokens if round_ is not None and round_.plan is not None else None
    measured: Physics = physics(
        target_of(session, running),
        lengths_within(longest),
        budget=work.budget,
        on_progress=progress_lines(quiet=as_json),
    )
    if round_ is not None and measured.points:
        session.history.save(msgspec.structs.replace(session.history.get(round_.number), physics=measured))
    if as_json:
        print_json({"round": running.handle.round_name, "physics": measured})
    else:
        say(physics_text(measured))
    return DONE if measured.points and not measured.ended_early else FAILED


def _ab(session: Session, preset: str | None, ab: str, starts: int, work: _Work, *, as_json: bool) -> int:
    key, values = _sides(ab)
    running = session.running()
    if preset is None and running is None:
        raise UsageProblem("Name a preset or a recipe file for --ab, or start a server whose recipe is taken.")
    recipe = recipe_for(preset, ()) if preset or running is None else running.handle.recipe
    recipes = [merge_set(recipe, [f"{key}={value}"]) for value in values]
    sides = [Side(value=f"{key}={value}") for value in values]
    for number, which in enumerate(alternating(starts), start=1):
        note = f"A/B {sides[which].value}, start {number} of {2 * starts}"
        done = _side(session, recipes[which], note, work, as_json)
        if isinstance(done, str):
            fail(done, as_json=as_json)
            return FAILED
        round_, measured = done
        sides[which] = msgspec.structs.replace(
            sides[which],
            rounds=(*sides[which].rounds, round_.name),
            measurements=(*sides[which].measurements, measured),
        )
    changes = compared(*sides)
    if as_json:
        print_json({"sides": [_side_json(side) for side in sides], "changes": changes})
    else:
        say(ab_text(sides[0], sides[1], changes))
    return DONE


def _side(session: Session, recipe: Recipe, note: str, work: _Work, as_json: bool) -> tuple[Round, Measurement] | str:
    """One start of one side, measured; a sentence when it did not come to that."""
    if not as_json:
        say(note, err=True)
    round_ = session.run_round(recipe, note=note, publish=narrator(quiet=as_json), cancel=work.cancel)
    running = session.running(recipe.port)
    if round_.state not in (RoundState.VERIFIED, RoundState.UNVERIFIED) or running is None:
        return f"{round_.name} did not come up, so there is nothing to compare: {round_.reason}"
    measured = work.run(session, running, progress_lines(quiet=as_json))
    if measured.ended_early or not measured.samples:
        return f"The load on {round_.name} did not come to its end: {measured.ended_early or 'no answer came.'}"
    return round_, measured


def _sides(ab: str) -> tuple[str, tuple[str, str]]:
    key, equals, rest = ab.partition("=")
    values = [value.strip() for value in rest.split(",")]
    if not equals or not key.strip() or len(values) != 2 or not all(values):
        raise UsageProblem(f"--ab takes a flag and two values, such as schedule_policy=lpm,fcfs, not {ab!r}.")
    if values[0] == values[1]:
        raise UsageProblem("--ab needs two different values.")
    return key.strip(), (values[0], values[1])


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "value": side.value,
        "rounds": side.rounds,
        "measurements": [_without_samples(measured) for measured in side.measurements],
    }


def _without_samples(measured: Measurement) -> dict[str, Any]:
    """A measurement in numbers; its samples are kept with the round."""
    told: dict[str, Any] = msgspec.to_builtins(measured)
    told["samples"] = len(measured.samples)
    return told


def progress_lines(*, quiet: bool) -> Callable[[Progress], None]:
    """A watcher that says on standard error how far it is: each new stage, and every few seconds within one."""
    said_at, stage = 0.0, ""

    def watch(progress: Progress) -> None:
        nonlocal said_at, stage
        now = time.monotonic()
        if quiet or (progress.stage == stage and now - said_at < _SAY_EVERY_S):
            return
        said_at, stage = now, progress.stage
        done = f"{format_tokens(progress.done)} of {format_tokens(progress.of)}"
        say(f"  {progress.stage}: {done}, {format_seconds(progress.left_s)} left at the most", err=True)

    return watch
