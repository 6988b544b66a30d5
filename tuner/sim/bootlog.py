"""The lines of a start of SGLang 0.5.17, in its order and spelling, with the time and memory each one takes.

Pure: a script of steps, which ``startup`` plays. Seconds are those of the recorded 27B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tuner.modelcard import Family
from tuner.planner.model import GIB
from tuner.serverlog.model import Phase
from tuner.sim import tracebacks
from tuner.sim.faults import Fault, Faults
from tuner.sim.journal import Line, Output, Raw
from tuner.sim.model import Model
from tuner.sim.sizing import Memory, Pools, Setup

_KV_DTYPES = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "bf16": "bfloat16", "fp16": "float16"}


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


class Died(Exception):
    """The start ends here; ``out`` is the error."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self.out = out


def server_args_line(values: dict[str, Any]) -> str:
    """``server_args=ServerArgs(...)``; keys of the API are msetup, since this file is the tuner's to keep."""
    shown = {k: "***" if k in ("api_key", "admin_api_key") and v else v for k, v in values.items()}
    return f"server_args=ServerArgs({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


def line_of(phase: Phase, text: str, seconds: float = 0.0, used: float | None = None) -> Step:
    """One logged line; ``used``: GiB held then."""
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
    yield line_of(launching, "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit", 1.0)
    yield line_of(launching, server_args_line(values))
    yield line_of(launching, "Using default HuggingFace chat template with detected content format: string", 0.8)
    yield line_of(
        launching,
        "Auto-detected template features: reasoning_config=ReasoningToggleConfig(toggle_param='enable_thinking', "
        "default_enabled=True, special_case=None, effort_kwarg=None), reasoning_parser=qwen3, tool_call_parser=qwen",
    )
    yield line_of(launching, "Init torch distributed begin.", 16.8)
    used = memory.at_start - memory.after_context
    yield line_of(launching, "Init torch distributed ends. elapsed=0.02 s, mem usage=0.09 GB", 0.02, used)
    yield line_of(
        launching, "Ignore import error when loading sglang.srt.models.inkling: No module named 'helion'", 0.2
    )


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
    yield line_of(
        loading, f"Load weight begin. avail mem={memory.before_weights:.2f} GB", 0.7, start - memory.before_weights
    )
    if fp8:
        yield line_of(loading, "Detected fp8 checkpoint.")
    if model.output_gate:
        yield line_of(loading, "using attn output gate!")
    yield from _trouble_while_loading(faults)
    for part in (1, 2, 3):
        held = start - memory.before_weights + part / 4 * (memory.before_weights - memory.after_weights)
        if held > start:
            raise Died(tracebacks.oom_while_loading(0.17, start - held, memory.card_gib, others_gib))
        yield Step(phase=loading, seconds=0.15, used_gib=held)
    if memory.after_weights < 0:
        raise Died(tracebacks.oom_while_loading(0.17, 0.05, memory.card_gib, others_gib))
    if fp8_kv:
        yield line_of(loading, scales)
    yield line_of(
        loading,
        f"Load weight end. elapsed=0.45 s, type={model.shape.architecture}, {model.quantization}avail "
        f"mem={memory.after_weights:.2f} GB, mem usage={memory.before_weights - memory.after_weights:.2f} GB.",
        used=start - memory.after_weights,
    )
    if not setup.draft_model:
        return
    yield line_of(loading, "Init torch distributed begin.")
    yield line_of(loading, "Init torch distributed ends. elapsed=0.00 s, mem usage=0.00 GB")
    yield line_of(loading, f"Load weight begin. avail mem={memory.after_weights:.2f} GB")
    if fp8:
        yield line_of(loading, "Detected fp8 checkpoint.")
    if fp8_kv:
        yield line_of(loading, scales)
    if memory.after_draft < 0:
        raise Died(tracebacks.oom_while_loading(0.17, memory.after_weights, memory.card_gib, others_gib))
    yield line_of(
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
        yield line_of(sizing, pools.cap_line)
    if pools.unified_bytes:
        yield from _one_buffer(setup, pools, start)
    elif plan.mamba_slots > 0:
        speculative = (
            f"intermediate_ssm_state_cache size: {pools.spec_ssm_gib:.2f}GB "
            f"intermediate_conv_window_cache size: {pools.spec_conv_gib:.2f}GB "
            if setup.speculative
            else ""
        )
        yield line_of(
            sizing,
            f"Mamba Cache is allocated. max_mamba_cache_size: {plan.mamba_slots}, conv_state size: "
            f"{pools.conv_gib:.2f}GB, ssm_state size: {pools.ssm_gib:.2f}GB {speculative}",
            0.3,
            start - pools.free_after_pools - pools.kv_gib,
        )
    if pools.free_after_pools < 0:
        raise Died(tracebacks.oom_while_loading(pools.kv_gib, 0.0, memory.card_gib, others_gib))
    if not pools.unified_bytes:
        yield line_of(sizing, _kv_line(model, setup, plan.kv_tokens, pools.kv_gib), 0.1, start - pools.free_after_pools)
    yield line_of(sizing, f"Memory pool end. avail mem={pools.free_after_pools:.2f} GB")
    if setup.draft_model:
        if pools.free_after_draft_pools < 0:
            raise Died(
                tracebacks.oom_while_loading(pools.draft_kv_gib, pools.free_after_pools, memory.card_gib, others_gib)
            )
        yield line_of(
            sizing,
            _kv_line(model, setup, plan.kv_tokens, pools.draft_kv_gib),
            used=start - pools.free_after_draft_pools,
        )
        yield line_of(sizing, f"Memory pool end. avail mem={pools.free_after_draft_pools:.2f} GB")
    if plan.mamba_slots > 0:
        kind = "KDA" if model.shape.family is Family.KDA else "GDN"
        for _ in range(2 if setup.draft_model else 1):
            yield line_of(sizing, "Linear attention kernel backend: decode=triton, prefill=triton, verify=triton")
            yield line_of(sizing, "Using hybrid linear attention backend for hybrid GDN models.")
            yield line_of(
                sizing,
                f"{kind} kernel dispatcher: decode=Triton{kind}Kernel, extend=Triton{kind}Kernel, "
                f"verify=Triton{kind}Kernel packed_decode=True",
            )


def _one_buffer(setup: Setup, pools: Pools, start: float) -> Iterator[Step]:
    """Unified memory: the whole buffer counted in KV entries, and the pools that requests may use."""
    sizing, total, plan = Phase.SIZING, pools.unified_bytes, pools.plan
    entry = setup.resolved.token.target
    mark = "[unified-memory-pool]"
    drafts = setup.draft_tokens or None
    yield line_of(
        sizing,
        f"{mark} UnifiedKVPool allocated: total_bytes={total / GIB:.2f} GB (={total} B), 2 sub-pool(s)",
        0.1,
        start - pools.free_after_pools,
    )
    yield line_of(
        sizing,
        f"KV Cache is allocated. dtype: torch.uint8, #tokens: {int(total // entry) - 1}, K size: 0.00 GB, "
        "V size: 0.00 GB",
    )
    yield line_of(sizing, f"{mark} UNIFIED MEMORY POOL ENABLED -- path=Mamba hybrid (MHA full side)")
    yield line_of(
        sizing,
        f"{mark}   total_bytes={total}, max_total_num_tokens={plan.kv_tokens}, "
        f"max_mamba_cache_size={plan.mamba_slots}, max_num_reqs={plan.max_running_requests}, "
        f"speculative_num_draft_tokens={drafts}",
    )
    ratio = setup.resolved.defaults.ratio
    yield line_of(
        sizing, f"{mark}   mamba_full_memory_ratio={ratio:g} governs the total budget only, not the runtime split."
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


def summary(setup: Setup, pools: Pools, timings: Timings, free_gib: float) -> Iterator[Step]:
    """The capacity line, the tree, the timings."""
    phase = Phase.CAPTURING
    plan = pools.plan
    hybrid = plan.mamba_slots > 0
    yield line_of(
        phase,
        f"max_total_num_tokens={plan.kv_tokens}, chunked_prefill_size={setup.chunk}, "
        f"max_prefill_tokens={setup.resolved.asked.max_prefill_tokens}, "
        f"max_running_requests={plan.max_running_requests}, "
        f"context_len={plan.context_len}, available_gpu_mem={free_gib:.2f} GB",
    )
    if hybrid and setup.resolved.strategy.radix:
        yield line_of(
            phase,
            "Init Unified RadixTree with components (<ComponentType.FULL: 0>, <ComponentType.MAMBA: 2>)",
        )
    impl = "ChunkCache" if not setup.resolved.strategy.radix else "UnifiedRadixCache" if hybrid else "RadixCache"
    yield line_of(
        phase,
        f"Tree cache initialized: source=default impl={impl} hybrid_swa=False hybrid_ssm={hybrid} hierarchical=False "
        "streaming_wrapped=False",
    )
    graphs = ", ".join(f"{part}={seconds:.2f}" for part, seconds in timings.cuda_graph.items())
    yield line_of(
        phase,
        f"Engine startup timings (s): load_weight={timings.load_weight:.2f}, "
        f"kv_cache_allocation={timings.kv_cache_allocation:.2f}, scheduler_e2e={timings.scheduler_e2e:.2f}, "
        f"cuda_graph={{{graphs}}}, tokenizer_e2e={timings.tokenizer_e2e:.2f}",
        0.3,
    )
