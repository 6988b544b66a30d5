"""Telling the lines of a crash apart: causes, what merely follows them, and lines that mean nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Lines that come after any death, or mean nothing: never the evidence of an unknown one.
AFTERMATH = re.compile(
    r"kill_process_tree called|[Rr]eceived sigquit|SIGQUIT received|Sleeping \d+ seconds before crash|"
    r"No live scheduler processes|destroy_process_group\(\)|^\s*\^+\s*$|^\s*File \"|^Traceback|"
    r"The above exception was the direct cause|During handling of the above|"
    r"INFO:\s|Ignore import error when loading|Fail to set RLIMIT_NOFILE|UserWarning|warnings\.warn|"
    r"TokenizersBackend after retries|Setup Custom allreduce failed|Using default .* kernel config|"
    r"Token indices sequence length is longer|CUTE_DSL - WARNING"
)
#: The last line of a traceback.
EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b(?=:|$|\()")
#: The main process' own exception, which only says that a child is gone.
_GENERIC = re.compile(r"scheduler (?:is dead|died)|EOFError")
#: Ends that are no Python exception.
_FATAL = re.compile(
    r"^Fatal Python error|Memory access fault by GPU|: error: (?:unrecognized arguments|argument )|"
    r"Backend requires SM|leave no GPU memory for the KV cache|not divisible by tile_n_size|"
    r"\bNo module named\b.{0,80}$|: command not found|^Killed$|is not available in [\d.]+ seconds"
)
#: A start or a server that went on.
_GOES_ON = re.compile(
    r"^(?:Load weight|Memory pool end|KV Cache is|Mamba Cache is|Capture .{0,40}(?:begin|end)|max_total_num_tokens=|"
    r"Tree cache initialized|Prefill batch|Decode batch|The server is fired up)|Uvicorn running on"
)
#: Lines behind an exception that still belong to it: causes, advice, the shells of other programs.
_LAST = 40


def is_generic(line: str) -> bool:
    """Whether an exception only says that another process is gone."""
    return bool(_GENERIC.search(line))


def ends_in_error(tail: Sequence[str]) -> bool:
    """Whether a log ends in an exception or a fault that nothing came after: an excerpt may lack the rest of the end.

    ``tail``: the last lines, without time stamps.
    """
    for line in reversed(tail[-_LAST:]):
        if _GOES_ON.search(line):
            return False
        if AFTERMATH.search(line):
            continue
        if EXCEPTION.search(line) or _FATAL.search(line):
            return True
    return False
