"""What a start gives: the planner's pools on the hidden truth, and what each part really takes of the card.

Flags are resolved and pools are sized by ``tuner.planner`` alone; this module splits them as the log prints them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tuner.planner.cells import kv_dtype
from tuner.planner.forward import plan_of
from tuner.planner.graphs import captured_sizes
from tuner.planner.model import GIB, Plan, PlanInputs, Source, Sourced
from tuner.planner.pools import admitted_requests, split_states
from tuner.planner.resolve import Resolved, resolve
from tuner.sim.cache import CacheShape, Keeping
from tuner.sim.faults import Fault
from tuner.sim.flags import VERSION, Options
from tuner.sim.hardware import PREFILL_GRAPHS_WANT_GIB
from tuner.sim.model import Model

_MIB = 1 << 20
#: What a forced refusal pretends is left for the pools (the recorded refusal), GiB.
_FORCED_REST_GIB = -1.81
#: The planner wants some memory to resolve flags with, also where the weights will not fit.
_LEAST_GIB = 0.01


class Refused(Exception):
    """The pools cannot be had; the message is the error of the log, ``where`` the function that raised it."""

    def __init__(self, message: str, where: Literal["mamba", "budget", "requests"]) -> None:
        super().__init__(message)
        self.where = where


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Free GiB along the start, before sizing."""

    card_gib: float
    at_start: float
    after_context: float
    before_weights: float
    after_weights: float
    after_draft: float


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """Allocated sizes in GiB, and the plan they belong to."""

    plan: Plan
    kept_states: CacheShape
    conv_gib: float
    ssm_gib: float
    spec_ssm_gib: float
    spec_conv_gib: float
    kv_gib: float
    draft_kv_gib: float
    free_after_pools: float
    free_after_draft_pools: float
    #: The warning about fewer requests than asked, or None.
    cap_line: str | None
    #: Bytes of the one buffer with unified memory; 0 without.
    unified_bytes: int = 0


class GraphPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What will be captured; sizes in GiB, and free memory before the first capture."""

    free_before: float
    prefill_gib: float
    prefill_sizes: tuple[int, ...]
    #: Prefill graphs are left out for want of memory (nobody asked for them).
    prefill_skipped: bool
    decode_gib: float
    decode_sizes: tuple[int, ...]
    draft_gib: float

    @property
    def total_gib(self) -> float:
        """All graphs together."""
        return self.prefill_gib + self.decode_gib + self.draft_gib


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Flags as resolved for this card, and the memory the start has."""

    resolved: Resolved
    memory: Memory
    warmup: bool

    @property
    def speculative(self) -> bool:
        """Whether drafts are verified."""
        return self.resolved.asked.speculation is not None

    @property
    def draft_model(self) -> bool:
        """Whether a draft has weights of its own."""
        speculation = self.resolved.asked.speculation
        return speculation is not None and speculation.loads_weights

    @property
    def draft_tokens(self) -> int:
        """Tokens verified per step and request; 0 without speculation."""
        return self.resolved.asked.speculation.draft_tokens if self.resolved.asked.speculation else 0

    @property
    def draft_steps(self) -> int:
        """Steps of the draft; 0 without speculation."""
        return self.resolved.asked.speculation.steps if self.resolved.asked.speculation else 0

    @property
    def unified(self) -> bool:
        """Whether both pools are one buffer."""
        return self.resolved.asked.unified_memory

    @property
    def kernel_missing(self) -> bool:
        """Whether the first forward dies: one buffer keeps 8-bit KV as bytes, which Triton's kernel does not multiply
        (recorded, 0.5.17)."""
        return self.unified and self.kv_dtype.startswith("fp8")

    @property
    def chunk(self) -> int:
        """Tokens of a prefill batch; chunking off means one batch of ``max_prefill_tokens``."""
        size = self.resolved.defaults.chunked_prefill_size
        return size if size > 0 else self.resolved.asked.max_prefill_tokens

    @property
    def kv_dtype(self) -> str:
        """Number format of the KV pool."""
        return str(kv_dtype(self.resolved.inputs.shape, self.resolved.asked))


