"""The lines of a start of SGLang 0.5.17, in its order and spelling, with the time and memory each one takes.

Pure: a script of steps, which ``startup`` plays. Seconds are those of the recorded 27B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tuner.modelcard import Family
from tuner.planner.model import CAPTURE_PEAK
from tuner.serverlog.model import Phase
from tuner.sim import bars, tracebacks
from tuner.sim.faults import Fault, Faults
from tuner.sim.journal import Line, Output, Raw
from tuner.sim.model import Model
from tuner.sim.sizing import GraphPlan, Memory, Pools, Setup

_KV_DTYPES = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "bf16": "bfloat16", "fp16": "float16"}
_PREFILL_OFF = (
    "Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled' (e.g. via "
    "--cuda-graph-backend-prefill=disabled or auto-disable rules)."
)
_UNTUNED = (
    "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at "
    "/opt/sglang/lib/sglang/kernels/ops/quantization/configs/N={n},K={k},device_name=Simulated,dtype=fp8_w8a8,"
    "block_shape=[128, 128].json"
)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """After ``seconds`` the outputs are printed and ``used_gib`` of the card are held (None: as before)."""

    phase: Phase
    out: tuple[Output, ...] = ()
    seconds: float = 0.0
    used_gib: float | None = None


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by phase as "Engine startup timings" gives them."""

    load_weight: float
    kv_cache_allocation: float
    scheduler_e2e: float
    cuda_graph: dict[str, float]
    tokenizer_e2e: float


GRAPH_PARTS = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")


class Died(Exception):
    """The start ends here; ``out`` is the error."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self.out = out


def server_args_line(values: dict[str, Any]) -> str:
    """``server_args=ServerArgs(...)``; keys of the API are msetup, since this file is the tuner's to keep."""
    shown = {k: "***" if k in ("api_key", "admin_api_key") and v else v for k, v in values.items()}
    return f"server_args=ServerArgs({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


def _line(phase: Phase, text: str, seconds: float = 0.0, used: float | None = None) -> Step:
    return Step(phase=phase, out=(Line(text),), seconds=seconds, used_gib=used)


def before_weights(values: dict[str, Any], memory: Memory) -> Iterator[Step]:
    """From the first line to "Init torch distributed ends"."""
    launching = Phase.LAUNCHING
    yield Step(
        phase=launching,
        out=(
            Raw("SIMULATED SGLang 0.5.17: tuner.sim stands in for a server; no GPU, no model, made-up answers.\n"),
            Line(
                "Multimodal feature transport auto-resolved to cuda_ipc (single-node CUDA). Pass "
                "--mm-feature-transport=cpu to opt out."
            ),
        ),
    )
    yield _line(launching, "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit", 1.0)
    yield _line(launching, server_args_line(values))
    yield _line(launching, "Using default HuggingFace chat template with detected content format: string", 0.8)
    yield _line(
        launching,
        "Auto-detected template features: reasoning_config=ReasoningToggleConfig(toggle_param='enable_thinking', "
        "default_enabled=True, special_case=None, effort_kwarg=None), reasoning_parser=qwen3, tool_call_parser=qwen",
    )
    yield _line(launching, "Init torch distributed begin.", 16.8)
    used = memory.at_start - memory.after_context
    yield _line(launching, "Init torch distributed ends. elapsed=0.02 s, mem usage=0.09 GB", 0.02, used)
    yield _line(launching, "Ignore import error when loading sglang.srt.models.inkling: No module named 'helion'", 0.2)


