"""What starts that failed or fell short teach, laid into the next plan. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from tuner.findings import FindingId
from tuner.planner.model import CAPTURE_PEAK, LEAST_FREE_GIB, PlanInputs, Source, Sourced
from tuner.planner.need import Need
from tuner.planner.resolve import resolve
from tuner.planner.switches import prefill_graphs_off
from tuner.serverlog.model import BootFacts
from tuner.session.auto.model import Try

#: Free VRAM more at ready, for each server that ran out of memory while it served.
_SERVING_STEP_GIB = 1.0
#: Free VRAM more at the lowest point, for each start that ran out of memory while pools were allocated.
_POOLS_STEP_GIB = 0.5
#: Answer tokens more that are planned for after a retraction, for each request.
_RETRACTION_TOKENS = 256
#: A plan stands on rounded numbers: what it is asked to keep free more, and tokens a request more.
_GUARD_GIB, _GUARD_TOKENS = 0.03, 16
#: Weights whose size nobody has printed yet may be off by this share of them (layers left in 16 bits, padding).
_WEIGHTS_BAR = 0.08
#: Free VRAM more that a first start is given where the need allows it.
_CAUTION_GIB = 1.0
#: What a start that is known to come near to its end may change to stay away from it.
_FRACTION = frozenset({"mem_fraction_static"})
#: How much larger than what is proved the graphs are taken to be, boldest last.
_GRAPHS_STEPS = (1.8, 1.3, 1.05)

#: Causes that another split of the memory may mend.
OF_MEMORY = frozenset(
    {
        FindingId.NO_ROOM_AT_SIZING,
        FindingId.SLOTS_NEGATIVE,
        FindingId.OOM_IN_POOLS,
        FindingId.OOM_IN_CAPTURE,
        FindingId.OOM_WHILE_SERVING,
    }
)


def evidence(tries: Sequence[Try]) -> BootFacts | None:
    """The newest log that tells the weights but came to no pools; None once a start came to its pools.

    Such a log calibrates no plan by itself, and yet it says what the card has left.
    """
    for tried in reversed(tries):
        facts = tried.boot
        if facts is None or facts.free_before_gib is None or facts.free_after_gib is None:
            continue
        return facts if facts.kv_tokens is None else None
    return None


def weights_told(inputs: PlanInputs) -> bool:
    """Whether a log (or the operator) has told what the weights take."""
    return inputs.free_after.source in (Source.BOOT_LOG, Source.OPERATOR)


def graphs_told(inputs: PlanInputs) -> bool:
    """Whether a log has told what the graphs take."""
    return inputs.graphs_gib is not None


def at_best(inputs: PlanInputs, tries: Sequence[Try]) -> PlanInputs:
    """``inputs`` with everything that is only estimated at the end of its error bar that gives the most memory."""
    if not weights_told(inputs):
        more = _WEIGHTS_BAR * (inputs.free_before.gib - inputs.free_after.gib)
        draft = inputs.draft_weights
        inputs = msgspec.structs.replace(
            inputs,
            free_after=Sourced(inputs.free_after.gib + more, Source.ESTIMATE),
            draft_weights=None if draft is None else Sourced(draft.gib * (1 - _WEIGHTS_BAR), Source.ESTIMATE),
            startup_loss_gib=0.0,
        )
    if not graphs_told(inputs):
        # Without a capture that failed nothing is known: none may be needed.
        none = msgspec.structs.replace(inputs, graphs_gib=0.0, graphs_guess_gib=None, runtime_gib=0.0)
        inputs = _with_graphs(none, tries, 1.0)
    return inputs


class Care(msgspec.Struct, frozen=True, kw_only=True):
    """One way to plan: with these inputs, for this need, which is more than what is asked.

    ``optional``: only worth it where it takes no more changes of flags than the ways that are not, those of flags in
    ``beside`` not counted.
    """

    inputs: PlanInputs
    need: Need
    optional: bool = False
    beside: frozenset[str] = frozenset()

    def worth(self, own: Collection[str], others: Collection[str]) -> bool:
        """Whether its own changes are worth it beside those of another way."""
        return len(set(own) - self.beside) <= len(set(others) - self.beside)


def cares(
    inputs: PlanInputs, need: Need, headroom_gib: float, tries: Sequence[Try], keep: Sequence[str] = ()
) -> Iterator[Care]:
    """Ways to plan the next start, the most careful first; the first that meets its need is taken.

    The last one of a plan in which weights and graphs are told is the need itself: when that is not met, it cannot be.
    """
    inputs = msgspec.structs.replace(inputs, capture_peak=CAPTURE_PEAK)
    need = _after_shortfalls(need, headroom_gib, tries)
    wanted = need.headroom_gib or 0.0
    guarded = msgspec.structs.replace(
        need, headroom_gib=wanted + _GUARD_GIB, output_tokens=need.output_tokens + _GUARD_TOKENS
    )
    if graphs_told(inputs):
        # Prefill graphs that no log has told are left out: with them less is free, and nobody knows how much.
        told = inputs if inputs.prefill_graphs_gib else _without_prefill_graphs(inputs, keep)
        yield Care(inputs=told, need=_with_air(guarded), optional=True, beside=_FRACTION)
        yield Care(inputs=told, need=guarded)
        yield Care(inputs=told, need=need)
    elif _failed_captures(tries):
        for step in _GRAPHS_STEPS:
            yield Care(inputs=_with_graphs(inputs, tries, step), need=guarded)
    else:
        caution = msgspec.structs.replace(guarded, headroom_gib=wanted + _CAUTION_GIB)
        yield Care(inputs=inputs, need=_with_air(caution), optional=True)
        yield Care(inputs=inputs, need=_with_air(guarded), optional=True)
        yield Care(inputs=inputs, need=guarded)


def _with_air(need: Need) -> Need:
    """The need of a start that never comes as near to its end as none was seen to come up from."""
    return msgspec.structs.replace(need, least_free_gib=need.least_free_gib + LEAST_FREE_GIB)


def _without_prefill_graphs(inputs: PlanInputs, keep: Sequence[str]) -> PlanInputs:
    resolved = resolve(msgspec.structs.replace(inputs, flags={"mem_fraction_static": 0.9} | inputs.flags))
    if not resolved.defaults.sizes.prefill:
        return inputs
    off = prefill_graphs_off(resolved)
    if any(name.startswith(kept) for name in off for kept in keep):
        return inputs
    return msgspec.structs.replace(inputs, flags=inputs.flags | off)


def _after_shortfalls(need: Need, headroom_gib: float, tries: Sequence[Try]) -> Need:
    """The need with what servers lacked that were planned to meet it."""
    served_out = sum(t.cause is not None and t.cause.id is FindingId.OOM_WHILE_SERVING for t in tries)
    full = sum(t.cause is not None and t.cause.id is FindingId.OOM_IN_POOLS for t in tries)
    retracted = sum(t.proof is not None and bool(t.proof.retracted) for t in tries)
    return msgspec.structs.replace(
        need,
        headroom_gib=headroom_gib + served_out * _SERVING_STEP_GIB,
        output_tokens=need.output_tokens + retracted * _RETRACTION_TOKENS,
        least_free_gib=need.least_free_gib + full * _POOLS_STEP_GIB,
    )


def _failed_captures(tries: Sequence[Try]) -> list[Try]:
    return [
        tried
        for tried in tries
        if tried.cause is not None
        and tried.cause.id is FindingId.OOM_IN_CAPTURE
        and tried.boot is not None
        and tried.boot.free_before_graphs_gib is not None
    ]


def _at_least(tried: Try, step: float) -> tuple[float, float]:
    """(all graphs, prefill graphs) in GiB after a capture that ran out of memory.

    What was captured is known. The part that died needed more at its peak than was free before it: it is taken to be
    ``step`` times what that proves.
    """
    assert tried.boot is not None and tried.boot.free_before_graphs_gib is not None
    captured = sum(tried.boot.graphs_gib.values())
    died = step * max(0.0, tried.boot.free_before_graphs_gib - captured) / CAPTURE_PEAK
    prefill = tried.boot.graphs_gib.get("prefill", 0.0)
    if not captured and prefill_graphs(tried):
        prefill = died
    return captured + died, prefill


def prefill_graphs(tried: Try) -> bool:
    """Whether prefill graphs were asked for: they are captured first."""
    return tried.flags.get("cuda_graph_backend_prefill") != "disabled" and not tried.flags.get(
        "disable_piecewise_cuda_graph"
    )


def _with_graphs(inputs: PlanInputs, tries: Sequence[Try], step: float) -> PlanInputs:
    """``inputs`` with what failed captures prove of the graphs, times ``step``; as they are when none failed."""
    failed = _failed_captures(tries)
    if not failed:
        return inputs
    proved = [_at_least(tried, step) for tried in failed]
    prefill = max(part for _, part in proved)
    others = [total for total, part in proved if not part] or [0.0]
    return msgspec.structs.replace(
        inputs,
        graphs_gib=max(max(total for total, part in proved if part) if prefill else 0.0, max(others)),
        graphs_guess_gib=None,
        prefill_graphs_gib=prefill,
        prefill_graphs_guess_gib=None,
    )
