"""Which sizing rule each SGLang version follows.

Read in the released wheels of every version from 0.5.9 to 0.5.23, so none is interpolated; 0.5.17 was also measured on
real servers. A version newer than the last one read takes the newest rule, one older than 0.5.9 the oldest, and both
say so; a post release takes the rule of its version.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

import msgspec

from tuner.planner.model import CannotPlan

Version = tuple[int, int, int]

OLDEST: Version = (0, 5, 9)
NEWEST: Version = (0, 5, 23)
#: Versions whose rule was seen at work on real servers.
MEASURED: tuple[Version, ...] = ((0, 5, 17),)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """One version's rule. Names of files are below ``sglang/srt``."""

    version: Version
    #: What to tell the operator about how well this version is known; "" when there is nothing to say.
    note: str = ""
    #: Speculative buffers against the slots: taken off first for every request asked ("upfront", to 0.5.12), solved
    #: with the slots ("joint", 0.5.13 to 0.5.16), or solved with the padding rows too ("padded", from 0.5.17).
    speculation: Literal["upfront", "joint", "padded"]
    #: The pool's extra slot is paid by the budget (``_handle_max_mamba_cache``, from 0.5.17).
    pays_padding_slot: bool
    #: A pipeline stage pays for its own state layers only (from 0.5.17).
    stage_share: bool
    #: Draft weights are loaded before the pools are sized (``Scheduler.init_model_worker``, from 0.5.14).
    draft_before_pools: bool
    #: A draft named by path makes the KV cell larger (``DefaultPoolConfigurator``): not, as one product with
    #: one rounding (0.5.14 to 0.5.21), or as a sum of two roundings (from 0.5.22).
    draft_in_cell: Literal["none", "product", "sum"]
    #: Cap on admitted requests that were asked for: pool rows (0.5.9), the estimate from the context length (to
    #: 0.5.13), or half the tokens (from 0.5.14).
    request_cap: Literal["rows", "estimate", "tokens"]
    #: A data-parallel share of requests never falls to nothing (from 0.5.23).
    at_least_one: bool
    #: KV budget kept for multimodal transport and caches (``mm_runtime_reservation_gb``, from 0.5.18).
    multimodal_reserve: bool
    #: The speculative replay ring: unknown to the sizing rule, in every slot, or for GDN a fixed buffer (from 0.5.20).
    replay_ring: Literal["none", "slot", "fixed"]
    #: The ring is as long as the drafts (to 0.5.19, GDN) or as ``linear_replayssm_cache_len``.
    ring_follows_drafts: bool
    #: extra_buffer takes only one more slot with speculation (0.5.9).
    cheap_speculative_buffer: bool
    #: extra_buffer without the overlap schedule takes one more slot, not two (from 0.5.10).
    counts_overlap: bool
    #: ``extra_buffer_lazy`` exists (from 0.5.13).
    lazy: bool
    #: ``SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK`` exists (from 0.5.17).
    skip_decode_lock: bool
    #: "auto" becomes extra_buffer where the model can (from 0.5.14); before, always no_buffer.
    auto_extra_buffer: bool
    #: Speculation without an extra buffer: turns the prefix cache off (to 0.5.9), is an error (0.5.10 to 0.5.13), fits.
    speculation_without_buffer: Literal["radix-off", "error", "fine"]
    #: Draft embedding and head come back after sizing (seen on 0.5.17).
    gives_draft_vocabulary_back: bool
    #: Conv windows of drafts are stored without duplicates when the draft is a chain (from 0.5.17).
    dedup_conv_windows: bool
    #: Prefill graphs are given up when less than 4 GiB is free (0.5.16 and 0.5.17, when not asked for by name).
    drops_prefill_graphs: bool
    #: Post-capture sizing exists (0.5.16).
    post_capture: bool
    #: A request in chunks is counted by its row and in the batch (``get_num_allocatable_reqs``): with pipeline stages
    #: alone (to 0.5.11), always (0.5.12 to 0.5.22), or not any more.
    chunk_holds_row: Literal["pipelined", "counted", "known"]
    #: FP4 KV pays for a shared dequantisation buffer (to 0.5.21).
    fp4_workspace: bool

    @property
    def label(self) -> str:
        """The version as written."""
        return ".".join(str(part) for part in self.version)