def load_weights(model: Model, setup: Setup, faults: Faults, others_gib: float) -> Iterator[Step]:
    """Weights of the target, then of the draft. Raises Died when they do not fit."""
    loading = Phase.LOADING
    memory = setup.memory
    start = memory.at_start
    fp8_kv = setup.kv_dtype.startswith("fp8")
    fp8 = "fp8" in model.quantization
    scales = (
        "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0. "
        "This may lead to less accurate results!"
    )
    if memory.before_weights < 0:
        raise Died(tracebacks.oom_while_loading(0.6, memory.at_start, memory.card_gib, others_gib))
    yield _line(
        loading, f"Load weight begin. avail mem={memory.before_weights:.2f} GB", 0.7, start - memory.before_weights
    )
    if fp8:
        yield _line(loading, "Detected fp8 checkpoint.")
    if model.output_gate:
        yield _line(loading, "using attn output gate!")
    yield from _trouble_while_loading(faults)
    for part in (1, 2, 3):
        held = start - memory.before_weights + part / 4 * (memory.before_weights - memory.after_weights)
        if held > start:
            raise Died(tracebacks.oom_while_loading(0.17, start - held, memory.card_gib, others_gib))
        yield Step(phase=loading, seconds=0.15, used_gib=held)
    if memory.after_weights < 0:
        raise Died(tracebacks.oom_while_loading(0.17, 0.05, memory.card_gib, others_gib))
    if fp8_kv:
        yield _line(loading, scales)
    yield _line(
        loading,
        f"Load weight end. elapsed=0.45 s, type={model.shape.architecture}, {model.quantization}avail "
        f"mem={memory.after_weights:.2f} GB, mem usage={memory.before_weights - memory.after_weights:.2f} GB.",
        used=start - memory.after_weights,
    )
    if not setup.draft_model:
        return
    yield _line(loading, "Init torch distributed begin.")
    yield _line(loading, "Init torch distributed ends. elapsed=0.00 s, mem usage=0.00 GB")
    yield _line(loading, f"Load weight begin. avail mem={memory.after_weights:.2f} GB")
    if fp8:
        yield _line(loading, "Detected fp8 checkpoint.")
    if fp8_kv:
        yield _line(loading, scales)
    if memory.after_draft < 0:
        raise Died(tracebacks.oom_while_loading(0.17, memory.after_weights, memory.card_gib, others_gib))
    yield _line(
        loading,
        f"Load weight end. elapsed=0.02 s, type={model.shape.architecture}MTP, {model.quantization}avail "
        f"mem={memory.after_draft:.2f} GB, mem usage={memory.after_weights - memory.after_draft:.2f} GB.",
        0.02,
        start - memory.after_draft,
    )


def _trouble_while_loading(faults: Faults) -> Iterator[Step]:
    lines = faults.number(Fault.FLOOD_LOG)
    if lines is not None:
        for first in range(0, int(lines), 500):
            block = "".join(
                f"[weights] shard {n:06d}: mapped, checked, copied\n"
                for n in range(first, min(first + 500, int(lines)))
            )
            yield Step(phase=Phase.LOADING, out=(Raw(block),))
    megabytes = faults.number(Fault.LONG_LINE)
    if megabytes is not None:
        for _ in range(int(megabytes * 16)):
            yield Step(phase=Phase.LOADING, out=(Raw("x" * 65536),))
        yield Step(phase=Phase.LOADING, out=(Raw("\n"),))


def allocate_pools(model: Model, setup: Setup, pools: Pools, others_gib: float) -> Iterator[Step]:
    """Both pools, and the draft's. Raises Died when a pool is planned that the card cannot hold."""
    sizing = Phase.SIZING
    memory, plan = setup.memory, pools.plan
    start = memory.at_start
    if pools.cap_line:
        yield _line(sizing, pools.cap_line)
    if plan.mamba_slots > 0:
        speculative = (
            f"intermediate_ssm_state_cache size: {pools.spec_ssm_gib:.2f}GB "
            f"intermediate_conv_window_cache size: {pools.spec_conv_gib:.2f}GB "
            if setup.speculative
            else ""
        )
        yield _line(
            sizing,
            f"Mamba Cache is allocated. max_mamba_cache_size: {plan.mamba_slots}, conv_state size: "
            f"{pools.conv_gib:.2f}GB, ssm_state size: {pools.ssm_gib:.2f}GB {speculative}",
            0.3,
            start - pools.free_after_pools - pools.kv_gib,
        )
    if pools.free_after_pools < 0:
        raise Died(tracebacks.oom_while_loading(pools.kv_gib, 0.0, memory.card_gib, others_gib))
    yield _line(sizing, _kv_line(model, setup, plan.kv_tokens, pools.kv_gib), 0.1, start - pools.free_after_pools)
    yield _line(sizing, f"Memory pool end. avail mem={pools.free_after_pools:.2f} GB")
    if setup.draft_model:
        if pools.free_after_draft_pools < 0:
            raise Died(
                tracebacks.oom_while_loading(pools.draft_kv_gib, pools.free_after_pools, memory.card_gib, others_gib)
            )
        yield _line(
            sizing,
            _kv_line(model, setup, plan.kv_tokens, pools.draft_kv_gib),
            used=start - pools.free_after_draft_pools,
        )
        yield _line(sizing, f"Memory pool end. avail mem={pools.free_after_draft_pools:.2f} GB")
    if plan.mamba_slots > 0:
        kind = "KDA" if model.shape.family is Family.KDA else "GDN"
        for _ in range(2 if setup.draft_model else 1):
            yield _line(sizing, "Linear attention kernel backend: decode=triton, prefill=triton, verify=triton")
            yield _line(sizing, "Using hybrid linear attention backend for hybrid GDN models.")
            yield _line(
                sizing,
                f"{kind} kernel dispatcher: decode=Triton{kind}Kernel, extend=Triton{kind}Kernel, "
                f"verify=Triton{kind}Kernel packed_decode=True",
            )


