"""Deaths of the machine around the server: driver, tools, ports, host memory, a proxy, a hand from outside."""

from __future__ import annotations

import re

from tuner.doctor.case import LogCase, finding
from tuner.doctor.cause import Cause, told_by_a_line
from tuner.doctor.traces import AFTERMATH, EXCEPTION, is_generic
from tuner.findings import Finding, FindingId, Severity
from tuner.serverlog.model import Phase

_HOST_CACHE = re.compile(
    r"Not enough host memory available\.(?: Requesting (?P<want>[\d.]+) GB.* (?P<free>[\d.]+) GB free)?"
)
_TOOL = re.compile(
    r"No such file or directory: '(?P<tool>ninja|nvcc|gcc|g\+\+|cc|c\+\+)'|"
    r"(?P<tool2>ninja|nvcc): (?:command )?not found|"
    r"(?P<tool3>CUDA_HOME) environment variable is not set|Failed to find C compiler|"
    r"(?P<tool4>cuDNN) is not available"
)
_BIND = re.compile(
    r"\[Errno 98\].*bind on address \('(?P<host>[^']*)', (?P<port>\d{1,5})\)|"
    r"(?P<name>\w+) at (?P<inner>\d{1,5}) is not available in [\d.]+ seconds|"
    r"Port is already in use|\[Errno 98\]"
)
_SGLANG_HOLDER = re.compile(r"process\.(?:name|cmdline)\(\)=.{0,200}sglang")
_HOST_KILL = re.compile(
    r"died during initialization \(exit code: -9\)|crashed with exit code -9|^Killed$|oom-kill|"
    r"Out of memory: Killed process|DefaultCPUAllocator: (?:can't|not enough memory)|Cannot allocate memory"
)
_WATCHDOG = re.compile(r"watchdog timeout \(self\.watchdog_timeout=(?P<seconds>[\d.]+)")
_ENDED_BY = re.compile(r"exit(?:ed)?(?: with)? code:? (?P<code>-?\d{1,3})")

#: The card or the driver cannot run this PyTorch at all.
no_driver = told_by_a_line(
    (
        Cause(
            id=FindingId.DRIVER_OLD,
            line=r"driver on your system is too old \(found version (?P<found>\d+)\)|"
            r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver|"
            r"forward compatibility was attempted on non supported HW|"
            r"unsupported display driver / cuda driver combination|"
            r"the provided PTX was compiled with an unsupported toolchain",
            title="The GPU driver is older than this PyTorch and its CUDA need.",
            remedy="Update the driver, or use a SGLang that was built for an older CUDA; no flag helps here.",
        ),
        Cause(
            id=FindingId.DRIVER_OLD,
            line=r"(?i)elastic.{0,40}(?:realloc\w*|resiz\w*).{0,40}time(?:d )?-?out",
            title="The pool that grows and shrinks was not given back its memory in time.",
            remedy="It needs a driver of 535 or newer and a card of its own: look at nvidia-smi, or leave "
            "enable_unified_memory out.",
            flags={"enable_unified_memory": None},
        ),
        Cause(
            id=FindingId.GPU_MISSING,
            line=r"No CUDA GPUs are available|no CUDA-capable device is detected|Found no NVIDIA driver|"
            r"Torch not compiled with CUDA enabled|invalid device ordinal|No accelerator .{0,40}(?:is )?available",
            title="The server sees no GPU, or not the one it was told to use.",
            remedy="Look at CUDA_VISIBLE_DEVICES, base_gpu_id and tp_size, and whether nvidia-smi works where the "
            "server runs.",
        ),
    )
)

#: What a warm-up through a proxy looks like.
proxy_in_the_way = told_by_a_line(
    (
        Cause(
            id=FindingId.PROXY_IN_THE_WAY,
            line=r"res=<Response \[50[234]\]>|warmup error: .{0,200}(?:ProxyError|50[234] )",
            title="The server's own first request was answered by something else, most likely a proxy.",
            remedy="Unset http_proxy, or set no_proxy=127.0.0.1,localhost for the server; it ends itself when its "
            "warm-up fails.",
        ),
    )
)

#: SIGBUS, which Python names itself: shared memory, neither the card nor RAM.
shared_memory_full = told_by_a_line(
    (
        Cause(
            id=FindingId.SHARED_MEMORY_FULL,
            line=r"Fatal Python error: Bus error|No space left on device: '/dev/shm",
            title="Shared memory ran out: neither the card nor the flags.",
            remedy="Look at the free space of /dev/shm; enlarge it (docker: --shm-size), or remove what dead servers "
            "left there (sgl_shm_*, psm_*).",
        ),
    )
)


