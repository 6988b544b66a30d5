"""Flag combinations that SGLang dies of at once, or changes without asking: found before the restart, with the fix.

Each rule names the versions it was read in; texts of SGLang that it stands for are in the reference's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tuner.findings import Finding, FindingId, Severity
from tuner.modelcard import Family, ModelShape
from tuner.planner.asked import Asked, read_flags
from tuner.planner.model import CannotPlan, PlanInputs
from tuner.planner.strategy import EXTRA_BUFFER, LAZY, NO_BUFFER, supports_extra_buffer
from tuner.planner.versions import RADIX_SINCE, Rules, rules_for

#: Prefix snapshots fall on this grid, or on the page size where that is larger (``mamba_cache_chunk_size``).
_SNAPSHOT_GRID = 64
_TRACK_INTERVAL = 256
#: Classes whose first layer need not be attention: the Triton attention backend refuses them.
_NO_TRITON = frozenset({"NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"})


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    shape: ModelShape
    flags: dict[str, Any]
    environment: dict[str, str]
    asked: Asked
    rules: Rules

    @property
    def hybrid(self) -> bool:
        return self.shape.state is not None

    @property
    def validated(self) -> bool:
        """Whether this version checks the strategy of this model class at all (from 0.5.14 only listed ones)."""
        since = RADIX_SINCE.get(self.shape.architecture)
        return since is not None and self.rules.version >= since

    def on(self, name: str) -> bool:
        return self.flags.get(name) not in (None, False, "", "false", "False", 0, "0")

    def flag_since(self, version: tuple[int, int, int]) -> bool:
        return self.rules.version >= version


def flag_conflicts(inputs: PlanInputs) -> tuple[Finding, ...]:
    """Findings about flags that do not go together, worst first. Never raises: a flag that cannot be read is one."""
    try:
        rules = rules_for(inputs.sglang_version)
        asked = read_flags(inputs)
    except CannotPlan as problem:
        return (_fatal(str(problem), remedy="Set the flag to a value that SGLang takes."),)
    case = _Case(shape=inputs.shape, flags=inputs.flags, environment=inputs.environment, asked=asked, rules=rules)
    found = [finding for rule in _RULES for finding in rule(case)]
    order = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def _finding(
    severity: Severity,
    title: str,
    *,
    remedy: str,
    flags: dict[str, Any] | None = None,
    evidence: tuple[str, ...] = (),
    kind: FindingId = FindingId.FLAG_CONFLICT,
) -> Finding:
    return Finding(id=kind, severity=severity, title=title, remedy=remedy, flags=flags or {}, evidence=evidence)


def _fatal(title: str, *, remedy: str, flags: dict[str, Any] | None = None, evidence: tuple[str, ...] = ()) -> Finding:
    return _finding(Severity.FATAL, title, remedy=remedy, flags=flags, evidence=evidence)


def _warning(
    title: str, *, remedy: str, flags: dict[str, Any] | None = None, evidence: tuple[str, ...] = ()
) -> Finding:
    return _finding(Severity.WARNING, title, remedy=remedy, flags=flags, evidence=evidence)


def _note(title: str, *, remedy: str, flags: dict[str, Any] | None = None) -> Finding:
    return _finding(Severity.NOTE, title, remedy=remedy, flags=flags)


def _buffer_or_none(case: _Case) -> tuple[str, dict[str, Any]]:
    """The nearest strategy that pages and speculates: an extra buffer where the class has one."""
    if supports_extra_buffer(case.shape.architecture, case.rules) or not case.validated:
        return "use the extra_buffer strategy", {_strategy_flag(case): EXTRA_BUFFER}
    return "switch the prefix cache off", {"disable_radix_cache": True}


def _strategy_flag(case: _Case) -> str:
    return "mamba_radix_cache_strategy" if case.flag_since((0, 5, 14)) else "mamba_scheduler_strategy"


def _without_buffer(case: _Case) -> bool:
    """Whether the prefix cache would run without an extra buffer (asked so, or "auto" up to 0.5.13)."""
    if not case.hybrid or case.asked.disable_radix:
        return False
    return case.asked.strategy == NO_BUFFER or (case.asked.strategy == "auto" and not case.rules.auto_extra_buffer)


def _pages_without_buffer(case: _Case) -> Iterator[Finding]:
    page = case.asked.page_size
    if not _without_buffer(case) or page in (None, 1):
        return
    remedy, flags = _buffer_or_none(case)
    if case.flag_since((0, 5, 12)) and not case.flag_since((0, 5, 14)):
        yield _warning(
            f"page_size {page} is set back to 1: no_buffer takes no other.",
            remedy=f"Leave page_size out, or {remedy}.",
            flags={"page_size": None},
        )
    else:
        yield _fatal(
            f"no_buffer takes no page_size but 1, {page} was asked: the start dies.",
            remedy=f"To keep pages, {remedy}; or leave page_size out.",
            flags=flags,
            evidence=("no_buffer only supports page_size=1.",),
        )


def _overlap_without_buffer(case: _Case) -> Iterator[Finding]:
    """From 0.5.14 an explicit no_buffer asserts that the overlap schedule is off (``_validate_mamba_no_buffer``)."""
    if not case.rules.auto_extra_buffer or not case.validated or not _without_buffer(case):
        return
    if case.asked.strategy == NO_BUFFER and not case.asked.disable_overlap:
        yield _fatal(
            "no_buffer asked for by name needs the overlap schedule off: the start dies of an assertion.",
            remedy="Set disable_overlap_schedule too, or leave the strategy at auto.",
            flags={"disable_overlap_schedule": True},
            evidence=("no_buffer do not support overlap schedule. Try to set disable_overlap_schedule=True.",),
        )
    if case.asked.attention_backend == "trtllm_mha":
        yield _fatal(
            "no_buffer does not run with the trtllm_mha attention backend: the start dies of an assertion.",
            remedy="Use the triton attention backend, or the extra_buffer strategy.",
            flags={"attention_backend": "triton"},
        )


def _speculation_without_buffer(case: _Case) -> Iterator[Finding]:
    if case.asked.speculation is None or not _without_buffer(case):
        return
    remedy, flags = _buffer_or_none(case)
    if case.rules.speculation_without_buffer == "radix-off":
        yield _warning(
            "Speculation without an extra buffer switches the prefix cache off.",
            remedy=f"To keep the prefix cache, {remedy}.",
            flags=flags,
        )
    else:
        yield _fatal(
            "Speculation does not go with a prefix cache without an extra buffer.",
            remedy=f"To speculate, {remedy}.",
            flags=flags,
            evidence=("Speculative decoding ... is not compatible with radix cache when using ... no_buffer.",),
        )


def _extra_buffer(case: _Case) -> Iterator[Finding]:
    asked = case.asked
    if not case.hybrid or asked.strategy not in (EXTRA_BUFFER, LAZY):
        return
    if asked.disable_radix:
        if case.flag_since((0, 5, 12)) and not case.flag_since((0, 5, 14)):
            yield _fatal(
                "An extra buffer without the prefix cache is refused by this version.",
                remedy="Leave the strategy at auto.",
                flags={_strategy_flag(case): None},
            )
        return
    if case.validated and not supports_extra_buffer(case.shape.architecture, case.rules):
        yield _fatal(
            f"{case.shape.architecture} has no extra buffer in SGLang {case.rules.label}.",
            remedy="Use no_buffer, with the overlap schedule off, or a newer SGLang.",
            flags={_strategy_flag(case): NO_BUFFER, "disable_overlap_schedule": True},
            evidence=("extra_buffer is not supported for ...; use no_buffer.",),
        )
    yield from _track_interval(case)
    yield from _lazy(case)
    chunk, grid = asked.chunked_prefill_size, max(_SNAPSHOT_GRID, asked.page_size or 1)
    if chunk is not None and 0 < chunk < grid:
        yield _warning(
            f"Chunks of {chunk} tokens are shorter than the snapshot grid of {grid}: prefixes are not kept.",
            remedy=f"Raise chunked_prefill_size to at least {grid}.",
            flags={"chunked_prefill_size": grid},
        )


def _track_interval(case: _Case) -> Iterator[Finding]:
    interval = case.flags.get("mamba_track_interval", _TRACK_INTERVAL)
    if not isinstance(interval, int) or isinstance(interval, bool):
        return
    speculation, page = case.asked.speculation, case.asked.page_size or 1
    if speculation is not None and interval < speculation.draft_tokens:
        yield _fatal(
            f"mamba_track_interval {interval} is below the {speculation.draft_tokens} draft tokens: an assertion.",
            remedy="Leave mamba_track_interval out (256).",
            flags={"mamba_track_interval": None},
        )
    if interval % page:
        yield _fatal(
            f"mamba_track_interval {interval} is no multiple of page_size {page}: the start dies of an assertion.",
            remedy="Choose a page size that divides it, such as 64.",
            flags={"page_size": _SNAPSHOT_GRID, "mamba_track_interval": None},
        )
    if not case.flag_since((0, 5, 13)) and max(_SNAPSHOT_GRID, page) % min(_SNAPSHOT_GRID, page):
        yield _fatal(
            f"page_size {page} and the kernels' chunk of {_SNAPSHOT_GRID} must divide one another.",
            remedy="Choose a page size such as 64 or 128.",
            flags={"page_size": _SNAPSHOT_GRID},
        )


def _lazy(case: _Case) -> Iterator[Finding]:
    asked = case.asked
    if asked.strategy != LAZY:
        return
    back = {_strategy_flag(case): EXTRA_BUFFER}
    if not case.rules.lazy:
        yield _fatal(
            f"SGLang {case.rules.label} does not know extra_buffer_lazy (0.5.13 and newer do).",
            remedy="Use extra_buffer.",
            flags=back,
        )
        return
    if asked.disable_overlap:
        yield _fatal(
            "The lazy extra buffer needs the overlap schedule: an assertion.",
            remedy="Leave disable_overlap_schedule out, or use extra_buffer.",
            flags={"disable_overlap_schedule": None},
            evidence=("Lazy extra buffer requires overlap schedule",),
        )
    if asked.pd_mode != "null" and case.flag_since((0, 5, 17)):
        yield _fatal(
            "The lazy extra buffer does not go with PD disaggregation.", remedy="Use extra_buffer.", flags=back
        )
    if asked.speculation is not None:
        dies = not case.flag_since((0, 5, 17)) or (
            asked.speculation.algorithm == "DFLASH" and not case.flag_since((0, 5, 18))
        )
        if dies:
            yield _fatal(
                f"The lazy extra buffer does not go with {asked.speculation.algorithm} in SGLang {case.rules.label}.",
                remedy="Use extra_buffer.",
                flags=back,
            )


def _unified_memory(case: _Case) -> Iterator[Finding]:
    asked = case.asked
    if not asked.unified_memory:
        return
    off: dict[str, Any] = {"enable_unified_memory": None}
    if not case.flag_since((0, 5, 15)):
        yield _finding(
            Severity.FATAL,
            f"SGLang {case.rules.label} does not know enable_unified_memory (0.5.15 and newer do).",
            remedy="Leave it out.",
            flags=off,
            kind=FindingId.UNKNOWN_FLAG,
        )
        return
    early = not case.flag_since((0, 5, 18))
    others = {
        "speculative decoding": asked.speculation is not None and early,
        "PD disaggregation": asked.pd_mode != "null" and early,
        "a hierarchical cache": case.on("enable_hierarchical_cache") and not case.flag_since((0, 5, 21)),
        "lmcache": case.on("enable_lmcache"),
    }
    for what, clash in others.items():
        if clash:
            yield _fatal(
                f"Unified memory does not go with {what} in SGLang {case.rules.label}: the start dies of an assertion.",
                remedy="Leave enable_unified_memory out.",
                flags=off,
            )
    if asked.kv_cache_dtype.startswith("fp8"):
        yield _warning(
            "Unified memory with 8-bit KV died in the first forward on a real 0.5.17 (a kernel that does not compile).",
            remedy="Leave enable_unified_memory out, or use 16-bit KV.",
            flags=off,
            evidence=("triton.compiler.errors.CompilationError ... only int8 supported!",),
        )
    backend = asked.attention_backend
    if early and backend is not None and backend != "triton" and case.shape.mla_width is None:
        yield _fatal(
            f"Unified memory needs the triton attention backend, {backend} was asked.",
            remedy="Set attention_backend to triton, or leave enable_unified_memory out.",
            flags={"attention_backend": "triton"},
        )


def _corrupting(case: _Case) -> Iterator[Finding]:
    if not case.hybrid:
        return
    if case.on("enable_mixed_chunk"):
        yield _fatal(
            "Mixed chunks corrupt the states that the prefix cache keeps: answers get worse, unseen.",
            remedy="Leave enable_mixed_chunk out.",
            flags={"enable_mixed_chunk": None},
        )
    if case.on("enable_torch_compile"):
        yield _fatal(
            "torch.compile gives wrong output or does not start on models with states.",
            remedy="Leave enable_torch_compile out.",
            flags={"enable_torch_compile": None},
        )
    if case.on("cpu_offload_gb") and case.shape.family in (Family.GDN, Family.KDA):
        yield _fatal(
            "cpu_offload_gb breaks the tied parameters of linear-attention layers.",
            remedy="Leave it out; a smaller quantisation or more cards instead.",
            flags={"cpu_offload_gb": None},
            evidence=("functional_call got multiple values for keys",),
        )
    if case.on("enable_int8_mamba_checkpoint") and case.on("enable_hierarchical_cache"):
        yield _fatal(
            "int8 state checkpoints do not go with a hierarchical cache.",
            remedy="Leave one of the two out.",
            flags={"enable_int8_mamba_checkpoint": None},
        )


def _backends(case: _Case) -> Iterator[Finding]:
    if case.shape.architecture in _NO_TRITON and case.asked.attention_backend == "triton":
        yield _fatal(
            f"{case.shape.architecture} does not run with the triton attention backend: an assertion.",
            remedy="Use flashinfer, or leave attention_backend out.",
            flags={"attention_backend": "flashinfer"},
        )
    if case.on("enable_linear_replayssm") and case.asked.strategy in (EXTRA_BUFFER, LAZY):
        yield _fatal(
            "enable_linear_replayssm needs the no_buffer strategy.",
            remedy="Leave enable_linear_replayssm out, or use no_buffer with the overlap schedule off.",
            flags={"enable_linear_replayssm": None},
        )
    if case.asked.replayssm and case.asked.speculation is not None and case.asked.speculation.topk > 1:
        yield _fatal(
            "The replay ring needs a draft chain: speculative_eagle_topk 1.",
            remedy="Set speculative_eagle_topk to 1.",
            flags={"speculative_eagle_topk": 1},
        )


def _speculation(case: _Case) -> Iterator[Finding]:
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
        yield _warning(
            f"With top-k 1 SGLang sets the draft tokens to steps + 1: {speculation.draft_tokens}, not {asked}.",
            remedy="Ask for steps + 1 draft tokens, or change speculative_num_steps.",
            flags={"speculative_num_draft_tokens": speculation.draft_tokens},
        )
    if case.asked.requests is None:
        yield _warning(
            "Speculation without max_running_requests plans for 48: each keeps draft states.",
            remedy="Set max_running_requests to the requests that really run at once.",
        )
    miscounted = case.flag_since((0, 5, 14)) and not case.flag_since((0, 5, 18)) and case.shape.multimodal
    if miscounted and case.on("speculative_draft_model_path") and case.shape.family is Family.GDN:
        yield _warning(
            "A draft named by path makes SGLang count every layer as draft: the KV pool falls to a fifth.",
            remedy="Leave speculative_draft_model_path out: the draft is in the checkpoint.",
            flags={"speculative_draft_model_path": None},
        )
    if str(case.flags.get("startup_weight_load_mode", "")) == "overlap":
        yield _fatal(
            "startup_weight_load_mode overlap does not go with speculative decoding.",
            remedy="Leave startup_weight_load_mode out.",
            flags={"startup_weight_load_mode": None},
        )


def _names(case: _Case) -> Iterator[Finding]:
    old, new = "mamba_scheduler_strategy", "mamba_radix_cache_strategy"
    if old in case.flags and case.flag_since((0, 5, 20)):
        yield _finding(
            Severity.FATAL,
            f"SGLang {case.rules.label} does not know {old} any more.",
            remedy=f"It is called {new} now.",
            flags={old: None, new: case.flags[old]},
            kind=FindingId.UNKNOWN_FLAG,
        )
    if new in case.flags and not case.flag_since((0, 5, 14)):
        yield _finding(
            Severity.FATAL,
            f"SGLang {case.rules.label} does not know {new} yet.",
            remedy=f"It is called {old} there.",
            flags={new: None, old: case.flags[new]},
            kind=FindingId.UNKNOWN_FLAG,
        )


def _without_effect(case: _Case) -> Iterator[Finding]:
    asked = case.asked
    if not case.hybrid:
        return
    if asked.slots is not None and asked.ratio is not None:
        yield _note(
            "max_mamba_cache_size sets the slots: mamba_full_memory_ratio has no effect beside it.",
            remedy="Leave one of the two out.",
        )
    elif asked.disable_radix and asked.requests is not None and asked.ratio is not None:
        yield _note(
            "Without the prefix cache the slots follow max_running_requests: the ratio has no effect.",
            remedy="Leave mamba_full_memory_ratio out.",
        )
    if asked.disable_radix and asked.strategy in (EXTRA_BUFFER, LAZY) and case.rules.auto_extra_buffer:
        yield _note(
            "Without the prefix cache there is no extra buffer: the strategy has no effect.",
            remedy="Leave disable_radix_cache out, or the strategy.",
        )


def _context(case: _Case) -> Iterator[Finding]:
    asked, longest = case.asked.context_length, case.shape.context_len
    allowed = case.environment.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true")
    if asked is not None and asked > longest and not allowed:
        yield _fatal(
            f"context_length {asked:,} is above the model's {longest:,}: SGLang refuses it.",
            remedy=f"Ask for at most {longest:,}, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1.",
            flags={"context_length": longest},
        )


_RULES: tuple[Callable[[_Case], Iterator[Finding]], ...] = (
    _pages_without_buffer,
    _overlap_without_buffer,
    _speculation_without_buffer,
    _extra_buffer,
    _unified_memory,
    _corrupting,
    _backends,
    _speculation,
    _names,
    _without_effect,
    _context,
)
