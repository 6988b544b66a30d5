"""Why a start or a server died. Rules in order: the nearer cause first, its consequences after it.

Texts are those of SGLang 0.5.2 to 0.5.23. An exit status alone is never evidence: 0.5.17 ends with -9 after a clean
stop, a refused sizing and a kernel error alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tuner.doctor.case import AFTERMATH, LogCase, Seen, finding
from tuner.doctor.fraction import fraction_above
from tuner.findings import Finding, FindingId, Severity
from tuner.flags import lookup, suggest
from tuner.serverlog.model import Phase
from tuner.units import format_gib

Rule = Callable[[LogCase], Finding | None]

_STEP = 0.02

_UNKNOWN_ARGUMENT = re.compile(r": error: unrecognized arguments: (?P<flags>.*)")
_WRONG_VALUE = re.compile(r": error: argument (?P<flag>[^:]+): (?P<why>.*)|: error: (?P<other>.*)")
_NO_MODULE = re.compile(r"(?:ModuleNotFoundError: |python[\d.]*: )No module named ['\"]?(?P<module>[\w.]+)")
_NO_MODEL = re.compile(
    r"Can't load the configuration of|does not appear to have a file named config\.json|Repo id must be in the form|"
    r"is not a local folder and is not a valid model identifier|No such file or directory: '[^']*config\.json|"
    r"LocalEntryNotFoundError|Cannot find any model weights|Model path .* does not exist"
)
_CONFLICT = re.compile(
    r"Page size must be 1 for MambaRadixCache|MambaComponent requires page_size=1|no_buffer only supports page_size=1|"
    r"is not compatible with radix cache when using|no_buffer do not support overlap schedule|"
    r"Lazy extra buffer requires overlap|functional_call got multiple values for keys|"
    r"--startup-weight-load-mode=overlap is not supported|extra_buffer is not supported"
)
_PAGE = re.compile(r"[Pp]age.size")
_CONTEXT = re.compile(
    r"User-specified context_length \((?P<asked>\d+)\) is greater than the derived context_length \((?P<most>\d+)\)"
)
_STATES_REFUSED = re.compile(
    r"Not enough GPU memory for hybrid \(mamba/linear-attention\) state cache\. "
    r"Computed max_mamba_cache_size=(?P<slots>-?\d{1,12}) "
    r"\(total_rest_memory=(?P<rest>-?[\d.]{1,12}) GB, mamba_cache_per_req=(?P<slot>[\d.]{1,12}) MB\)"
)
_STATES_TOO_FEW = re.compile(
    r"state cache is too small to serve any requests\."
    r"(?: max_mamba_cache_size=(?P<slots>-?\d{1,12}), mamba_ratio=(?P<per_request>\d{1,6}))?"
)
_WEIGHTS_LEAVE_NOTHING = re.compile(
    r"Loaded weights leave no GPU memory for the KV cache"
    r"(?: under --mem-fraction-static=[\d.]+\. Raise --mem-fraction-static above (?P<least>\d?\.\d+))?"
)
_NOT_ENOUGH = re.compile(
    r"Not enough memory\. Please try to increase --mem-fraction-static|max_running_request is zero|"
    r"Memory pool size is too small"
)
_HOST_CACHE = re.compile(
    r"Not enough host memory available\. Requesting (?P<want>[\d.]+) GB.* (?P<free>[\d.]+) GB free"
)
_TOOL = re.compile(
    r"No such file or directory: '(?P<tool>ninja|nvcc|gcc|g\+\+|cc|c\+\+)'|"
    r"(?P<tool2>ninja|nvcc): (?:command )?not found|"
    r"(?P<tool3>CUDA_HOME) environment variable is not set|Failed to find C compiler"
)
_PEER = re.compile(r"cudaErrorPeerAccess|peer access is not supported|PeerAccessUnsupported")
_ALLREDUCE = re.compile(r"Setup Custom allreduce failed")
_KERNEL = re.compile(
    r"CompilationError|triton\S*OutOfResources|MLIRError|PassManager::run failed|Unsupported architecture|"
    r"no kernel image is available|illegal memory access|illegal instruction|misaligned address|device-side assert|"
    r"Backend requires SM|is only supported on SM|GPU page fault|Memory access fault by GPU|"
    r"CUDA error: (?!out of memory)|Fatal Python error: Segmentation fault"
)
_OOM = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|HIP out of memory")
_OTHER_PROCESS = re.compile(r"Process (?P<pid>\d{1,9}) has (?P<gib>\d{1,4}(?:\.\d+)?) GiB memory in use")
_CAPTURE_FAILED = re.compile(r"Capture .{0,40}failed: ")
_RUN_OOM = re.compile(
    r"(?:Prefill|Decode) out of memory\. Try to lower|alloc_req_slots runs out of memory|"
    r"Out of memory even after retracting all other requests"
)
_SLOT_ASSERT = re.compile(r"Can not alloc mamba cache|Not enough space for mamba (?:cache|ping pong idx)")
_UNBALANCED = re.compile(r"memory capacity is unbalanced")
_BIND = re.compile(
    r"\[Errno 98\].*bind on address \('(?P<host>[^']*)', (?P<port>\d{1,5})\)|"
    r"(?P<name>\w+) at (?P<inner>\d{1,5}) is not available in [\d.]+ seconds|"
    r"Port is already in use|\[Errno 98\]"
)
_SGLANG_HOLDER = re.compile(r"process\.(?:name|cmdline)\(\)=.{0,200}sglang")
_HOST_KILL = re.compile(
    r"died during initialization \(exit code: -9\)|scheduler is dead|crashed with exit code -9|^Killed$|oom-kill|"
    r"Out of memory: Killed process|DefaultCPUAllocator: (?:can't|not enough memory)|Cannot allocate memory"
)
_BUS_ERROR = re.compile(r"Fatal Python error: Bus error|exit code:? -7\b|No space left on device: '/dev/shm")
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b")


def _unknown_flag(case: LogCase) -> Finding | None:
    if seen := case.find(_UNKNOWN_ARGUMENT):
        flags = re.findall(r"--[\w-]+", seen.match["flags"])
        near = [f"{flag} → --{name.replace('_', '-')}" for flag in flags if (name := suggest(flag))]
        hint = f" Nearest real flags: {', '.join(near)}." if near else ""
        return finding(
            FindingId.UNKNOWN_FLAG,
            Severity.FATAL,
            f"This SGLang does not know {', '.join(flags) or 'a flag of the recipe'}.",
            evidence=(seen.line,),
            remedy=f"Take the flag out of the recipe, or write it as this version spells it.{hint}",
            flags={flag[2:].replace("-", "_"): None for flag in flags},
        )
    if seen := case.find(_WRONG_VALUE):
        names = [part.strip() for part in (seen.match["flag"] or "").split("/") if part.strip().startswith("--")]
        info = lookup(names[0]) if names else None
        choices = f" It takes: {', '.join(map(str, info.choices))}." if info and info.choices else ""
        return finding(
            FindingId.UNKNOWN_FLAG,
            Severity.FATAL,
            f"This SGLang does not take the value of {names[0]}."
            if names
            else "This SGLang does not take the command line.",
            evidence=(seen.line,),
            remedy=f"Correct the value in the recipe.{choices}",
        )
    return None


def _module_missing(case: LogCase) -> Finding | None:
    seen = case.find(_NO_MODULE)
    if not seen:
        return None
    module = seen.match["module"].split(".")[0]
    remedy = (
        "Set [server] python in the recipe to the interpreter of the environment that has SGLang."
        if module == "sglang"
        else f"Install {module} into the environment of the server's interpreter."
    )
    return finding(
        FindingId.MODULE_MISSING,
        Severity.FATAL,
        f"The server's Python has no module {module}.",
        evidence=(seen.line,),
        remedy=remedy,
    )


def _model_missing(case: LogCase) -> Finding | None:
    seen = case.find(_NO_MODEL)
    return seen and finding(
        FindingId.MODEL_MISSING,
        Severity.FATAL,
        "The model cannot be found or is not complete.",
        evidence=(seen.line, f"model_path: {case.argument('model_path') or 'not told'}"),
        remedy="Set model_path to a folder that holds config.json and the weights.",
    )


def _flag_conflict(case: LogCase) -> Finding | None:
    if seen := case.find(_CONTEXT):
        most = int(seen.match["most"])
        return finding(
            FindingId.FLAG_CONFLICT,
            Severity.FATAL,
            f"The model has no context of {seen.match['asked']} tokens.",
            evidence=(seen.line,),
            remedy=f"Ask for a context_length of at most {most}, or leave it out.",
            flags={"context_length": most},
        )
    seen = case.find(_CONFLICT)
    if not seen:
        return None
    flags: dict[str, str | None]
    if "functional_call" in seen.line:
        remedy, flags = "Leave cpu_offload_gb out: it breaks linear-attention layers.", {"cpu_offload_gb": None}
    elif "startup-weight-load-mode" in seen.line:
        remedy, flags = "Leave startup_weight_load_mode out.", {"startup_weight_load_mode": None}
    elif _PAGE.search(seen.line):
        remedy, flags = "Leave page_size out, or use the extra_buffer strategy.", {"page_size": None}
    elif "overlap" in seen.line:
        remedy, flags = "Use the extra_buffer strategy.", {"mamba_radix_cache_strategy": "extra_buffer"}
    elif "extra_buffer is not supported" in seen.line:
        remedy, flags = "Use the no_buffer strategy.", {"mamba_radix_cache_strategy": "no_buffer"}
    else:
        remedy, flags = "Use the extra_buffer strategy.", {"mamba_radix_cache_strategy": "extra_buffer"}
    return finding(
        FindingId.FLAG_CONFLICT,
        Severity.FATAL,
        "Two flags of the recipe do not go together.",
        evidence=(seen.line,),
        remedy=remedy,
        flags=flags,
    )


def _slots_negative(case: LogCase) -> Finding | None:
    seen = case.find(_STATES_REFUSED)
    if not seen or float(seen.match["rest"]) >= 0:
        return None
    rest = float(seen.match["rest"])
    remedy, flags = _raise_fraction(case, shortfall_gib=-rest)
    return finding(
        FindingId.SLOTS_NEGATIVE,
        Severity.FATAL,
        f"The weights alone are {format_gib(-rest)} larger than mem_fraction_static allows: no state slot fits.",
        evidence=(seen.line,),
        remedy=remedy,
        flags=flags,
    )


def _no_room_at_sizing(case: LogCase) -> Finding | None:
    if seen := case.find(_STATES_REFUSED):
        return finding(
            FindingId.NO_ROOM_AT_SIZING,
            Severity.FATAL,
            f"The states' share of {seen.match['rest']} GiB holds no slot.",
            evidence=(seen.line,),
            remedy="Raise mamba_full_memory_ratio; with speculation lower max_running_requests or the draft tokens.",
        )
    if seen := case.find(_STATES_TOO_FEW):
        need = int(seen.match["per_request"]) + 1 if seen.match["per_request"] else None
        return finding(
            FindingId.NO_ROOM_AT_SIZING,
            Severity.FATAL,
            "The state slots are too few for a single request.",
            evidence=(seen.line,),
            remedy="Raise max_mamba_cache_size or mamba_full_memory_ratio, or keep states in bfloat16.",
            flags={"max_mamba_cache_size": need} if need else {},
        )
    if seen := case.find(_WEIGHTS_LEAVE_NOTHING):
        least = float(seen.match["least"]) if seen.match["least"] else None
        remedy, flags = fraction_above(least) if least is not None else _raise_fraction(case)
        return finding(
            FindingId.NO_ROOM_AT_SIZING,
            Severity.FATAL,
            "The weights leave nothing for the pools at this mem_fraction_static.",
            evidence=(seen.line,),
            remedy=remedy,
            flags=flags,
        )
    if seen := case.find(_NOT_ENOUGH):
        remedy, flags = _raise_fraction(case)
        return finding(
            FindingId.NO_ROOM_AT_SIZING,
            Severity.FATAL,
            "No memory is left for the KV pool.",
            evidence=(seen.line,),
            remedy=remedy,
            flags=flags,
        )
    return None


def _raise_fraction(case: LogCase, shortfall_gib: float | None = None) -> tuple[str, dict[str, float]]:
    """Remedy and flags of a fraction that is too low. The rule: rest = free after loading - before x (1 - fraction)."""
    before, after, asked = case.facts.free_before_gib, case.facts.free_after_gib, case.number("mem_fraction_static")
    if not before:
        return "Raise mem_fraction_static in steps of 0.02, or load smaller weights.", {}
    if shortfall_gib is not None and asked is not None:
        return fraction_above(asked + shortfall_gib / before)
    if after is not None:
        return fraction_above(1 - after / before)
    return "Raise mem_fraction_static in steps of 0.02, or load smaller weights.", {}


def _host_cache(case: LogCase) -> Finding | None:
    seen = case.find(_HOST_CACHE)
    return seen and finding(
        FindingId.HICACHE_HOST_MEMORY,
        Severity.FATAL,
        f"The cache tier in host memory wants {seen.match['want']} GB, {seen.match['free']} GB are free.",
        evidence=(seen.line,),
        remedy="Lower hicache_size or hicache_ratio (the size counts per rank), or do without that tier.",
        flags={"enable_hierarchical_cache": None},
    )


def _tool_chain(case: LogCase) -> Finding | None:
    seen = case.find(_TOOL)
    if not seen:
        return None
    tool = seen.match["tool"] or seen.match["tool2"] or seen.match["tool3"] or "a C compiler"
    return finding(
        FindingId.TOOL_CHAIN_MISSING,
        Severity.FATAL,
        f"A kernel had to be compiled, and {tool} was not found.",
        evidence=(seen.line,),
        remedy="Put the bin folder of the server's environment and CUDA's bin folder first on PATH "
        "(ninja and nvcc must be there), or use the triton attention backend.",
    )


def _kernel_crash(case: LogCase) -> Finding | None:
    seen = case.find(_KERNEL)
    if not seen or _OOM.search(seen.line):
        return None
    free = case.free_gib
    known = free is not None
    flags: dict[str, object] = {}
    remedy = "Try another attention_backend (triton or flashinfer), moe_runner_backend or linear_attn_backend"
    if case.on("enable_unified_memory"):
        remedy = "Leave enable_unified_memory out, or use 16-bit KV"
        flags = {"enable_unified_memory": None}
    elif re.search(r"FlashAttention v3 Backend requires SM|Unsupported architecture", seen.line):
        remedy = "Use the flashinfer attention backend"
        flags = {"attention_backend": "flashinfer"}
    return finding(
        FindingId.KERNEL_CRASH,
        Severity.FATAL,
        "A GPU kernel failed; this is not a lack of memory."
        if known and (free or 0) >= 1
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


def _peer_access(case: LogCase) -> Finding | None:
    # "Setup Custom allreduce failed ... peer access is not supported" is harmless on consumer cards.
    seen = next(
        (Seen(line, m) for line in case.lines if (m := _PEER.search(line)) and not _ALLREDUCE.search(line)), None
    )
    return seen and finding(
        FindingId.PEER_ACCESS,
        Severity.FATAL,
        "The driver does not let these GPUs reach each other's memory.",
        evidence=(seen.line,),
        remedy="Run on one card (tp_size 1); NCCL_P2P_DISABLE=1 does not help where a kernel needs the access itself.",
        flags={"tp_size": None},
    )


def _gpu_busy(case: LogCase) -> Finding | None:
    seen = case.find(_OTHER_PROCESS)
    if seen and _OOM.search(seen.line) and 1 <= float(seen.match["gib"]) < 2048:
        return finding(
            FindingId.GPU_BUSY,
            Severity.FATAL,
            f"The card was out of memory while process {seen.match['pid']} held {seen.match['gib']} GiB of it.",
            evidence=(seen.line,),
            remedy="End that process if it is not needed, or plan with what it leaves free.",
        )
    if seen := case.find(_UNBALANCED):
        return finding(
            FindingId.GPU_BUSY,
            Severity.FATAL,
            "The GPUs do not have the same free memory: another process holds some of it.",
            evidence=(seen.line,),
            remedy="Look at the processes on each GPU and end what is not needed.",
        )
    return None


def _oom(case: LogCase) -> Finding | None:
    seen = case.find(_OOM) or case.find(_RUN_OOM)
    if not seen:
        return None
    evidence = [seen.line]
    if case.free_gib is not None:
        evidence.append(f"free memory told last: {format_gib(case.free_gib)}")
    if case.find(_RUN_OOM) and not case.find(_OOM):
        return finding(
            FindingId.OOM_WHILE_SERVING,
            Severity.FATAL,
            "The pools could not take the requests that were running.",
            evidence=evidence,
            remedy="Lower max_running_requests or chunked_prefill_size, or give the KV pool more.",
        )
    if case.reached in (Phase.LAUNCHING, Phase.LOADING):
        return finding(
            FindingId.NO_ROOM_AT_SIZING,
            Severity.FATAL,
            "The card was full before the weights were loaded.",
            evidence=evidence,
            remedy="Free the card, or use smaller weights or more cards; flags of the pools do not help here.",
        )
    fraction = case.number("mem_fraction_static")
    lower = {"mem_fraction_static": round(fraction - _STEP, 3)} if fraction and fraction > 0.1 else {}
    if case.reached in (Phase.WARMING, Phase.READY):
        return finding(
            FindingId.OOM_WHILE_SERVING,
            Severity.FATAL,
            "The card ran out of memory while serving: what lives outside the pools had too little room.",
            evidence=evidence,
            remedy="Lower mem_fraction_static a little, or chunked_prefill_size; keep the headroom line.",
            flags=lower,
        )
    return finding(
        FindingId.OOM_IN_CAPTURE,
        Severity.FATAL,
        "The card ran out of memory while the CUDA graphs were captured: they live outside the pools.",
        evidence=evidence,
        remedy="Lower mem_fraction_static a little, or cuda_graph_max_bs_decode to the requests really running.",
        flags=lower,
    )


def _capture_failed(case: LogCase) -> Finding | None:
    seen = case.find(_CAPTURE_FAILED)
    return seen and finding(
        FindingId.KERNEL_CRASH,
        Severity.FATAL,
        "The CUDA graphs could not be captured, for another reason than memory.",
        evidence=(seen.line,),
        remedy="Try another attention_backend; disable_cuda_graph tells as a test whether the graphs are to blame.",
    )


def _slot_assert(case: LogCase) -> Finding | None:
    seen = case.find(_SLOT_ASSERT)
    if not seen:
        return None
    facts = case.facts
    slots, requests = facts.mamba_slots, facts.max_running_requests
    evidence = [seen.line]
    flags: dict[str, int] = {}
    if slots is not None and requests is not None:
        evidence.append(f"{slots} state slots, {requests} running requests admitted")
        if requests > 1:
            flags = {"max_running_requests": requests - 1}
    return finding(
        FindingId.SLOT_ASSERT,
        Severity.FATAL,
        "The state slots ran out while serving, and the scheduler died of it.",
        evidence=evidence,
        remedy="Admit fewer requests, or raise max_mamba_cache_size to requests x slots per request + 1 and more; "
        "a pool of exactly that product is too small.",
        flags=flags,
    )


def _double_start(case: LogCase) -> Finding | None:
    bind, holder = case.find(_BIND), case.find(_SGLANG_HOLDER)
    return (
        finding(
            FindingId.DOUBLE_START,
            Severity.FATAL,
            "Another SGLang already holds a port of this start.",
            evidence=(bind.line, holder.line) if bind.line != holder.line else (bind.line,),
            remedy="Stop the other server first; starting beside it also needs its share of the card.",
        )
        if bind and holder
        else None
    )


def _port_in_use(case: LogCase) -> Finding | None:
    seen = case.find(_BIND)
    if not seen:
        return None
    port = seen.match["port"] or seen.match["inner"] or case.argument("port") or ""
    return finding(
        FindingId.PORT_IN_USE,
        Severity.FATAL,
        f"Port {port} is taken." if port else "A port that the server needs is taken.",
        evidence=(seen.line,),
        remedy="Something listens there, most likely a server started before: stop it, or choose another port. "
        "SGLang notices only after everything is loaded.",
    )


def _shared_memory(case: LogCase) -> Finding | None:
    seen = case.find(_BUS_ERROR)
    return seen and finding(
        FindingId.HOST_MEMORY_KILL,
        Severity.FATAL,
        "Shared memory ran out: neither the card nor the flags.",
        evidence=(seen.line,),
        remedy="Look at the free space of /dev/shm; enlarge it, or remove what dead servers left there.",
    )


def _host_memory_kill(case: LogCase) -> Finding | None:
    seen = case.find(_HOST_KILL)
    if not seen or any(_EXCEPTION.match(line) and line != seen.line for line in case.lines if not _is_generic(line)):
        return None
    return finding(
        FindingId.HOST_MEMORY_KILL,
        Severity.FATAL,
        "The system ended a process of the server, most likely for lack of host memory.",
        evidence=(seen.line, f"reached: {case.reached}"),
        remedy="Look at the kernel's log for the OOM killer (journalctl -k); set MAX_JOBS=6 while kernels compile, "
        "and lower the cache tier in host memory.",
    )


def _is_generic(line: str) -> bool:
    """The main process' own exception, which only says that a child is gone."""
    return bool(re.search(r"scheduler (?:is dead|died)|EOFError", line))