def set_up(
    flags: dict[str, Any],
    model: Model,
    options: Options,
    *,
    card_gib: float,
    free_gib: float,
    environment: dict[str, str],
) -> Setup:
    """Resolves the flags for this card. Raises CannotPlan with one sentence."""
    truth, shape = options.truth, model.shape
    at_start = options.free_gib if options.free_gib is not None else free_gib
    after_context = at_start - truth.context_gib
    before = after_context - truth.startup_loss(shape)
    ranks = int(flags.get("tp_size") or flags.get("tensor_parallel_size") or 1)
    after = before - truth.target_weights(shape) / ranks
    speculation = flags.get("speculative_algorithm")
    draft = truth.draft_weights(shape) / ranks if speculation and speculation != "NGRAM" else 0.0
    memory = Memory(
        card_gib=card_gib,
        at_start=at_start,
        after_context=after_context,
        before_weights=before,
        after_weights=after,
        after_draft=after - draft,
    )
    resolved = resolve(
        PlanInputs(
            shape=shape,
            flags=flags,
            sglang_version=VERSION,
            free_before=Sourced(max(before, _LEAST_GIB), Source.BOOT_LOG),
            free_after=Sourced(after - draft, Source.BOOT_LOG),
            free_after_has_draft=bool(draft),
            draft_weights=Sourced(draft, Source.BOOT_LOG) if draft else None,
            startup_loss_gib=truth.startup_loss(shape),
            context_gib=truth.context_gib,
            card_gib=card_gib,
            environment=environment,
        )
    )
    return Setup(resolved=resolved, memory=memory, warmup=not flags.get("skip_server_warmup"))


def size(setup: Setup, options: Options) -> Pools:
    """The pools of this start. Raises Refused with the error that SGLang prints."""
    planned = plan_of(setup.resolved)
    _refuse(setup, planned, forced=options.faults.has(Fault.REFUSE_AT_SIZING))
    return _allocate(setup, planned)


