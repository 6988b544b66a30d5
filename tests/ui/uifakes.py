"""A session without processes: what the terminal app sees of the world, under the test's control."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tuner.advice import Advice
from tuner.checks.model import CheckResult, Verdict
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import GpuReading, Reach, Readings, Spread
from tuner.modelcard import Family, ModelShape, StateShape
from tuner.paths import Home
from tuner.planner import plan as make_plan
from tuner.planner.accuracy import Accuracy
from tuner.planner.model import GIB, CannotPlan, PlanInputs, Source, Sourced
from tuner.recipe.model import SIMULATOR, Recipe, TunerSettings
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.server.model import ServerHandle, StopOutcome
from tuner.serverlog.model import BootFacts, Phase
from tuner.session.events import (
    CheckEnded,
    CheckStarted,
    Event,
    PhaseChanged,
    Planned,
    RoundClosed,
    RoundOpened,
    ServerStopped,
)

HYBRID_27B = ModelShape(
    name="qwen3.8-27b-fp8-text",
    architecture="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    family=Family.GDN,
    layers=64,
    attention_layers=16,
    kv_heads=4,
    head_dim=256,
    v_head_dim=256,
    state=StateShape(
        layers=48, heads=48, head_dim=128, state_size=128, groups=16, intermediate=6144, conv_kernel=4,
        ssm_dtype="float32",
    ),
    context_len=262144,
    hidden_size=5120,
    vocab_size=248320,
    draft_layers=1,
    weights_bytes=int(27.54 * GIB),
    draft_weights_bytes=int(5.53 * GIB),
    draft_shared_bytes=int(4.63 * GIB),
)  # fmt: skip

DENSE = msgspec.structs.replace(
    HYBRID_27B, name="dense-small", family=Family.PLAIN, state=None, layers=28, attention_layers=28, draft_layers=0,
    weights_bytes=int(8 * GIB), draft_weights_bytes=0, draft_shared_bytes=0,
)  # fmt: skip

FLAGS: dict[str, Any] = {
    "model_path": "/models/Qwen3.8-27B-FP8",
    "served_model_name": "Qwen3.8-27B",
    "mem_fraction_static": 0.86,
    "mamba_full_memory_ratio": 0.9,
    "mamba_ssm_dtype": "bfloat16",
    "kv_cache_dtype": "fp8_e4m3",
    "max_running_requests": 3,
    "chunked_prefill_size": 4096,
    "mamba_radix_cache_strategy": "extra_buffer",
    "schedule_policy": "lpm",
    "port": 30000,
}

DEMO = Recipe(name="demo", flags=FLAGS, python=SIMULATOR, tuner=TunerSettings(model_shape="qwen3.8-27b-fp8-text"))
REAL = Recipe(name="r01", flags=FLAGS, python="/opt/sglang/bin/python")


class Running(msgspec.Struct, frozen=True):
    """As ``tuner.session.session.Running``."""

    handle: ServerHandle
    round: Round | None


class Look(msgspec.Struct, frozen=True):
    """As ``tuner.session.session.Look``."""

    at: float
    running: Running | None
    readings: Readings | None
    gpus: tuple[GpuReading, ...]
    alive: bool
    changed: tuple[Finding, ...] = ()
    url: str = ""
    no_gpus: str = ""


class FakeSession:
    """The facade of ``tuner.session.session.Session``. ``gate`` holds a round in its phases until it is set."""

    attached = ""

    def __init__(self, folder: Path, *, shape: ModelShape = HYBRID_27B) -> None:
        self.folder = folder
        self.home = Home.at(folder / "home")
        self.known: tuple[tuple[str, Accuracy], ...] = ()
        self.refuse: tuple[Finding, ...] = ()
        self.forced: list[bool] = []
        self.shape = shape
        self.history = History(folder / "rounds.sqlite")
        self.server: Running | None = None
        self.readings: Readings | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[Recipe] = []
        self.stopped = 0
        self.calibrated_by: str | None = None
        self.note = ""
        self.fail_in: str | None = None
        self.cannot: str = ""
        self.advice = Advice(enough=True, sentence="Good enough, stop: the need is met.")

    def planning_inputs(self, recipe: Recipe) -> PlanInputs:
        if self.cannot:
            raise CannotPlan(self.cannot)
        return PlanInputs(
            shape=self.shape,
            flags=recipe.flags,
            free_before=Sourced(46.83, Source.BOOT_LOG),
            free_after=Sourced(46.83 - self.shape.weights_bytes / GIB, Source.BOOT_LOG),
            free_after_has_draft=False,
            calibrated_by=self.calibrated_by,
            calibration_note=self.note,
            card_gib=47.5,
        )

    def advise(self, round_: Round) -> Advice:
        del round_
        return self.advice

    def accuracy(self, *, simulated: bool, limit: int = 3) -> tuple[tuple[str, Accuracy], ...]:
        del simulated
        return self.known[:limit]

    def run_round(
        self,
        recipe: Recipe,
        *,
        publish: Callable[[Event], None],
        cancel: threading.Event,
        note: str = "",
        force: bool = False,
    ) -> Round:
        self.asked.append(recipe)
        self.forced.append(force)
        plan = make_plan(self.planning_inputs(recipe))
        round_ = self.history.open_round(
            Round(number=0, started_at=1_790_000_000.0, state=RoundState.STARTING, simulated=recipe.simulated,
                  recipe=recipe, plan=plan, note=note, sglang_version="0.5.17", gpu_name="NVIDIA RTX 4090D",
                  driver_version="580.1")
        )  # fmt: skip
        publish(RoundOpened(round_))
        publish(Planned(plan))
        if self.refuse and not force:
            reason = " ".join(f"{f.title} {f.remedy}" for f in self.refuse)
            refused = msgspec.structs.replace(
                round_, state=RoundState.REFUSED, phase="preflight", reason=reason, findings=self.refuse
            )
            publish(RoundClosed(self.history.save(refused)))
            return refused
        if self.server is not None:
            publish(ServerStopped(StopOutcome(stopped=True, seconds=2.4, how="SIGTERM")))
            self.server = None
        log = self.folder / f"{round_.name}.log"
        log.write_text("[2026-11-29 15:51:26] Load weight begin. avail mem=46.83 GB\n")
        phases = {"launching": 3.0, "loading weights": 12.0, "sizing pools": 1.0, "capturing graphs": 9.0,
                  "opening port": 0.5, "warming up": 6.0}  # fmt: skip
        total = 0.0
        for name, seconds in phases.items():
            line = f"[2026-11-29 15:51:26] {name}: [rank0] 42%|████      | 21/50 [00:03<00:04]"
            publish(PhaseChanged(phase=name, elapsed_s=seconds / 2, total_s=total + seconds / 2, last_line=line))
            while not self.gate.wait(0.01):
                if cancel.is_set():
                    ended = self._ended(round_, RoundState.ABORTED, name, "Aborted by the operator.")
                    publish(RoundClosed(ended))
                    return ended
            if name == self.fail_in:
                reason = "Not enough memory for the pools: raise mem_fraction_static above 0.61."
                ended = self._ended(round_, RoundState.FAILED, name, reason)
                publish(RoundClosed(ended))
                return ended
            total += seconds
        publish(PhaseChanged(phase=Phase.READY, elapsed_s=0, total_s=total))
        results = []
        for number, name in enumerate(("thinking", "non-thinking", "tool call", "prefix reuse"), 1):
            publish(CheckStarted(name, number, 4))
            result = CheckResult(name=name, verdict=Verdict.PASS, reason="answered as it should", seconds=1.2)
            results.append(result)
            publish(CheckEnded(result))
        boot = BootFacts(
            version="0.5.17", phase=Phase.READY, ready=True, mamba_slots=plan.mamba_slots, kv_tokens=plan.kv_tokens,
            max_running_requests=plan.max_running_requests, context_len=plan.context_len,
        )  # fmt: skip
        round_ = self.history.save(
            msgspec.structs.replace(
                round_, state=RoundState.VERIFIED, boot=boot, phase_seconds=phases, ready_seconds=total,
                checks=tuple(results), readings=busy(plan.kv_tokens, plan.mamba_slots), log_path=str(log),
            )
        )  # fmt: skip
        self.serve(round_, str(log))
        publish(RoundClosed(round_))
        return round_

    def serve(self, round_: Round, log_path: str = "") -> None:
        """Lets the server of a round run."""
        handle = ServerHandle(
            pid=4242, create_time=1.0, host="127.0.0.1", port=30000, log_path=log_path, started_at=time.time(),
            simulated=round_.simulated, recipe=round_.recipe, round_name=round_.name,
        )  # fmt: skip
        self.server = Running(handle, round_)
        self.readings = round_.readings

    def _ended(self, round_: Round, state: RoundState, phase: str, reason: str) -> Round:
        finding = Finding(
            id=FindingId.NO_ROOM_AT_SIZING, severity=Severity.FATAL, title="No room is left for the pools.",
            evidence=("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",),
            remedy="Raise mem_fraction_static.",
        )  # fmt: skip
        found = (finding,) if state is RoundState.FAILED else ()
        return self.history.save(
            msgspec.structs.replace(round_, state=state, phase=phase, reason=reason, findings=found,
                                    log_path=str(self.folder / f"{round_.name}.log"))
        )  # fmt: skip

    def settle(self) -> list[Round]:
        return []

    def way_back(self, failed: Round) -> Round | None:
        return next(
            (r for r in self.history.list() if r.state is RoundState.VERIFIED and r.number != failed.number), None
        )

    def fall_back(self, failed: Round, *, publish: Callable[[Event], None], cancel: threading.Event) -> Round | None:
        good = self.way_back(failed)
        return self.run_round(good.recipe, publish=publish, cancel=cancel) if good is not None else None

    def verify(self, *, publish: Callable[[Event], None], cancel: threading.Event) -> list[CheckResult] | None:
        del cancel
        if self.server is None:
            return None
        publish(CheckStarted("thinking", 1, 1))
        result = CheckResult(name="thinking", verdict=Verdict.PASS, reason="thought, then answered", seconds=1.0)
        publish(CheckEnded(result))
        return [result]

    def stop(self, *, publish: Callable[[Event], None]) -> StopOutcome | None:
        if self.server is None:
            return None
        self.server = None
        self.stopped += 1
        outcome = StopOutcome(stopped=True, seconds=2.4, how="SIGTERM")
        publish(ServerStopped(outcome))
        return outcome

    def look(self, *, keep: bool = False) -> Look:
        gpu = GpuReading(index=0, name="NVIDIA RTX 4090D", total_mib=49140, used_mib=45158, free_mib=3982)
        return Look(time.time(), self.server, self.readings if self.server else None, (gpu,), self.server is not None)

    def export(self, number: int, fmt: str) -> str:
        return f"# {fmt} of {self.history.get(number).name}\n"


def busy(kv_tokens: int, slots: int) -> Readings:
    """A server at work."""
    return Readings(
        at=1_790_000_100.0,
        metrics=Reach.OK,
        loads=Reach.OK,
        kv_used_tokens=kv_tokens // 3,
        kv_total_tokens=kv_tokens,
        kv_evictable_tokens=kv_tokens // 5,
        slots_used=12,
        slots_total=slots or None,
        slots_evictable=9,
        running=2,
        queued=1,
        max_running_requests=3,
        decode_tokens_per_s=151.5,
        prefill_tokens_per_s=2710.0,
        ttft_s=Spread(p50=0.83, p95=1.52, count=400),
        itl_s=Spread(p50=0.0112, p95=0.0148, count=900),
        prefix_hit_ratio=0.67,
        acceptance_length=1.8,
    )
