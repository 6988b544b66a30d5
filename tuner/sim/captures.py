"""The captures of CUDA graphs: their lines and progress bars, the time and the memory each one takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tuner.planner.model import CAPTURE_PEAK
from tuner.serverlog.model import Phase
from tuner.sim import bars, tracebacks
from tuner.sim.bootlog import Died, Step, line_of
from tuner.sim.faults import Fault, Faults
from tuner.sim.journal import Line, Output, Raw
from tuner.sim.model import Model
from tuner.sim.sizing import GraphPlan, Setup

_PREFILL_OFF = (
    "Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled' (e.g. via "
    "--cuda-graph-backend-prefill=disabled or auto-disable rules)."
)
_UNTUNED = (
    "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at "
    "/opt/sglang/lib/sglang/kernels/ops/quantization/configs/N={n},K={k},device_name=Simulated,dtype=fp8_w8a8,"
    "block_shape=[128, 128].json"
)
GRAPH_PARTS = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")


class _Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One capture loop."""

    part: str
    name: str
    label: str
    begin: str
    sizes: tuple[int, ...]
    gib: float
    seconds: float
    #: Printed in the middle of the first bar, without an end of line before it.
    glued: tuple[Output, ...] = ()


def _captures(model: Model, setup: Setup, graphs: GraphPlan) -> list[_Capture]:
    captures = []
    if graphs.prefill_sizes:
        fp8 = "fp8" in model.quantization
        width = model.shape.hidden_size
        glued: tuple[Output, ...] = ()
        if fp8:
            glued = tuple(Line(_UNTUNED.format(n=n, k=k)) for n, k in ((16384, width), (width, 6144), (34816, width)))
        captures.append(
            _Capture(
                part="prefill",
                name="target prefill",
                label="num tokens (num_tokens",
                begin=f"backend=breakable, num_tokens={list(graphs.prefill_sizes)}",
                sizes=graphs.prefill_sizes,
                gib=graphs.prefill_gib,
                seconds=0.564 * len(graphs.prefill_sizes),
                glued=glued,
            )
        )
    if graphs.decode_sizes:
        part = "target_verify" if setup.speculative else "decode"
        per_request = setup.draft_tokens if setup.speculative else 1
        begin = f"backend=full, num_tokens_per_req={per_request}, bs={list(graphs.decode_sizes)}"
        captures.append(
            _Capture(
                part=part,
                name="target verify" if setup.speculative else "target decode",
                label="batches (bs",
                begin=begin,
                sizes=graphs.decode_sizes,
                gib=graphs.decode_gib,
                seconds=4.0 + 0.7 * len(graphs.decode_sizes),
            )
        )
        if setup.draft_model:
            captures.append(
                _Capture(
                    part="draft_extend",
                    name="draft extend",
                    label="batches (bs",
                    begin=begin,
                    sizes=graphs.decode_sizes,
                    gib=graphs.draft_gib,
                    seconds=0.8 + 0.1 * len(graphs.decode_sizes),
                )
            )
    return captures


def capture_graphs(model: Model, setup: Setup, graphs: GraphPlan, faults: Faults, others_gib: float) -> Iterator[Step]:
    """Captures, each with its progress bar. Raises Died when one runs out of memory."""
    capturing = Phase.CAPTURING
    memory, free = setup.memory, graphs.free_before
    start = memory.at_start
    wanted = bool(setup.resolved.defaults.sizes.prefill)
    yield Step(phase=capturing, used_gib=start - free)
    if not wanted:
        for _ in range(2 if setup.draft_model else 1):
            yield line_of(capturing, _PREFILL_OFF)
    elif graphs.prefill_skipped:
        yield line_of(
            capturing,
            f"Disabling auto-selected prefill CUDA graph: only {free:.2f} GiB is free after model/KV/eager-buffer "
            "allocation; at least 4.00 GiB is required for capture.",
        )
    for capture in _captures(model, setup, graphs):
        if capture.part == "draft_extend" and wanted:
            yield line_of(capturing, "Disable prefill CUDA graph because some layers do not apply Standard GQA")
        lowest = free - capture.gib * CAPTURE_PEAK
        yield line_of(capturing, f"Capture {capture.name} CUDA graph begin. {capture.begin}, avail mem={free:.2f} GB")
        count = len(capture.sizes)
        shown = [free] + [free - (free - lowest) * (0.7 + 0.3 * n / count) for n in range(1, count)]
        frames = list(bars.capture_frames(capture.label, capture.sizes, shown, capture.seconds))
        yield Step(phase=capturing, out=(Raw(frames[0]), *capture.glued))
        if faults.has(Fault.OOM_IN_CAPTURE) or lowest < 0:
            yield Step(phase=capturing, seconds=capture.seconds / count, used_gib=start - max(0.0, lowest))
            raise Died(tracebacks.oom_in_capture(capture.gib / 2, max(0.02, lowest), memory.card_gib, others_gib))
        for n, text in enumerate(frames[1:]):
            held = start - shown[min(n + 1, count - 1)]
            yield Step(phase=capturing, out=(Raw(text),), seconds=capture.seconds / count, used_gib=held)
        free -= capture.gib
        yield line_of(
            capturing,
            f"Capture {capture.name} CUDA graph end. elapsed={capture.seconds:.2f} s, mem usage={capture.gib:.2f} GB, "
            f"avail mem={free:.2f} GB.",
            used=start - free,
        )


def graph_seconds(model: Model, setup: Setup, graphs: GraphPlan) -> dict[str, float]:
    """Capture seconds by part; parts that are not captured are 0."""
    taken = {capture.part: capture.seconds for capture in _captures(model, setup, graphs)}
    return {part: taken.get(part, 0.0) for part in GRAPH_PARTS}


def graph_gib(setup: Setup, graphs: GraphPlan) -> dict[str, float]:
    """Graph memory by part in GiB; parts that are not captured are 0."""
    sizes = dict.fromkeys(GRAPH_PARTS, 0.0)
    sizes["prefill"] = graphs.prefill_gib
    sizes["target_verify" if setup.speculative else "decode"] = graphs.decode_gib
    sizes["draft_extend"] = graphs.draft_gib
    return sizes
