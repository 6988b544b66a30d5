"""Flag combinations that SGLang dies of at once, or changes without asking: found before the restart, with the fix.

Each rule names the versions it was read in; texts of SGLang that it stands for are in the reference's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tuner.findings import Finding, Severity
from tuner.modelcard import Family
from tuner.planner import flag_versions, strategy_conflicts
from tuner.planner.asked import read_flags
from tuner.planner.conflict import Case, fatal, note, warning
from tuner.planner.model import CannotPlan, PlanInputs
from tuner.planner.strategy import EXTRA_BUFFER, LAZY
from tuner.planner.versions import rules_for

#: Classes whose first layer need not be attention: the Triton attention backend refuses them.
_NO_TRITON = frozenset({"NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"})


def flag_conflicts(inputs: PlanInputs) -> tuple[Finding, ...]:
    """Findings about flags that do not go together, worst first. Never raises: a flag that cannot be read is one."""
    try:
        rules = rules_for(inputs.sglang_version)
        asked = read_flags(inputs)
    except CannotPlan as problem:
        return (fatal(str(problem), remedy="Set the flag to a value that SGLang takes."),)
    case = Case(shape=inputs.shape, flags=inputs.flags, environment=inputs.environment, asked=asked, rules=rules)
    found = [finding for rule in _RULES for finding in rule(case)]
    order = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def _unified_memory(case: Case) -> Iterator[Finding]:
    asked = case.asked
    if not asked.unified_memory or not case.flag_since((0, 5, 15)):
        return
    off: dict[str, Any] = {"enable_unified_memory": None}
    early = not case.flag_since((0, 5, 18))
    others = {
        "speculative decoding": asked.speculation is not None and early,
        "PD disaggregation": asked.pd_mode != "null" and early,
        "a hierarchical cache": case.on("enable_hierarchical_cache") and not case.flag_since((0, 5, 21)),
        "lmcache": case.on("enable_lmcache"),
    }
    for what, clash in others.items():
        if clash:
            yield fatal(
                f"Unified memory does not go with {what} in SGLang {case.rules.label}: the start dies of an assertion.",
                remedy="Leave enable_unified_memory out.",
                flags=off,
            )
    if asked.kv_cache_dtype.startswith("fp8"):
        yield warning(
            "Unified memory with 8-bit KV died in the first forward on a real 0.5.17 (a kernel that does not compile).",
            remedy="Leave enable_unified_memory out, or use 16-bit KV.",
            flags=off,
            evidence=("triton.compiler.errors.CompilationError ... only int8 supported!",),
        )
    backend = asked.attention_backend
    if early and backend is not None and backend != "triton" and case.shape.mla_width is None:
        yield fatal(
            f"Unified memory needs the triton attention backend, {backend} was asked.",
            remedy="Set attention_backend to triton, or leave enable_unified_memory out.",
            flags={"attention_backend": "triton"},
        )


def _corrupting(case: Case) -> Iterator[Finding]:
    if not case.hybrid:
        return
    if case.on("enable_mixed_chunk"):
        yield fatal(
            "Mixed chunks corrupt the states that the prefix cache keeps: answers get worse, unseen.",
            remedy="Leave enable_mixed_chunk out.",
            flags={"enable_mixed_chunk": None},
        )
    if case.on("enable_torch_compile"):
        yield fatal(
            "torch.compile gives wrong output or does not start on models with states.",
            remedy="Leave enable_torch_compile out.",
            flags={"enable_torch_compile": None},
        )
    if case.on("cpu_offload_gb") and case.shape.family in (Family.GDN, Family.KDA):
        yield fatal(
            "cpu_offload_gb breaks the tied parameters of linear-attention layers.",
            remedy="Leave it out; a smaller quantisation or more cards instead.",
            flags={"cpu_offload_gb": None},
            evidence=("functional_call got multiple values for keys",),
        )
    if case.on("enable_int8_mamba_checkpoint") and case.on("enable_hierarchical_cache"):
        yield fatal(
            "int8 state checkpoints do not go with a hierarchical cache.",
            remedy="Leave one of the two out.",
            flags={"enable_int8_mamba_checkpoint": None},
        )


def _backends(case: Case) -> Iterator[Finding]:
    if case.shape.architecture in _NO_TRITON and case.asked.attention_backend == "triton":
        yield fatal(
            f"{case.shape.architecture} does not run with the triton attention backend: an assertion.",
            remedy="Use flashinfer, or leave attention_backend out.",
            flags={"attention_backend": "flashinfer"},
        )
    if case.on("enable_linear_replayssm") and case.asked.strategy in (EXTRA_BUFFER, LAZY):
        yield fatal(
            "enable_linear_replayssm needs the no_buffer strategy.",
            remedy="Leave enable_linear_replayssm out, or use no_buffer with the overlap schedule off.",
            flags={"enable_linear_replayssm": None},
        )
    if case.asked.replayssm and case.asked.speculation is not None and case.asked.speculation.topk > 1:
        yield fatal(
            "The replay ring needs a draft chain: speculative_eagle_topk 1.",
            remedy="Set speculative_eagle_topk to 1.",
            flags={"speculative_eagle_topk": 1},
        )


def _speculation(case: Case) -> Iterator[Finding]:
    speculation = case.asked.speculation
    if speculation is None:
        return
    asked = case.flags.get("speculative_num_draft_tokens")
    if (
        speculation.eagle_like
        and speculation.topk == 1
        and asked not in (None, "")
        and str(asked) != str(speculation.draft_tokens)
    ):
        yield warning(
            f"With top-k 1 SGLang sets the draft tokens to steps + 1: {speculation.draft_tokens}, not {asked}.",
            remedy="Ask for steps + 1 draft tokens, or change speculative_num_steps.",
            flags={"speculative_num_draft_tokens": speculation.draft_tokens},
        )
    if case.asked.requests is None:
        yield warning(
            "Speculation without max_running_requests plans for 48: each keeps draft states.",
            remedy="Set max_running_requests to the requests that really run at once.",
        )
    miscounted = case.flag_since((0, 5, 14)) and not case.flag_since((0, 5, 18)) and case.shape.multimodal
    if miscounted and case.on("speculative_draft_model_path") and case.shape.family is Family.GDN:
        yield warning(
            "A draft named by path makes SGLang count every layer as draft: the KV pool falls to a fifth.",
            remedy="Leave speculative_draft_model_path out: the draft is in the checkpoint.",
            flags={"speculative_draft_model_path": None},
        )
    if str(case.flags.get("startup_weight_load_mode", "")) == "overlap":
        yield fatal(
            "startup_weight_load_mode overlap does not go with speculative decoding.",
            remedy="Leave startup_weight_load_mode out.",
            flags={"startup_weight_load_mode": None},
        )


def _without_effect(case: Case) -> Iterator[Finding]:
    asked = case.asked
    if not case.hybrid:
        return
    if asked.slots is not None and asked.ratio is not None:
        yield note(
            "max_mamba_cache_size sets the slots: mamba_full_memory_ratio has no effect beside it.",
            remedy="Leave one of the two out.",
        )
    elif asked.disable_radix and asked.requests is not None and asked.ratio is not None:
        yield note(
            "Without the prefix cache the slots follow max_running_requests: the ratio has no effect.",
            remedy="Leave mamba_full_memory_ratio out.",
        )
    if asked.disable_radix and asked.strategy in (EXTRA_BUFFER, LAZY) and case.rules.auto_extra_buffer:
        yield note(
            "Without the prefix cache there is no extra buffer: the strategy has no effect.",
            remedy="Leave disable_radix_cache out, or the strategy.",
        )


def _context(case: Case) -> Iterator[Finding]:
    asked, longest = case.asked.context_length, case.shape.context_len
    allowed = case.environment.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true")
    if asked is not None and asked > longest and not allowed:
        yield fatal(
            f"context_length {asked:,} is above the model's {longest:,}: SGLang refuses it.",
            remedy=f"Ask for at most {longest:,}, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1.",
            flags={"context_length": longest},
        )


_RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    *strategy_conflicts.RULES,
    _unified_memory,
    _corrupting,
    _backends,
    _speculation,
    *flag_versions.RULES,
    _without_effect,
    _context,
)