def host_cache(case: LogCase) -> Finding | None:
    """A cache tier in host memory that does not fit there."""
    seen = case.find(_HOST_CACHE)
    if not seen:
        return None
    sizes = f"wants {seen.match['want']} GB, {seen.match['free']} GB are free" if seen.match["want"] else "does not fit"
    ranks = case.number("tp_size") or 1
    return finding(
        FindingId.HICACHE_HOST_MEMORY,
        Severity.FATAL,
        f"The cache tier in host memory {sizes}.",
        evidence=(seen.line, f"hicache_size={case.argument('hicache_size')}" if case.argument("hicache_size") else ""),
        remedy="Lower hicache_size or hicache_ratio, or do without that tier: the size counts for each of the "
        f"{ranks:.0f} ranks, before mid-2026 once more for the states, and 10 GB must stay free.",
        flags={"enable_hierarchical_cache": None},
    )


def tool_chain(case: LogCase) -> Finding | None:
    """A compiler or a library that a kernel needs."""
    seen = case.find(_TOOL)
    if not seen:
        return None
    if seen.match["tool4"]:
        return finding(
            FindingId.TOOL_CHAIN_MISSING,
            Severity.FATAL,
            "A kernel needs cuDNN, and the server's environment has none.",
            evidence=(seen.line,),
            remedy="Install cuDNN for this CUDA into the server's environment (nvidia-cudnn), or choose another "
            "fp8_gemm_backend.",
        )
    tool = seen.match["tool"] or seen.match["tool2"] or seen.match["tool3"] or "a C compiler"
    return finding(
        FindingId.TOOL_CHAIN_MISSING,
        Severity.FATAL,
        f"A kernel had to be compiled, and {tool} was not found.",
        evidence=(seen.line,),
        remedy="Put the bin folder of the server's environment and CUDA's bin folder first on PATH "
        "(ninja and nvcc must be there), or use the triton attention backend.",
    )


def double_start(case: LogCase) -> Finding | None:
    """A port that another SGLang holds."""
    bind, holder = case.find(_BIND), case.find(_SGLANG_HOLDER)
    return (
        finding(
            FindingId.DOUBLE_START,
            Severity.FATAL,
            "Another SGLang already holds a port of this start.",
            evidence=dict.fromkeys((bind.line, holder.line)),
            remedy="Stop the other server first, with all its schedulers: they outlive a killed main process. "
            "Starting beside it also needs its share of the card.",
        )
        if bind and holder
        else None
    )


def port_in_use(case: LogCase) -> Finding | None:
    """A port that somebody holds."""
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


def watchdog(case: LogCase) -> Finding | None:
    """A forward pass that did not come back."""
    seen = case.find(_WATCHDOG, unless=re.compile(r"self\.soft=True"))
    return seen and finding(
        FindingId.HANG,
        Severity.FATAL,
        f"A forward pass did not come back within {float(seen.match['seconds']):.0f} s, and the server ended itself.",
        evidence=(seen.line,),
        remedy="The first requests of a start compile kernels: raise watchdog_timeout if it was one. Otherwise try "
        "another attention_backend, or disable_cuda_graph as a test.",
    )


def host_memory_kill(case: LogCase) -> Finding | None:
    """A process that the system killed, where no exception of its own tells more."""
    seen = case.find(_HOST_KILL)
    if not seen or any(EXCEPTION.match(line) and line != seen.line for line in case.lines if not is_generic(line)):
        return None
    # Kernels compile until the server answers its first request.
    compiling = "" if case.was_ready else "set MAX_JOBS=6 while kernels compile, and "
    return finding(
        FindingId.HOST_MEMORY_KILL,
        Severity.FATAL,
        "The system ended a process of the server, most likely for lack of host memory.",
        evidence=(seen.line, f"reached: {case.reached}"),
        remedy="Look at the kernel's log for the OOM killer (journalctl -k, journalctl -u earlyoom); "
        f"{compiling}lower the cache tier in host memory.",
    )


def silent_end(case: LogCase) -> Finding | None:
    """A log that stops without an error of any kind: whatever ended the server came from outside."""
    told = [line for line in case.tail if not AFTERMATH.search(line)]
    if any(EXCEPTION.match(line) and not is_generic(line) for line in case.lines) or not told:
        return None
    status, early = case.find(_ENDED_BY), case.reached is Phase.LAUNCHING
    return finding(
        FindingId.SILENT_END,
        Severity.FATAL,
        f"The log stops without an error (reached: {case.reached}): the server was ended from outside.",
        evidence=(*told[-3:], *((status.line,) if status and status.line not in told[-3:] else ())),
        remedy="Look whether somebody stopped it, at the kernel's log (journalctl -k) for the OOM killer, and at "
        'earlyoom; a log that stops after "Load weight begin" is most often host memory. '
        "The flags of the pools are not to blame."
        + (" Before any line of a scheduler it can be numactl in a container: SGLANG_NUMA_BIND_V2=0." if early else ""),
    )