def _kv_line(model: Model, setup: Setup, tokens: int, gib: float) -> str:
    dtype = _KV_DTYPES.get(setup.kv_dtype, setup.kv_dtype)
    if model.shape.mla_width:
        return f"KV Cache is allocated. dtype: torch.{dtype}, #tokens: {tokens}, KV size: {gib:.2f} GB"
    widths = model.shape.head_dim + model.shape.v_head_dim
    k_gib = gib * model.shape.head_dim / widths
    v_gib = gib * model.shape.v_head_dim / widths
    return (
        f"KV Cache is allocated. dtype: torch.{dtype}, #tokens: {tokens}, K size: {k_gib:.2f} GB, "
        f"V size: {v_gib:.2f} GB"
    )


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
            yield _line(capturing, _PREFILL_OFF)
    elif graphs.prefill_skipped:
        yield _line(
            capturing,
            f"Disabling auto-selected prefill CUDA graph: only {free:.2f} GiB is free after model/KV/eager-buffer "
            "allocation; at least 4.00 GiB is required for capture.",
        )
    for capture in _captures(model, setup, graphs):
        if capture.part == "draft_extend" and wanted:
            yield _line(capturing, "Disable prefill CUDA graph because some layers do not apply Standard GQA")
        lowest = free - capture.gib * CAPTURE_PEAK
        yield _line(capturing, f"Capture {capture.name} CUDA graph begin. {capture.begin}, avail mem={free:.2f} GB")
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
        yield _line(
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


def summary(setup: Setup, pools: Pools, timings: Timings, free_gib: float) -> Iterator[Step]:
    """The capacity line, the tree, the timings."""
    phase = Phase.CAPTURING
    plan = pools.plan
    hybrid = plan.mamba_slots > 0
    yield _line(
        phase,
        f"max_total_num_tokens={plan.kv_tokens}, chunked_prefill_size={setup.chunk}, "
        f"max_prefill_tokens={setup.resolved.asked.max_prefill_tokens}, "
        f"max_running_requests={plan.max_running_requests}, "
        f"context_len={plan.context_len}, available_gpu_mem={free_gib:.2f} GB",
    )
    if hybrid and setup.resolved.strategy.radix:
        yield _line(
            phase,
            "Init Unified RadixTree with components (<ComponentType.FULL: 0>, <ComponentType.MAMBA: 2>)",
        )
    impl = "ChunkCache" if not setup.resolved.strategy.radix else "UnifiedRadixCache" if hybrid else "RadixCache"
    yield _line(
        phase,
        f"Tree cache initialized: source=default impl={impl} hybrid_swa=False hybrid_ssm={hybrid} hierarchical=False "
        "streaming_wrapped=False",
    )
    graphs = ", ".join(f"{part}={seconds:.2f}" for part, seconds in timings.cuda_graph.items())
    yield _line(
        phase,
        f"Engine startup timings (s): load_weight={timings.load_weight:.2f}, "
        f"kv_cache_allocation={timings.kv_cache_allocation:.2f}, scheduler_e2e={timings.scheduler_e2e:.2f}, "
        f"cuda_graph={{{graphs}}}, tokenizer_e2e={timings.tokenizer_e2e:.2f}",
        0.3,
    )
