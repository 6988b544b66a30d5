"""The planner against the recordings: rows for the tests, tables for the eye."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
from planner_cases import MEASURED, recorded_flags, shape

from tuner.planner import plan
from tuner.planner.calibrate import calibrate
from tuner.planner.model import GIB, Plan, PlanInputs, Source, Sourced
from tuner.serverlog.model import BootFacts
from tuner.serverlog.reader import read_boot

MODELS = {"27b": "qwen3.8-27b-fp8-text", "tiny": "hybrid-tiny", "dense": "qwen3-dense-small"}
CARD_GIB = 143771 / 1024
ROUNDS = (
    "27b-48g-fp32-frac086",
    "27b-48g-bf16-frac086",
    "27b-48g-bf16-frac086-ratio03",
    "27b-48g-bf16-frac095-slots24",
    "27b-48g-bf16-frac098-mtp",
    "27b-48g-r15-full",
    "27b-48g-unified-memory-fails",
    "tiny-second-server-same-port",
    "tiny-api-key-no-metrics",
    "tiny-auto-strategy-never-hits",
    "dense-small",
)
ROUNDS_27B = tuple(name for name in ROUNDS if name.startswith("27b"))
STARTED = tuple(name for name in ROUNDS if "unified" not in name)


@cache
def facts(name: str) -> BootFacts:
    return read_boot((MEASURED / f"{name}.log").read_text("utf-8", "replace"))


@cache
def seen(name: str) -> dict[str, Any]:
    return json.loads((MEASURED / f"{name}.json").read_text())


def printed_inputs(name: str, after_shift: float = 0.0, before_shift: float = 0.0) -> PlanInputs:
    """Inputs from the printed numbers alone, with the usual start-up loss."""
    boot = facts(name)
    assert boot.free_before_gib is not None and boot.free_after_gib is not None
    return PlanInputs(
        shape=shape(MODELS[name.split("-")[0]]),
        flags=recorded_flags(name),
        sglang_version="0.5.17",
        free_before=Sourced(boot.free_before_gib + before_shift, Source.BOOT_LOG),
        free_after=Sourced(boot.free_after_gib + after_shift, Source.BOOT_LOG),
        card_gib=CARD_GIB,
    )


def own_share_gib(name: str) -> float:
    """The server's share of the card at ready: NVML at ready less before the start."""
    record = seen(name)
    before = record.get("vram_ballast") or record["vram_before"]
    return (record["vram_ready"]["used_mib"] - before["used_mib"]) / 1024


def calibrated_on(source: str) -> PlanInputs:
    return calibrate(printed_inputs(source), facts(source), name=source)


def predicted_from(source: str, target: str) -> Plan:
    """A plan of ``target``'s flags with the constants of ``source`` and nothing of ``target``'s own log."""
    return plan(msgspec.structs.replace(calibrated_on(source), flags=recorded_flags(target)))


def terms_gib(result: Plan) -> float:
    return sum(term.gib for term in result.terms if term.name != "free")


def uncalibrated_table() -> str:
    lines = [
        "POOLS FROM THE PRINTED NUMBERS AND THE START-UP LOSS",
        f"{'round':32} {'slots':>6} {'plan':>6} {'range':>11} {'KV tokens':>10} {'plan':>10} {'off %':>7} "
        f"{'range':>22} {'req':>4} {'plan':>4}",
    ]
    for name in ROUNDS:
        boot, result = facts(name), plan(printed_inputs(name))
        off = 100 * (result.kv_tokens - boot.kv_tokens) / boot.kv_tokens
        slots = f"{result.mamba_slots_low}-{result.mamba_slots_high}"
        lines.append(
            f"{name:32} {boot.mamba_slots or '-':>6} {result.mamba_slots or '-':>6} "
            f"{slots if result.mamba_slots else '-':>11} "
            f"{boot.kv_tokens:>10,} {result.kv_tokens:>10,} {off:>+7.3f} "
            f"{f'{result.kv_tokens_low:,}-{result.kv_tokens_high:,}':>22} "
            f"{boot.max_running_requests:>4} {result.max_running_requests:>4}"
        )
    return "\n".join(lines)


def calibrated_table() -> str:
    lines = ["CALIBRATED ON ONE 27B ROUND, THE OTHERS: tokens off % (GiB of KV)"]
    for source in ROUNDS_27B:
        inputs = calibrated_on(source)
        lines.append(
            f"on {source}: free_before {inputs.free_before.gib:.4f} + {inputs.startup_loss_gib:.4f}, "
            f"free_after {inputs.free_after.gib:.4f}, sizing loss {inputs.sizing_loss_gib:.4f}"
        )
        for target in ROUNDS_27B:
            if target == source:
                continue
            result, boot = predicted_from(source, target), facts(target)
            off = result.kv_tokens - boot.kv_tokens
            lines.append(
                f"    {target:32} slots {boot.mamba_slots} / {result.mamba_slots}  tokens {boot.kv_tokens:,} / "
                f"{result.kv_tokens:,}  {100 * off / boot.kv_tokens:+.4f} %  "
                f"{off * result.bytes_per_token / GIB:+.4f} GiB"
            )
    return "\n".join(lines)


def weights_table() -> str:
    lines = ["WEIGHTS FROM THE SHAPE ALONE, GiB", f"{'model':24} {'printed':>8} {'shape':>8}"]
    for key, name in (("27b", "27b-48g-r15-full"), ("tiny", "tiny-api-key-no-metrics"), ("dense", "dense-small")):
        told, model = facts(name).weights_gib, shape(MODELS[key])
        lines.append(f"{model.name:24} {told['target']:>8.2f} {model.weights_bytes / GIB:>8.3f}")
        if "draft" in told:
            lines.append(f"{'  its draft':24} {told['draft']:>8.2f} {model.draft_weights_bytes / GIB:>8.3f}")
    return "\n".join(lines)


def terms_table() -> str:
    lines = [
        "SUM OF THE NAMED TERMS AGAINST THE SERVER'S OWN SHARE AT READY (NVML), GiB",
        f"{'round':32} {'NVML':>7} {'printed':>8} {'off %':>7} {'log':>8} {'off %':>7} {'log+NVML':>8} {'off %':>7}",
    ]
    for name in STARTED:
        share = own_share_gib(name)
        raw = terms_gib(plan(printed_inputs(name)))
        exact = terms_gib(plan(calibrated_on(name)))
        told = terms_gib(plan(calibrate(printed_inputs(name), facts(name), own_share_gib=share)))
        lines.append(
            f"{name:32} {share:>7.3f} {raw:>8.3f} {100 * (raw - share) / share:>+7.2f} {exact:>8.3f} "
            f"{100 * (exact - share) / share:>+7.2f} {told:>8.3f} {100 * (told - share) / share:>+7.2f}"
        )
    return "\n".join(lines)
