"""What the flags of a plan ask for, typed and with the defaults that do not depend on the version's rules.

Names are SGLang's long flag names with underscores; old names of a flag are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tuner.planner.model import CannotPlan, PlanInputs

#: Old and alternative names of flags, by the name used here.
ALIASES: dict[str, tuple[str, ...]] = {
    "tp_size": ("tensor_parallel_size",),
    "pp_size": ("pipeline_parallel_size",),
    "dp_size": ("data_parallel_size",),
    "attn_dp_size": ("attention_data_parallel_size",),
    "mamba_radix_cache_strategy": ("mamba_scheduler_strategy",),
    "speculative_draft_model_path": ("speculative_draft_model",),
    "enable_linear_replayssm_spec": ("enable_gdn_replayssm_spec",),
    "cuda_graph_max_bs_decode": ("cuda_graph_max_bs",),
    "cuda_graph_bs_decode": ("cuda_graph_bs",),
    "cuda_graph_max_bs_prefill": ("piecewise_cuda_graph_max_tokens",),
    "cuda_graph_bs_prefill": ("piecewise_cuda_graph_tokens",),
}

#: Words of ``--speculative-algorithm`` that bring a draft head of the target's own kind.
_EAGLE_LIKE = frozenset({"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"})
#: Requests that SGLang assumes with speculation when none are asked for (``speculative_hook.py``, all versions).
SPECULATIVE_REQUESTS = 48
#: (steps, top-k, draft tokens) of ``auto_choose_speculative_params``: old Llama and Grok, and everything else.
_WIDE_TREE = (5, 4, 8)
_CHAIN = (3, 1, 4)


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding as SGLang resolves it. ``draft_tokens`` is D of the sizing rule."""

    algorithm: str
    steps: int
    topk: int
    draft_tokens: int
    draft_path: str | None

    @property
    def eagle_like(self) -> bool:
        """Whether the draft is a head like EAGLE's, with a KV layer of the target's shape."""
        return self.algorithm in _EAGLE_LIKE

    @property
    def loads_weights(self) -> bool:
        """Whether a draft model is loaded at all (n-gram drafts come from the prompt)."""
        return self.algorithm != "NGRAM"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Typed flags. None means: not given, SGLang decides."""

    mem_fraction_static: float | None
    ratio: float | None
    slots: int | None
    requests: int | None
    max_total_tokens: int | None
    context_length: int | None
    chunked_prefill_size: int | None
    max_prefill_tokens: int
    page_size: int | None
    kv_cache_dtype: str
    ssm_dtype: str | None
    conv_dtype: str
    dtype: str
    strategy: str
    disable_radix: bool
    disable_overlap: bool
    #: Prefill chunks and decode steps in one batch; SGLang drops it with speculation.
    mixed_chunk: bool
    skip_decode_lock: bool
    linear_attn_backend: str
    attention_backend: str | None
    tp: int
    pp: int
    dp: int
    dp_attention: bool
    attn_dp: int
    attn_tp: int
    speculation: Speculation | None
    replayssm: bool
    replayssm_len: int
    unified_memory: bool
    int8_checkpoints: bool
    int8_checkpoint_slots: int | None
    post_capture: bool
    pd_mode: str
    language_only: bool
    mm_feature_transport: str
    moe_a2a_backend: str
    graphs_off: bool
    decode_graphs_off: bool
    prefill_graphs_off: bool
    prefill_graphs_forced: bool
    piecewise_asked: bool
    decode_max_bs: int | None
    decode_bs: tuple[int, ...] | None
    prefill_max_tokens: int | None
    prefill_bs: tuple[int, ...] | None
    graph_padding_off: bool
    skip_warmup: bool


class _Reader:
    """Typed look-ups in the flags, with one sentence for a value of the wrong kind."""

    def __init__(self, flags: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.flags = flags
        self.environment = environment

    def value(self, name: str) -> Any:
        for key in (name, *ALIASES.get(name, ())):
            found = self.flags.get(key)
            if found is not None and found != "":
                return found
        return None

    def whole(self, name: str, least: int = 0) -> int | None:
        found = self.value(name)
        if found is None:
            return None
        try:
            number = msgspec.convert(found, int, strict=False)
        except msgspec.ValidationError:
            raise CannotPlan(f"{name} is {found!r}: a whole number was expected.") from None
        if number < least:
            raise CannotPlan(f"{name} is {number}: it must be at least {least}.")
        return number

    def number(self, name: str, low: float, high: float) -> float | None:
        found = self.value(name)
        if found is None:
            return None
        try:
            number = msgspec.convert(found, float, strict=False)
        except msgspec.ValidationError:
            raise CannotPlan(f"{name} is {found!r}: a number was expected.") from None
        if not low < number <= high:
            raise CannotPlan(f"{name} is {number:g}: it must be above {low:g} and at most {high:g}.")
        return number

    def text(self, name: str) -> str | None:
        found = self.value(name)
        return None if found is None else str(found)

    def switch(self, name: str) -> bool:
        found = self.value(name)
        if found is None or isinstance(found, bool):
            return bool(found)
        try:
            return msgspec.convert(found, bool, strict=False)
        except msgspec.ValidationError:
            raise CannotPlan(f"{name} is {found!r}: true or false was expected.") from None

    def list_of_numbers(self, name: str) -> tuple[int, ...] | None:
        found = self.value(name)
        if found is None:
            return None
        if isinstance(found, str):
            found = found.replace(",", " ").split()
        try:
            return tuple(sorted(set(msgspec.convert(found, list[int], strict=False))))
        except msgspec.ValidationError:
            raise CannotPlan(f"{name} is {found!r}: a list of whole numbers was expected.") from None

    def env_on(self, name: str) -> bool:
        return self.environment.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def read_flags(inputs: PlanInputs) -> Asked:
    """Types the flags of ``inputs``. Raises CannotPlan with one sentence for a value that no server would take."""
    flags = _Reader(inputs.flags, inputs.environment)
    tp = flags.whole("tp_size", 1) or 1
    pp = flags.whole("pp_size", 1) or 1
    dp = flags.whole("dp_size", 1) or 1
    attn_dp_asked = flags.whole("attn_dp_size", 1)
    dp_attention = flags.switch("enable_dp_attention") or (attn_dp_asked or 1) > 1
    attn_dp = (attn_dp_asked or dp) if dp_attention else 1
    if tp % attn_dp:
        raise CannotPlan(f"{attn_dp} attention replicas do not divide {tp} tensor-parallel ranks.")
    decode_backend = (flags.text("cuda_graph_backend_decode") or "").lower()
    prefill_backend = (flags.text("cuda_graph_backend_prefill") or "").lower()
    graphs_off = flags.switch("disable_cuda_graph")
    speculation = _speculation(flags, inputs.shape.architecture)
    return Asked(
        mem_fraction_static=flags.number("mem_fraction_static", 0, 1),
        ratio=flags.number("mamba_full_memory_ratio", 0, 1e6),
        slots=flags.whole("max_mamba_cache_size", 1),
        requests=flags.whole("max_running_requests", 1),
        max_total_tokens=flags.whole("max_total_tokens", 1),
        context_length=flags.whole("context_length", 1),
        chunked_prefill_size=flags.whole("chunked_prefill_size", -1),
        max_prefill_tokens=flags.whole("max_prefill_tokens", 1) or 16_384,
        page_size=flags.whole("page_size", 1),
        kv_cache_dtype=(flags.text("kv_cache_dtype") or "auto").lower(),
        ssm_dtype=flags.text("mamba_ssm_dtype") or inputs.environment.get("SGLANG_MAMBA_SSM_DTYPE") or None,
        conv_dtype=inputs.environment.get("SGLANG_MAMBA_CONV_DTYPE") or "bfloat16",
        dtype=(flags.text("dtype") or "auto").lower(),
        strategy=(flags.text("mamba_radix_cache_strategy") or "auto").lower(),
        disable_radix=flags.switch("disable_radix_cache"),
        disable_overlap=flags.switch("disable_overlap_schedule"),
        mixed_chunk=flags.switch("enable_mixed_chunk") and speculation is None,
        skip_decode_lock=flags.env_on("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"),
        linear_attn_backend=(flags.text("linear_attn_backend") or "triton").lower(),
        attention_backend=flags.text("attention_backend"),
        tp=tp,
        pp=pp,
        dp=dp,
        dp_attention=dp_attention,
        attn_dp=attn_dp,
        attn_tp=tp // attn_dp,
        speculation=speculation,
        replayssm=flags.switch("enable_linear_replayssm_spec"),
        replayssm_len=flags.whole("linear_replayssm_cache_len", 1) or 16,
        unified_memory=flags.switch("enable_unified_memory"),
        int8_checkpoints=flags.switch("enable_int8_mamba_checkpoint"),
        int8_checkpoint_slots=flags.whole("int8_mamba_ckpt_size", 1),
        post_capture=flags.env_on("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"),
        pd_mode=(flags.text("disaggregation_mode") or "null").lower(),
        language_only=flags.switch("language_only") or flags.switch("language_model_only"),
        mm_feature_transport=(flags.text("mm_feature_transport") or "").lower(),
        moe_a2a_backend=(flags.text("moe_a2a_backend") or "none").lower(),
        graphs_off=graphs_off,
        decode_graphs_off=graphs_off or flags.switch("disable_decode_cuda_graph") or decode_backend == "disabled",
        prefill_graphs_off=graphs_off
        or flags.switch("disable_prefill_cuda_graph")
        or flags.switch("disable_piecewise_cuda_graph")
        or prefill_backend == "disabled",
        prefill_graphs_forced=prefill_backend not in ("", "disabled"),
        piecewise_asked=flags.switch("enable_piecewise_cuda_graph"),
        decode_max_bs=flags.whole("cuda_graph_max_bs_decode", 1),
        decode_bs=flags.list_of_numbers("cuda_graph_bs_decode"),
        prefill_max_tokens=flags.whole("cuda_graph_max_bs_prefill", 1),
        prefill_bs=flags.list_of_numbers("cuda_graph_bs_prefill"),
        graph_padding_off=flags.switch("disable_cuda_graph_padding"),
        skip_warmup=flags.switch("skip_server_warmup"),
    )


def _speculation(flags: _Reader, architecture: str) -> Speculation | None:
    """Steps, top-k and draft tokens, with SGLang's own defaults (``arg_groups/speculative_hook.py``).

    With top-k 1 the draft is a chain, and SGLang sets draft tokens to steps + 1 whatever was asked.
    """
    word = flags.text("speculative_algorithm")
    if word is None or word.lower() in ("none", "null"):
        return None
    algorithm = word.upper()
    steps = flags.whole("speculative_num_steps", 0)
    topk = flags.whole("speculative_eagle_topk", 1)
    draft_tokens = flags.whole("speculative_num_draft_tokens", 1)
    if algorithm == "NGRAM":
        return Speculation(
            algorithm=algorithm, steps=1, topk=topk or 1, draft_tokens=draft_tokens or 12, draft_path=None
        )
    path = flags.text("speculative_draft_model_path")
    if algorithm in ("DFLASH", "DSPARK"):
        tokens = draft_tokens or 16
        return Speculation(algorithm=algorithm, steps=1, topk=1, draft_tokens=tokens, draft_path=path)
    wide = architecture in ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM") and algorithm != "STANDALONE"
    default_steps, default_topk, default_tokens = _WIDE_TREE if wide else _CHAIN
    if steps is None:
        steps, topk, draft_tokens = default_steps, topk or default_topk, draft_tokens or default_tokens
    topk = topk or 1
    tokens = steps + 1 if topk == 1 else (draft_tokens or default_tokens)
    return Speculation(algorithm=algorithm, steps=steps, topk=topk, draft_tokens=tokens, draft_path=path)
