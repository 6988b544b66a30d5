"""Auto on a machine: rounds, proofs, the history, and the server that runs in the end."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import msgspec

from tuner.checks.model import CheckResult, Verdict
from tuner.findings import Finding, FindingId, Severity
from tuner.measure.watch import Budget
from tuner.measure.wire import Target
from tuner.planner.model import PlanInputs
from tuner.recipe.checking import left_out
from tuner.recipe.model import Recipe
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round, RoundState
from tuner.server.model import InUse, StartRefused
from tuner.session.auto.decide import headroom_of, lacks, may_do, met_words
from tuner.session.auto.drive import drive
from tuner.session.auto.latency import details, times_words
from tuner.session.auto.learn import evidence
from tuner.session.auto.model import (
    TAG,
    TOGETHER,
    AutoOutcome,
    AutoRound,
    Ended,
    Goal,
    Proof,
    Start,
    Stop,
    Try,
)
from tuner.session.auto.proof import BUDGET_S, Bench, prove
from tuner.session.bench import Bench as Tools
from tuner.session.cards import cards_of
from tuner.session.deaths import same_recipe, with_secrets
from tuner.session.ends import died_while_checked
from tuner.session.events import AutoEnded, AutoNews, Event, Publish, RoundOpened
from tuner.session.needs import with_wishes
from tuner.session.planning import Given
from tuner.session.runners import number_of
from tuner.session.swap import leave_to_others
from tuner.session.watching import Running, api_key

if TYPE_CHECKING:
    from tuner.session.session import Session


def run_auto(
    session: Session,
    tools: Tools,
    recipe: Recipe,
    goal: Goal,
    *,
    publish: Publish,
    cancel: threading.Event,
    leave: threading.Event,
) -> AutoOutcome:
    """From ``recipe`` to a server that was seen to meet ``goal``; see ``Session.auto``.

    The rounds that it starts state the goal in their recipe, so that what is said of them later is measured by it; a
    server that is proved as it runs keeps its own.
    """
    wishes = with_wishes(recipe.tuner, goal.need, ttft_s=goal.ttft_p95_s, itl_s=goal.itl_p95_s)
    recipe = msgspec.structs.replace(recipe, tuner=wishes)
    lock = filelock.FileLock(tools.home.servers / f"{recipe.port}.auto", timeout=0, mode=0o600)
    try:
        with lock:
            return _Auto(session, tools, recipe, goal, publish, cancel, leave).run()
    except filelock.Timeout:
        raise InUse((_other_auto(recipe.port),)) from None


def _other_auto(port: int) -> Finding:
    return Finding(
        id=FindingId.DOUBLE_START,
        severity=Severity.FATAL,
        title=f"Another tuner auto is at work on port {port}.",
        remedy="Wait for it to end, or give another port with --set port=N.",
    )


class _Auto:
    """One auto at work."""

    def __init__(
        self,
        session: Session,
        tools: Tools,
        recipe: Recipe,
        goal: Goal,
        publish: Publish,
        cancel: threading.Event,
        leave: threading.Event,
    ) -> None:
        self._session = session
        self._tools = tools
        self._recipe = recipe
        self._goal = goal
        self._publish = publish
        self._cancel = cancel
        self._leave = leave
        self._former = session.running(recipe.port)
        self._rounds: list[AutoRound] = []
        self._starts = 0
        self._headroom = 0.0

    def run(self) -> AutoOutcome:
        """Goes the whole way; whatever happens on it, the machine is not left without the server it had."""
        if self._former is not None:
            leave_to_others(self._tools.history, self._former.handle)
        self._headroom = headroom_of(self._goal, self._inputs(()))
        self._say("need", need_words(self._goal, self._headroom))
        try:
            stop, tries = drive(self._goal, self._inputs, self._run, first=self._as_it_runs())
        except BaseException:
            if self._starts and not self._leave.is_set():
                self._put_back()
            raise
        if stop is None or (stop.ended is Ended.ABORTED):
            stop = Stop(ended=Ended.ABORTED, reason="Auto was broken off.")
        if stop.ended is not Ended.MET:
            self._put_back()
        outcome = self._outcome(stop, tries)
        self._say("met" if outcome.met else "end", outcome.reason)
        self._publish(AutoEnded(outcome))
        return outcome

    def _say(self, kind: str, text: str, number: int = 0) -> None:
        self._publish(AutoNews(kind=kind, text=text, number=number, of=self._goal.max_rounds, port=self._recipe.port))

    def _inputs(self, tries: Sequence[Try]) -> PlanInputs:
        facts = evidence(tries)
        given = Given(boot=facts, boot_name=tries[-1].name) if facts is not None else None
        return self._session.planning_inputs(self._recipe, given)

    # one round

    def _run(self, step: Start, number: int) -> Try | None:
        if self._cancel.is_set():
            return None
        recipe = msgspec.structs.replace(self._recipe, flags=dict(step.solution.inputs.flags))
        self._say("plan", step.reason, number)
        self._starts += 1
        round_ = self._session.run_round(
            recipe, note=f"auto: {step.reason}", publish=self._tagging, cancel=self._cancel, drain=True
        )
        return self._ended(round_, recipe, number, step.reason)

    def _as_it_runs(self) -> Try | None:
        """The server that runs, proved as it is, where the plan says that it may meet the need; else None."""
        running = self._former
        if running is None or running.round is None or running.round.state is not RoundState.VERIFIED:
            return None
        recipe = with_secrets(running.handle.recipe, self._recipe)
        checked = set(left_out(recipe)) <= set(left_out(self._recipe))
        if (
            not checked
            or not _same_but_flags(recipe, self._recipe)
            or not may_do(self._goal, self._inputs(()), recipe.flags)
        ):
            return None
        why = f"{running.round.name} runs, and by the plan it meets the need as it is."
        self._say("plan", why)
        tried = self._ended(running.round, recipe, 0, why)
        return msgspec.structs.replace(tried, started=False) if tried is not None else None

    def _ended(self, round_: Round, recipe: Recipe, number: int, why: str) -> Try | None:
        """The round with its proof, told and kept; None when the operator broke it off."""
        tried = self._proved(round_, recipe, number)
        if self._cancel.is_set():
            return None
        self._rounds.append(_kept(tried, number, why, lacks(self._goal, tried, self._headroom)))
        self._tell(tried, number)
        return tried

    def _tagging(self, event: Event) -> None:
        if isinstance(event, RoundOpened):
            self._tools.history.set_tags(event.round.number, add=(TAG,))
        self._publish(event)

    def _proved(self, round_: Round, recipe: Recipe, number: int) -> Try:
        proof: Proof | None = None
        running = self._session.running(recipe.port)
        if round_.state is RoundState.VERIFIED and running is not None and not self._cancel.is_set():
            proof = prove(
                self._bench(running, recipe),
                self._goal,
                budget=Budget(BUDGET_S, self._cancel),
                say=lambda text: self._say("proof", text, number),
            )
            if proof.answered < proof.asked:
                # It may have died of it.
                round_ = died_while_checked(self._tools, round_, running.handle, self._publish)
                if round_.state is RoundState.FAILED:
                    round_ = self._tools.history.save(round_)
        return _tried(round_, recipe, proof if round_.state is RoundState.VERIFIED else None, self._card_gib(round_))

    def _bench(self, running: Running, recipe: Recipe) -> Bench:
        handle = running.handle
        return Bench(
            Target(url=handle.url, model=recipe.served_name, api_key=api_key(recipe, self._tools.environ)),
            Path(handle.log_path),
            self._used_mib,
            self._card_gib(running.round),
            self._session.planning_inputs(recipe).shape.vocab_size,
        )

    def _used_mib(self) -> int | None:
        cards = cards_of(self._recipe, self._tools.environ, self._tools.gpu.read())
        return cards[0].used_mib if cards else None

    def _card_gib(self, round_: Round | None) -> float | None:
        cards = cards_of(self._recipe, self._tools.environ, self._tools.gpu.read())
        if cards and cards[0].total_mib:
            return cards[0].total_mib / 1024
        return round_.plan.card_gib if round_ is not None and round_.plan is not None else None

    def _tell(self, tried: Try, number: int) -> None:
        """What came of a round: to the watcher, and into the history with the round."""
        missing = lacks(self._goal, tried, self._headroom)
        words = " ".join(missing) if missing else met_words(self._goal, tried)
        self._say("short" if missing else "proved", words, number)
        kept = self._tools.history.find(number_of(tried.name) or 0)
        if kept is None:
            return
        if tried.proof is not None:
            checks = tuple(check for check in kept.checks if check.name != TOGETHER)
            self._tools.history.save(
                msgspec.structs.replace(kept, checks=(*checks, check_of(self._goal, tried.proof, missing)))
            )
        if number:
            came = f"It lacks: {words}" if missing else words
            self._tools.history.set_note(kept.number, f"{kept.note}\n{came}".strip())

    # the end

    def _put_back(self) -> None:
        """The server that the machine had, when what runs now is not it; else the last one of auto that was good."""
        if self._leave.is_set() or not self._starts:
            return
        running = self._session.running(self._recipe.port)
        if self._former is not None:
            if running is not None and running.handle.pid == self._former.handle.pid:
                return
            recipe, name = self._former.handle.recipe, self._former.handle.round_name or "the former server"
        else:
            good = next((kept for kept in reversed(self._rounds) if kept.state is RoundState.VERIFIED), None)
            if good is None or (running is not None and running.handle.round_name == good.name):
                return
            recipe, name = msgspec.structs.replace(self._recipe, flags=good.flags), good.name
        self._say("back", f"{name} is started again.")
        note = f"auto: back to {name}, which ran before."
        try:
            round_ = self._session.run_round(
                with_secrets(recipe, self._recipe), note=note, publish=self._tagging, cancel=self._leave, drain=False
            )
        except StartRefused as refusal:
            self._say("back", " ".join(f"{f.title} {f.remedy}" for f in refusal.findings))
            return
        except HistoryError as error:
            self._say("back", f"{name} could not be started again, so start it by hand: {error}")
            return
        if round_.state is not RoundState.VERIFIED and not self._leave.is_set():
            self._session.fall_back(round_, publish=self._tagging, cancel=self._leave)

    def _outcome(self, stop: Stop, tries: Sequence[Try]) -> AutoOutcome:
        running = self._session.running(self._recipe.port)
        serving = running.handle.round_name if running is not None else None
        nearest = stop.nearest
        return AutoOutcome(
            port=self._recipe.port,
            ended=stop.ended,
            reason=stop.reason,
            goal=self._goal,
            rounds=tuple(self._rounds),
            winner=tries[-1].name if stop.ended is Ended.MET else None,
            serving=serving,
            former=self._former.handle.round_name if self._former is not None else None,
            missing=stop.missing,
            nearest_flags=_changes(self._recipe.flags, nearest.inputs.flags) if nearest is not None else {},
            nearest=nearest.plan if nearest is not None else None,
            simulated=self._recipe.simulated,
            starts=self._starts,
        )


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that differ; None means: left out."""
    return {name: new.get(name) for name in {**old, **new} if old.get(name) != new.get(name)}


