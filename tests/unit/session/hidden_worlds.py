"""Random machines whose truth the planner is not told, started by the stand-in's own sizing without a process.

A start prints the stand-in's log, which the tuner's own reader and doctor read; the need is proved by the stand-in's
scheduler without waiting for time. ``reachable`` looks for a start that meets the need by the truth alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tuner.doctor import diagnose_log
from tuner.findings import Severity
from tuner.metrics.model import GpuReading
from tuner.planner.admission import rows_needed
from tuner.planner.conditions import conditions
from tuner.planner.model import CannotPlan, PlanInputs
from tuner.planner.need import Need, slots_needed
from tuner.recipe.model import Recipe, TunerSettings
from tuner.rounds.model import Round, RoundState
from tuner.serverlog.reader import read_boot
from tuner.session.auto.drive import drive
from tuner.session.auto.learn import evidence
from tuner.session.auto.model import Goal, Proof, Start, Stop, Try
from tuner.session.planning import Given, Here, plan_inputs, shape_for
from tuner.sim import bootlog, captures, tracebacks
from tuner.sim.answers import babble
from tuner.sim.cache import PrefixCache
from tuner.sim.faults import Faults
from tuner.sim.flags import Options
from tuner.sim.hardware import ACTIVATIONS_GIB, BACKEND_GIB, Truth
from tuner.sim.journal import Line, Output
from tuner.sim.limits import Limits, Refusal
from tuner.sim.model import Model, resolve
from tuner.sim.requests import Request
from tuner.sim.scheduler import Scheduler
from tuner.sim.sizing import GraphPlan, Pools, Refused, Setup, plan_graphs, set_up, size
from tuner.sim.speed import Speed
from tuner.sim.stats import Stats
from tuner.sim.values import server_args

SHAPE = "qwen3.8-27b-fp8-text"
CARD_GIB = 47.5
_STAMP = "[2026-11-29 15:52:22] "
SPECULATION = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 2,
}


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with its truth, an operator's recipe and the need."""

    seed: int
    truth: Truth
    free_gib: float
    recipe: Recipe
    goal: Goal

    @property
    def options(self) -> Options:
        """The stand-in's switches for this truth."""
        return Options(shape=SHAPE, truth=self.truth, noise=0.0)

    @property
    def switches(self) -> dict[str, float]:
        """The same truth as switches of the stand-in's command line."""
        truth = self.truth
        assert truth.weights_gib is not None and truth.draft_weights_gib is not None
        return {
            "weights-gib": truth.weights_gib,
            "draft-weights-gib": truth.draft_weights_gib,
            "startup-loss-gib": truth.startup_loss_gib,
            "context-gib": truth.context_gib,
            "loss-gib": truth.loss_gib,
            "graphs-factor": truth.graphs_factor,
        }


class Began(msgspec.Struct, frozen=True, kw_only=True):
    """A start that came up, with all it has."""

    setup: Setup
    pools: Pools
    graphs: GraphPlan

    @property
    def free_gib(self) -> float:
        """Free VRAM at ready."""
        return self.graphs.free_before - self.graphs.total_gib


def world_of(seed: int) -> World:
    """The world of a seed: weights, drafts, losses and graphs other than estimated, a recipe, a need."""
    chance = random.Random(f"world {seed}")
    shape = shape_for(Recipe(tuner=TunerSettings(model_shape=SHAPE)), Given())
    gib = 1 << 30
    truth = Truth(
        context_gib=chance.uniform(0.35, 0.9),
        startup_loss_gib=chance.uniform(0.02, 0.25),
        weights_gib=shape.weights_bytes / gib * chance.uniform(0.94, 1.06),
        draft_weights_gib=shape.draft_weights_bytes / gib * chance.uniform(0.94, 1.06),
        loss_gib=chance.uniform(0.0, 0.8),
        graphs_factor=chance.choice((0.6, 1.0, chance.uniform(0.5, 3.0), chance.uniform(1.5, 3.5))),
    )
    flags: dict[str, Any] = {
        "model_path": "demo/hybrid-27b",
        "mem_fraction_static": round(chance.uniform(0.75, 0.97), 3),
        "mamba_ssm_dtype": chance.choice(("float32", "bfloat16")),
        "kv_cache_dtype": chance.choice(("auto", "fp8_e4m3")),
        "mamba_full_memory_ratio": round(chance.uniform(0.2, 1.2), 2),
        "max_running_requests": chance.randint(1, 8),
        "chunked_prefill_size": chance.choice((2048, 4096, 8192)),
        "attention_backend": "triton",
    }
    if chance.random() < 0.4:
        flags |= SPECULATION | {"mamba_radix_cache_strategy": "extra_buffer"}
    agents = chance.randint(1, 5)
    # About what such a card holds at the most, so that many needs are near the limit.
    most = 270_000 if "speculative_algorithm" in flags else 460_000
    need = Need(
        input_tokens=min(250_000, int(most * chance.uniform(0.5, 1.3) / agents)),
        agents=agents,
        output_tokens=chance.choice((16, 64, 256)),
        headroom_gib=round(chance.uniform(0.3, 4.4), 2),
    )
    return World(
        seed=seed,
        truth=truth,
        free_gib=CARD_GIB - chance.uniform(0.0, 0.8),
        recipe=Recipe(name=f"world {seed}", flags=flags, tuner=TunerSettings(model_shape=SHAPE)),
        goal=Goal(need=need, keep=("speculative_",)),
    )