def _refuse(setup: Setup, planned: Plan, *, forced: bool) -> None:
    resolved, memory = setup.resolved, setup.memory
    rest = min(resolved.rest, _FORCED_REST_GIB) if forced else resolved.rest
    fraction = resolved.defaults.fraction
    if resolved.cost is not None:
        slots = split_states(rest, resolved.defaults.ratio, resolved.asked, resolved.rules, resolved.cost).slots
        if slots <= 0:
            raise Refused(
                "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
                f"max_mamba_cache_size={slots} (total_rest_memory={rest:.2f} GB, "
                f"mamba_cache_per_req={resolved.cost.slot / _MIB:.2f} MB). Try: (1) reduce --max-running-requests, "
                "(2) increase --mem-fraction-static, (3) reduce --speculative-num-draft-tokens, or (4) use GPUs "
                "with more memory.",
                "mamba",
            )
    if forced or planned.kv_tokens <= 0:
        if rest <= 0:
            minimum = 1 - memory.after_draft / memory.after_context
            raise Refused(
                "ValueError: Loaded weights leave no GPU memory for the KV cache under "
                f"--mem-fraction-static={fraction:g}. Raise --mem-fraction-static above {minimum + 0.01:.3f} "
                f"(minimum viable = 1 - available/pre = {minimum:.3f}).",
                "budget",
            )
        raise Refused("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "budget")
    if planned.max_running_requests <= 0:
        raise Refused(
            "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
            f"max_mamba_cache_size={planned.mamba_slots}, mamba_ratio={planned.slots_per_request}, resulting "
            "max_num_reqs=0. Try: (1) increase --mamba-full-memory-ratio, (2) increase --max-mamba-cache-size, or "
            "(3) increase --mem-fraction-static.",
            "requests",
        )


def _allocate(setup: Setup, planned: Plan) -> Pools:
    resolved, memory = setup.resolved, setup.memory
    page = resolved.strategy.page_size
    conv = ssm = spec_ssm = 0.0
    if resolved.slot is not None and planned.mamba_slots > 0:
        share = resolved.slot.conv / resolved.slot.all_layers
        conv, ssm = planned.mamba_gib * share, planned.mamba_gib * (1 - share)
        rows = planned.max_running_requests + 1
        spec_ssm = min(planned.spec_buffer_gib, rows * setup.draft_tokens * resolved.slot.temporal / GIB)
    spec_conv = planned.spec_buffer_gib - spec_ssm
    kv = (planned.kv_tokens + page) * resolved.token.target / GIB
    draft_kv = (planned.kv_tokens + page) * resolved.token.draft / GIB if setup.draft_model else 0.0
    unified = 0
    if setup.unified and resolved.cost is not None:
        # No padding in one buffer.
        unified = planned.kv_tokens * resolved.token.target + planned.mamba_slots * resolved.cost.slot
    taken = unified / GIB if unified else planned.mamba_gib + planned.spec_buffer_gib + kv
    after_pools = memory.after_draft - taken
    return Pools(
        plan=planned,
        kept_states=CacheShape(
            keeping=_keeping(setup, planned),
            kv_tokens=planned.kv_tokens,
            slots=planned.mamba_slots,
            page_size=page,
        ),
        conv_gib=conv,
        ssm_gib=ssm,
        spec_ssm_gib=spec_ssm,
        spec_conv_gib=spec_conv,
        kv_gib=kv,
        draft_kv_gib=draft_kv,
        free_after_pools=after_pools,
        free_after_draft_pools=after_pools - draft_kv,
        cap_line=_cap_line(setup, planned),
        unified_bytes=int(unified),
    )


def _keeping(setup: Setup, planned: Plan) -> Keeping:
    if not setup.resolved.strategy.radix:
        return Keeping.OFF
    if planned.mamba_slots <= 0:
        return Keeping.PLAIN
    return Keeping.EXTRA_BUFFER if planned.strategy.startswith("extra_buffer") else Keeping.NO_BUFFER


def _cap_line(setup: Setup, planned: Plan) -> str | None:
    """The warning of ``resolve_max_num_reqs`` (0.5.17) when fewer requests than asked are admitted."""
    resolved, admitted = setup.resolved, planned.max_running_requests
    uncapped = admitted_requests(planned.kv_tokens, planned.context_len, None, 0, resolved.asked, resolved.rules)
    if admitted < uncapped:
        return (
            f"max_running_requests is capped to {admitted} by the mamba state cache "
            f"(max_mamba_cache_size={planned.mamba_slots}, {planned.slots_per_request} state slots per request). "
            "To raise it: increase --mamba-full-memory-ratio or --max-mamba-cache-size, or halve the state size "
            "with --mamba-ssm-dtype bfloat16."
        )
    asked = resolved.asked.requests
    if asked is not None and admitted < asked:
        return (
            f"max_running_requests was reduced from the requested {asked} to {admitted} (per dp worker) "
            "due to the available KV cache capacity."
        )
    return None


def plan_graphs(model: Model, setup: Setup, options: Options, pools: Pools, backend_gib: float) -> GraphPlan:
    """Which graphs this start captures, and what they really take."""
    truth, resolved = options.truth, setup.resolved
    free = pools.free_after_draft_pools - truth.loss_gib - backend_gib
    if setup.draft_model:
        free += truth.draft_returned(model.shape)
    sizes = captured_sizes(resolved.defaults.sizes, pools.plan.max_running_requests, resolved.asked)
    forced = resolved.asked.prefill_graphs_forced
    skipped = bool(sizes.prefill) and not forced and free < PREFILL_GRAPHS_WANT_GIB
    prefill = () if skipped else sizes.prefill
    decode = sizes.decode
    return GraphPlan(
        free_before=free,
        prefill_gib=truth.prefill_graphs(model.shape, max(prefill)) if prefill else 0.0,
        prefill_sizes=prefill,
        prefill_skipped=skipped,
        decode_gib=truth.decode_graphs(model.shape, len(decode)) if decode else 0.0,
        decode_sizes=decode,
        draft_gib=truth.draft_graphs(model.shape, len(decode)) if decode and setup.draft_model else 0.0,
    )