def parse_version(text: str) -> Version:
    """ "0.5.17", "v0.5.17.post1", "0.5.20.dev728+g..." -> (0, 5, 17). Raises CannotPlan when it is none."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text.strip())
    if found is None:
        raise CannotPlan(f"{text!r} is no SGLang version: give one such as 0.5.17.")
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch or 0)


@lru_cache(maxsize=64)
def rules_for(text: str) -> Rules:
    """The rule of an SGLang version. Raises CannotPlan when ``text`` is no version."""
    asked = parse_version(text)
    used = min(max(asked, OLDEST), NEWEST)
    return Rules(
        version=used,
        note=_note(asked, text),
        speculation="upfront" if used < (0, 5, 13) else "joint" if used < (0, 5, 17) else "padded",
        pays_padding_slot=used >= (0, 5, 17),
        stage_share=used >= (0, 5, 17),
        draft_before_pools=used >= (0, 5, 14),
        draft_in_cell="none" if used < (0, 5, 14) else "product" if used < (0, 5, 22) else "sum",
        request_cap="rows" if used < (0, 5, 10) else "estimate" if used < (0, 5, 14) else "tokens",
        at_least_one=used >= (0, 5, 23),
        multimodal_reserve=used >= (0, 5, 18),
        replay_ring="none" if used < (0, 5, 17) else "slot" if used < (0, 5, 20) else "fixed",
        ring_follows_drafts=used < (0, 5, 20),
        cheap_speculative_buffer=used < (0, 5, 10),
        counts_overlap=used >= (0, 5, 10),
        lazy=used >= (0, 5, 13),
        skip_decode_lock=used >= (0, 5, 17),
        auto_extra_buffer=used >= (0, 5, 14),
        speculation_without_buffer="radix-off" if used < (0, 5, 10) else "error" if used < (0, 5, 14) else "fine",
        gives_draft_vocabulary_back=used >= (0, 5, 14),
        dedup_conv_windows=used >= (0, 5, 17),
        drops_prefill_graphs=used in ((0, 5, 16), (0, 5, 17)),
        post_capture=used >= (0, 5, 16),
        chunk_holds_row="pipelined" if used < (0, 5, 12) else "counted" if used < (0, 5, 23) else "known",
        fp4_workspace=used < (0, 5, 22),
    )


def _note(asked: Version, text: str) -> str:
    newest = ".".join(map(str, NEWEST))
    if asked > NEWEST:
        return f"SGLang {text} is newer than any that was looked at: planned by the rule of {newest}."
    if asked < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"SGLang {text} is older than any that was looked at: planned by the rule of {oldest}."
    if asked not in MEASURED:
        return f"The rule of SGLang {text} was read in its source, not measured on a server."
    return ""


#: When each model class joined ``_MAMBA_RADIX_CACHE_ARCHS`` (its prefix cache keeps states).
RADIX_SINCE: dict[str, Version] = {
    "BailingMoeV2_5ForCausalLM": (0, 5, 13),
    "BailingMoeV3ForCausalLM": (0, 5, 19),
    "BailingMoeV3VLForConditionalGeneration": (0, 5, 21),
    "FalconH1ForCausalLM": OLDEST,
    "Glm5NextForConditionalGeneration": (0, 5, 20),
    "GraniteMoeHybridForCausalLM": OLDEST,
    "InternS2MobiusForConditionalGeneration": (0, 5, 18),
    "InternS2PreviewForConditionalGeneration": (0, 5, 12),
    "JetNemotronForCausalLM": OLDEST,
    "JetVLMForConditionalGeneration": OLDEST,
    "KimiK3ForConditionalGeneration": (0, 5, 17),
    "KimiLinearForCausalLM": (0, 5, 14),
    "Lfm2ForCausalLM": OLDEST,
    "Lfm2MoeForCausalLM": (0, 5, 17),
    "MiniCPMV4_6ForConditionalGeneration": (0, 5, 12),
    "MiniCPMV4_7ForConditionalGeneration": (0, 5, 23),
    "NemotronHForCausalLM": OLDEST,
    "NemotronHPuzzleForCausalLM": (0, 5, 13),
    "NemotronH_Omni_Reasoning_V3": (0, 5, 20),
    "Qwen3NextForCausalLM": OLDEST,
    "Qwen3_5ForCausalLM": (0, 5, 19),
    "Qwen3_5MoeForCausalLM": (0, 5, 19),
    "Qwen3_5ForConditionalGeneration": OLDEST,
    "Qwen3_5MoeForConditionalGeneration": OLDEST,
    "Qwen4ExpForConditionalGeneration": (0, 5, 20),
    "ZayaForCausalLM": (0, 5, 14),
}

#: When each model class joined ``_MAMBA_EXTRA_BUFFER_ARCHS`` (or the branch that stood for it before 0.5.14).
EXTRA_BUFFER_SINCE: dict[str, Version] = {
    "BailingMoeV2_5ForCausalLM": (0, 5, 13),
    "BailingMoeV3ForCausalLM": (0, 5, 19),
    "BailingMoeV3VLForConditionalGeneration": (0, 5, 21),
    "FalconH1ForCausalLM": (0, 5, 13),
    "Glm5NextForConditionalGeneration": (0, 5, 20),
    "GraniteMoeHybridForCausalLM": (0, 5, 13),
    "InternS2PreviewForConditionalGeneration": (0, 5, 12),
    "KimiK3ForConditionalGeneration": (0, 5, 17),
    "KimiLinearForCausalLM": (0, 5, 16),
    "MiniCPMV4_6ForConditionalGeneration": (0, 5, 12),
    "MiniCPMV4_7ForConditionalGeneration": (0, 5, 23),
    "NemotronHForCausalLM": (0, 5, 13),
    "NemotronHPuzzleForCausalLM": (0, 5, 13),
    "NemotronH_Omni_Reasoning_V3": (0, 5, 20),
    "Qwen3NextForCausalLM": OLDEST,
    "Qwen3_5ForCausalLM": (0, 5, 19),
    "Qwen3_5MoeForCausalLM": (0, 5, 19),
    "Qwen3_5ForConditionalGeneration": OLDEST,
    "Qwen3_5MoeForConditionalGeneration": OLDEST,
    "Qwen4ExpForConditionalGeneration": (0, 5, 20),
}
#: Classes whose prefix cache was switched off before it learnt states ("Disabling Radix Cache for ...").
RADIX_OFF_BEFORE: dict[str, Version] = {
    "KimiLinearForCausalLM": (0, 5, 14),
    "BailingMoeV2_5ForCausalLM": (0, 5, 13),
}