def _text(outputs: Sequence[Output]) -> str:
    return "".join(f"{_STAMP}{o.text}\n" if isinstance(o, Line) else o.text for o in outputs)


def begin(world: World, flags: dict[str, Any]) -> tuple[Began | None, str]:
    """A start with these flags: what it has, or None when it died; and its log."""
    options = world.options
    model = resolve(flags, options)
    out: list[Output] = []
    try:
        setup = set_up(flags, model, options, card_gib=CARD_GIB, free_gib=world.free_gib, environment={})
        began = _play(world, model, setup, server_args(flags, model, setup, options), out)
    except CannotPlan as error:
        return None, f"{_text(out)}{_STAMP}ValueError: {error}\n"
    except bootlog.Died as died:
        out += [died.out, *tracebacks.died_while_starting(1)]
        return None, _text(out)
    return began, _text(out)


def _play(world: World, model: Model, setup: Setup, values: dict[str, Any], out: list[Output]) -> Began:
    faults, others, options = Faults(), CARD_GIB - world.free_gib, world.options

    def write(steps: Iterator[bootlog.Step]) -> None:
        for step in steps:
            out.extend(step.out)

    write(bootlog.before_weights(values, setup.memory))
    write(bootlog.load_weights(model, setup, faults, others))
    try:
        pools = size(setup, options)
    except Refused as refused:
        raise bootlog.Died(tracebacks.refused_at_sizing(str(refused), refused.where)) from None
    write(bootlog.allocate_pools(model, setup, pools, others))
    graphs = plan_graphs(model, setup, options, pools, BACKEND_GIB)
    write(captures.capture_graphs(model, setup, graphs, faults, others))
    timings = bootlog.Timings(
        load_weight=1.0, kv_cache_allocation=1.0, scheduler_e2e=1.0, cuda_graph={}, tokenizer_e2e=1.0
    )
    write(bootlog.summary(setup, pools, timings, graphs.free_before - graphs.total_gib))
    return Began(setup=setup, pools=pools, graphs=graphs)


def prove(began: Began, need: Need) -> Proof | None:
    """What the stand-in's scheduler does with the need, at once; None when a long prompt runs out of memory."""
    if began.free_gib < ACTIVATIONS_GIB:
        return None
    setup, plan = began.setup, began.pools.plan
    limits = Limits(
        max_running=plan.max_running_requests,
        chunk=setup.chunk,
        policy="fcfs",
        context_len=plan.context_len,
        draft_tokens=setup.draft_tokens,
        acceptance=0.8,
        decode_graphs=True,
        prefill_graphs=True,
        max_queued=None,
        warmed_up=True,
    )
    server = Scheduler(
        PrefixCache(began.pools.kept_states), limits, Speed(Options(noise=0.0)), Stats(), Faults(), 100_000
    )
    answer = babble(b"x", need.output_tokens)
    asked = [
        Request(
            range(n * need.input_tokens + 1, (n + 1) * need.input_tokens + 1),
            need.output_tokens,
            lambda _: answer,
        )
        for n in range(need.agents)
    ]
    try:
        for request in asked:
            server.check_length(request.prompt_tokens, need.output_tokens)
            server.submit(request)
    except Refusal as refusal:
        return Proof(asked=need.agents, answered=0, together=0, retracted=0, errors=(str(refusal),))
    most = 0
    while (work := server.next_work()) is not None:
        work.done()
        most = max(most, len(server.running))
    return Proof(
        asked=need.agents,
        answered=sum(r.finish_reason == "length" for r in asked),
        together=most,
        retracted=server.stats.retracted_requests,
        lowest_free_gib=began.free_gib - ACTIVATIONS_GIB,
    )


def meets(world: World, flags: dict[str, Any]) -> bool:
    """Whether a start with these flags meets the need by the truth."""
    began, _ = begin(world, flags)
    need = world.goal.need
    if began is None or began.free_gib < (need.headroom_gib or 0.0):
        return False
    proof = prove(began, need)
    return proof is not None and proof.together == proof.answered == need.agents and not proof.retracted


