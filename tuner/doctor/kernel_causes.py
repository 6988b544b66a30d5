"""Kernels that fail, GPUs that are kept apart, and weights that do not fit the code: never a matter of memory flags."""

from __future__ import annotations

import re

from tuner.doctor.case import LogCase, Seen, finding
from tuner.doctor.cause import Cause, told_by_a_line
from tuner.doctor.memory_causes import OOM
from tuner.doctor.traces import AFTERMATH
from tuner.findings import Finding, FindingId, Severity
from tuner.units import format_gib

_CAPTURE_FAILED = re.compile(r"Capture .{0,40}failed: ")
_PEER = re.compile(r"cudaErrorPeerAccess|peer access is not supported|PeerAccessUnsupported")
_ALLREDUCE = re.compile(r"Setup Custom allreduce failed")
_KERNEL = re.compile(
    r"CompilationError|triton\S*OutOfResources|MLIRError|PassManager::run failed|Unsupported architecture|"
    r"no kernel image is available|illegal memory access|illegal instruction|misaligned address|device-side assert|"
    r"Backend requires SM|is only supported on SM|GPU page fault|Memory access fault by GPU|"
    r"CUDA error: (?!out of memory)|Fatal Python error: Segmentation fault|mismatch in expected `n`"
)

#: The checkpoint and the code that loads it do not fit: no flag of the pools is to blame.
checkpoint_unfit = told_by_a_line(
    (
        Cause(
            id=FindingId.CHECKPOINT_UNFIT,
            line=r"has no SGlang implementation|Model architectures? .{0,200} (?:is|are) not supported",
            title="This SGLang does not know the model's class.",
            remedy="Use a newer SGLang; no flag helps here.",
        ),
        Cause(
            id=FindingId.CHECKPOINT_UNFIT,
            line=r"mat1 and mat2 shapes cannot be multiplied|size_[nk]=\d+ not divisible by tile|"
            r"is not divisible by weight quantization block|size mismatch for |"
            r"copying a param with shape|Some parameters .{0,80}not (?:found|initialized)",
            title="The weights do not have the shape that this SGLang expects of them.",
            remedy="Use a newer SGLang or another checkpoint: in quantised ones the state layers must be left out of "
            "the quantisation. It is not a lack of memory.",
        ),
    )
)


def peer_access(case: LogCase) -> Finding | None:
    """GPUs that the driver keeps apart."""
    # "Setup Custom allreduce failed ... peer access is not supported" is harmless on consumer cards.
    seen = case.find(_PEER, unless=_ALLREDUCE)
    return seen and finding(
        FindingId.PEER_ACCESS,
        Severity.FATAL,
        "The driver does not let these GPUs reach each other's memory.",
        evidence=(seen.line,),
        remedy="Run on one card (tp_size 1); NCCL_P2P_DISABLE=1 does not help where a kernel needs the access itself.",
        flags={"tp_size": None},
    )


def kernel_crash(case: LogCase) -> Finding | None:
    """A kernel that fails or does not compile: whatever memory was free, the memory flags are not to blame."""
    seen = case.find(_KERNEL, unless=OOM)
    if not seen:
        return None
    free = case.free_gib
    remedy = "Try another attention_backend (triton or flashinfer), moe_runner_backend or linear_attn_backend"
    flags: dict[str, object] = {}
    if case.on("enable_unified_memory"):
        remedy = "Leave enable_unified_memory out, or use 16-bit KV"
        flags = {"enable_unified_memory": None}
    elif re.search(r"FlashAttention v3 Backend requires SM|Unsupported architecture", seen.line):
        remedy = "Use the flashinfer attention backend"
        flags = {"attention_backend": "flashinfer"}
    elif "mismatch in expected `n`" in seen.line:
        remedy = "The MoE kernel does not fit this model's experts: leave moe_runner_backend out"
        flags = {"moe_runner_backend": None}
    return finding(
        FindingId.KERNEL_CRASH,
        Severity.FATAL,
        "A GPU kernel failed; this is not a lack of memory."
        if free is not None and free >= 1
        else "A GPU kernel failed or could not be compiled.",
        evidence=(
            seen.line,
            *_following(case, seen),
            f"free memory then: {format_gib(free)}" if free is not None else "",
        ),
        remedy=f"{remedy}; leave the memory flags alone. If it stays, another SGLang version is the next thing to try.",
        flags=flags,
    )


def _following(case: LogCase, seen: Seen) -> tuple[str, ...]:
    """The plain sentence that a compiler puts at the end of its error, several lines on."""
    for line in case.tail[case.tail.index(seen.line) + 1 :] if seen.line in case.tail else ():
        if re.search(r"supported!|not supported|error:|Error:", line) and not AFTERMATH.search(line):
            return (line,)
        if AFTERMATH.search(line) and not line.lstrip().startswith(("File", "^")):
            break
    return ()


def capture_failed(case: LogCase) -> Finding | None:
    """A capture that fails for another reason than memory."""
    seen = case.find(_CAPTURE_FAILED)
    return seen and finding(
        FindingId.KERNEL_CRASH,
        Severity.FATAL,
        "The CUDA graphs could not be captured, for another reason than memory.",
        evidence=(seen.line,),
        remedy="Try another attention_backend; disable_cuda_graph tells as a test whether the graphs are to blame.",
    )