def _unknown(case: LogCase) -> Finding | None:
    exception = next((x for x in reversed(case.lines) if _EXCEPTION.match(x) and not _is_generic(x)), None)
    last = [line for line in case.tail if not AFTERMATH.search(line)][-5:]
    evidence = dict.fromkeys((*(() if exception is None else (exception,)), *last))
    return finding(
        FindingId.UNKNOWN,
        Severity.FATAL,
        f"The server died (it had reached: {case.reached}) of something the tuner does not know.",
        evidence=evidence,
        remedy="Read the end of the log; where it says nothing, the kernel's log (journalctl -k) tells of kills.",
    )


RULES: tuple[Rule, ...] = (
    _unknown_flag,
    _module_missing,
    _model_missing,
    _flag_conflict,
    _slots_negative,
    _no_room_at_sizing,
    _host_cache,
    _tool_chain,
    _slot_assert,
    _gpu_busy,
    _oom,
    _peer_access,
    _kernel_crash,
    _capture_failed,
    _double_start,
    _port_in_use,
    _shared_memory,
    _host_memory_kill,
    _unknown,
)


def cause_of_death(case: LogCase, rules: Iterable[Rule] = RULES) -> Finding | None:
    """The nearest cause, by the first rule that knows it."""
    return next((found for rule in rules if (found := rule(case))), None)