def reachable(world: World) -> dict[str, Any] | None:
    """Flags that meet the need by the truth, found without the planner's estimates; None when there are none.

    For each set of switches the fewest slots go to the states. More fraction is more KV and less free memory, but for
    the one place where prefill graphs are given up: so two fractions decide.
    """
    need, base = world.goal.need, world.recipe.flags
    kept = world.goal.keep
    rows = rows_needed(need.agents, need.input_tokens, int(base["chunked_prefill_size"]), counted_twice=True)
    choices: list[tuple[dict[str, Any], ...]] = [
        ({}, {"mamba_ssm_dtype": "bfloat16"}),
        ({}, {"kv_cache_dtype": "fp8_e4m3"}),
        ({}, {"mamba_radix_cache_strategy": "extra_buffer_lazy"})
        if str(base.get("mamba_radix_cache_strategy")) == "extra_buffer"
        else ({},),
        ({}, dict.fromkeys(SPECULATION)) if "speculative_algorithm" in base and "speculative_" not in kept else ({},),
        ({}, {"cuda_graph_backend_prefill": "disabled"}),
        ({"max_running_requests": rows}, {"max_running_requests": max(rows, int(base["max_running_requests"]))}),
    ]
    for chosen in itertools.product(*choices):
        flags = {k: v for k, v in (base | _merged(chosen)).items() if v is not None}
        for candidate in _fractions(world, flags, need, rows):
            if meets(world, candidate):
                return candidate
    return None


def _merged(changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for change in changes:
        merged |= change
    return merged


def _fractions(world: World, flags: dict[str, Any], need: Need, rows: int) -> Iterator[dict[str, Any]]:
    options = world.options
    model = resolve(flags, options)

    def at(step: int) -> tuple[dict[str, Any], Pools | None, float]:
        asked = flags | {"mem_fraction_static": step / 1000}
        setup = set_up(asked, model, options, card_gib=CARD_GIB, free_gib=world.free_gib, environment={})
        slots = slots_needed(need, setup.resolved.strategy.slots_per_request, rows)
        asked |= {"max_mamba_cache_size": slots}
        setup = set_up(asked, model, options, card_gib=CARD_GIB, free_gib=world.free_gib, environment={})
        try:
            pools = size(setup, options)
        except Refused:
            return asked, None, 99.0
        return asked, pools, plan_graphs(model, setup, options, pools, BACKEND_GIB).free_before

    def enough(step: int) -> bool:
        _, pools, _ = at(step)
        return pools is not None and pools.plan.kv_tokens >= need.agents * (need.input_tokens + need.output_tokens)

    least = _first(enough)
    if least is None:
        return
    for step in range(least, min(995, least + 3)):
        yield at(step)[0]
    fewer = _first(lambda step: at(step)[2] < 4.0)
    if fewer is not None and fewer > least:
        yield at(fewer)[0]


def _first(holds: Any) -> int | None:
    low, high = 500, 994
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


class Auto:
    """Auto in a world, as ``session.auto.loop`` runs it on a machine."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history: list[Round] = []

    def run(self) -> tuple[Stop, tuple[Try, ...]]:
        """How it ended, and its rounds."""
        stop, tries = drive(self.world.goal, self.gather, self._start)
        assert stop is not None
        return stop, tries

    def gather(self, tries: Sequence[Try]) -> PlanInputs:
        """What the next plan is made from."""
        facts = evidence(tries)
        given = Given(boot=facts, boot_name=tries[-1].name) if facts is not None else None
        return plan_inputs(self.world.recipe, given=given, here=self._here(), history=list(self._calibrations()))

    def _here(self) -> Here:
        return Here(installed_version="0.5.17", gpus=(_card(self.world.free_gib),))

    def _calibrations(self) -> Iterator[Round]:
        told = [r for r in reversed(self.history) if r.boot is not None and r.boot.kv_tokens is not None]
        return iter(sorted(told, key=lambda r: r.boot is not None and r.boot.available_gib is None))

    def _start(self, step: Start, number: int) -> Try:
        world = self.world
        flags = dict(step.solution.inputs.flags)
        began, log = begin(world, flags)
        facts = read_boot(log)
        state, cause, proof = RoundState.FAILED, None, None
        if began is not None:
            proof = prove(began, world.goal.need)
            state = RoundState.VERIFIED
            if proof is None:
                state = RoundState.FAILED
                log += _text([tracebacks.oom_while_serving(0.6, began.free_gib, CARD_GIB, 0.0)])
        if state is RoundState.FAILED:
            found = diagnose_log(read_boot(log), log.splitlines()[-40:], died=True)
            cause = next((f for f in found if f.severity is Severity.FATAL), None)
        total = CARD_GIB * 1024
        levels = {"before": round(total - world.free_gib * 1024)}
        if began is not None:
            levels["ready"] = round(total - began.free_gib * 1024)
        self.history.append(
            Round(
                number=number,
                started_at=0.0,
                state=state,
                recipe=msgspec.structs.replace(world.recipe, flags=flags),
                plan=step.solution.plan,
                boot=facts,
                vram_mib=levels,
                gpu_name="a card",
                sglang_version="0.5.17",
                conditions=conditions(step.solution.inputs.shape, "0.5.17", {}, gpu_name="a card"),
            )
        )
        return Try(
            name=f"r{number}",
            flags=flags,
            state=state,
            plan=step.solution.plan,
            boot=facts,
            cause=cause,
            reason=cause.title if cause is not None else "",
            ready_free_gib=(total - levels["ready"]) / 1024 if began is not None else None,
            proof=proof,
        )


def _card(free_gib: float) -> GpuReading:
    free, total = round(free_gib * 1024), round(CARD_GIB * 1024)
    return GpuReading(index=0, name="a card", total_mib=total, used_mib=total - free, free_mib=free)