def _same_but_flags(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes start the same server, but for its flags."""
    return same_recipe(*(msgspec.structs.replace(recipe, flags={}) for recipe in (one, other)))


def _tried(round_: Round, recipe: Recipe, proof: Proof | None, card_gib: float | None) -> Try:
    ready = round_.vram_mib.get("ready")
    cause = next((f for f in round_.findings if f.severity is Severity.FATAL), None)
    return Try(
        name=round_.name,
        flags=recipe.flags,
        state=round_.state,
        plan=round_.plan,
        boot=round_.boot,
        cause=cause,
        reason=round_.reason,
        ready_free_gib=card_gib - ready / 1024 if ready is not None and card_gib is not None else None,
        proof=proof,
    )


def _kept(tried: Try, number: int, why: str, missing: tuple[str, ...]) -> AutoRound:
    return AutoRound(
        number=number,
        name=tried.name,
        why=why,
        state=tried.state,
        flags=tried.flags,
        planned=tried.plan,
        kv_tokens=tried.boot.kv_tokens if tried.boot is not None else None,
        mamba_slots=tried.boot.mamba_slots if tried.boot is not None else None,
        ready_free_gib=tried.ready_free_gib,
        proof=tried.proof,
        lacks=missing,
    )


def check_of(goal: Goal, proof: Proof, missing: tuple[str, ...]) -> CheckResult:
    """The proof as a check of its round. Pure."""
    need = goal.need
    return CheckResult(
        name=TOGETHER,
        verdict=Verdict.FAIL if missing else Verdict.PASS,
        reason=" ".join(missing)
        or f"{proof.together} requests ran together, all were answered{times_words(goal, proof)}.",
        sent=f"{proof.asked} x {need.input_tokens:,} token ids at once, {need.output_tokens} tokens each",
        came="; ".join(proof.errors) or f"{proof.answered} answers",
        seconds=proof.seconds,
        details={
            "asked": proof.asked,
            "answered": proof.answered,
            "together": proof.together,
            "retracted": proof.retracted,
            "lowest_free_gib": proof.lowest_free_gib,
            **(details("ttft", proof.ttft) | details("itl", proof.itl) if goal.timed else {}),
        },
    )


def need_words(goal: Goal, headroom_gib: float) -> str:
    """The need in one sentence. Pure."""
    need = goal.need
    parts = [
        f"{need.agents} x {need.input_tokens:,} tokens in flight together"
        if need.agents > 1
        else f"an input of {need.input_tokens:,} tokens",
        f"{need.output_tokens:,} tokens each answer",
        f"{headroom_gib:g} GiB free at ready",
    ]
    if need.warm_prefixes:
        parts.append(f"{need.warm_prefixes} warm conversations")
    if goal.ttft_p95_s is not None:
        parts.append(f"TTFT p95 within {goal.ttft_p95_s:g} s")
    if goal.itl_p95_s is not None:
        parts.append(f"ITL p95 within {goal.itl_p95_s * 1000:g} ms")
    if goal.keep:
        parts.append(f"keeping {', '.join(f'{k}*' if k.endswith('_') else k for k in goal.keep)}")
    return f"Needed: {', '.join(parts)}."
