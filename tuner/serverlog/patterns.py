"""The lines that a start is read from: one pattern per event, matching every spelling from 0.5.2 to 0.5.23.

"GB" in these lines means GiB. Numbers are named ``*_gb`` after the line, ``*_s`` for seconds.
"""

from __future__ import annotations

import re

_F = r"-?\d{1,12}(?:\.\d{1,9})?"
_AVAIL = rf"avail mem=(?P<avail_gb>{_F}) GB"
_CAPTURE = (
    r"Capture (?P<name>(?:target|draft)(?: (?:prefill|decode|verify|extend))?|piecewise|single-CG draft extend|"
    r"UNO tree draft)? ?(?:(?:cuda|CUDA|cpu|CPU|npu|NPU|XPU) graph)? ?"
)

EVENTS: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "load_begin": rf"Load weight begin\. {_AVAIL}",
        # Drafts may print no "avail mem" (0.5.17), and people shorten the line.
        # Each part is sought once: with several of each in a line, trying them all would take for ever.
        "load_end": rf"Load weight end\b(?!\. Committed)(?>(?:.*?elapsed=(?P<elapsed_s>{_F}) s)?)"
        rf"(?>(?:.*?type=(?P<model>\w+))?)(?>(?:.*?{_AVAIL})?).*?mem usage=(?P<usage_gb>{_F}) GB",
        "kv_dtype": r"Using KV cache dtype: (?P<dtype>\S+)",
        "mamba": r"Mamba Cache is allocated\. (?:max_mamba_cache_size: (?P<slots>\d{1,12}), )?"
        rf"conv_state size: (?P<conv_gb>{_F}) ?GB, ssm_state size: (?P<ssm_gb>{_F}) ?GB"
        rf"(?:,? intermediate_ssm_state_cache size: (?P<spec_ssm_gb>{_F}) ?GB)?"
        rf"(?:,? intermediate_conv_window_cache size: (?P<spec_conv_gb>{_F}) ?GB)?",
        "kv": r"(?P<label>\b\w{1,64} )?KV Cache (?P<kind>is allocated|VA upper bound)\.(?: dtype: (?P<dtype>[\w.]+),)?"
        rf" #tokens: (?P<tokens>\d{{1,12}})"
        rf"(?:, K(?: size:)? (?P<k_gb>{_F}) GB(?:, V(?: size:)? (?P<v_gb>{_F}) GB)?|, KV size: (?P<kv_gb>{_F}) GB)?",
        "post_capture": r"Post-capture KV sizing: (?P<draft>draft )?KV cache allocated\. dtype: (?P<dtype>[\w.]+), "
        rf"#tokens: (?P<tokens>\d{{1,12}}), KV size: (?P<kv_gb>{_F}) GB",
        "unified": r"\[unified-memory-pool\]\s+total_bytes=\d{1,18}, max_total_num_tokens=(?P<tokens>\d{1,12}), "
        r"max_mamba_cache_size=(?P<slots>\d{1,12})",
        "unified_begin": r"\[unified-memory-pool\] UnifiedKVPool allocated",
        "pool_end": rf"Memory pool end\.\s+{_AVAIL}",
        "capped": r"max_running_requests is capped to (?P<requests>\d{1,9}) by the mamba state"
        r"(?:\s+cache(?:\s+\(max_mamba_cache_size=(?P<slots>\d{1,12}), "
        r"(?P<per_request>\d{1,3}) state slots per\s+request\))?)?",
        "reduced": r"max_running_requests was reduced from the requested \d+ to (?P<requests>\d{1,9})",
        "capture_begin": rf"{_CAPTURE}begin(?: \(step \d+\))?\.(?P<rest>.*?){_AVAIL}",
        "capture_end": rf"{_CAPTURE}end\.(?P<rest>.*?)(?:Time elapsed: |elapsed=)(?P<elapsed_s>{_F}) s"
        rf"(?:[.,] mem usage=(?P<usage_gb>{_F}) GB)?",
        "tree": r"Tree cache initialized: source=\S+ impl=(?P<impl>\w+)(?:.*?hybrid_ssm=(?P<hybrid>True|False))?",
        "summary": r"max_total_num_tokens=(?P<tokens>\d{1,12})"
        r"(?>(?:,.*?chunked_prefill_size=(?P<chunk>-?\d{1,12}|None))?)"
        r"(?>(?:,.*?max_prefill_tokens=(?P<prefill>\d{1,12}))?)(?>(?:,.*?max_running_requests=(?P<requests>\d{1,9}))?)"
        rf",.*?context_len=(?P<context>\d{{1,12}})(?:,.*?available_[gc]pu_mem=(?P<avail_gb>{_F}) GB)?",
        "timings": r"Engine startup timings \(s\): (?P<fields>.*)",
        "server_process": r"INFO:\s+Started server process \[\d+\]",
        "uvicorn_up": r"Uvicorn running on (?P<url>https?://\S+)",
        "ready": r"The server is fired up and ready to roll!",
        # The second one is the tuner's own (``server.logfile.note_stop``).
        "stop_asked": r"^(?:SIGTERM received\. signum=|SIGTERM sent by tuner|Signal SIGTERM received while"
        r"|INFO:\s+Shutting down)",
        "stopped": r"kill_process_tree called: parent_pid=|INFO:\s+Finished server process \[\d+\]",
        "fatal": r"(?:Scheduler|DetokenizerManager|DataParallelController|TpModelWorker\w*) hit an exception"
        r"|Received sigquit from a child process|SIGQUIT received\. signum="
        r"|Rank \d+ scheduler (?:is dead|died during initialization)"
        r"|Initialization failed\."
        r"|Subprocess \S+ \(pid=\d+\) crashed with exit code"
        r"|ERROR:\s+\[Errno \d+\] error while attempting to bind"
        r"|\S{1,256} at \d{1,9} is not available in [\d.]+ seconds|Port is already in use"
        r"|watchdog timeout \(self\.watchdog_timeout=[\d.]+, self\.soft=False\)"
        r"|Fatal Python error: "
        r"|^\S{0,256}python[\d.]{0,6}: (?:No module named|can't open file"
        r"|Error while finding module specification)",
        # Compilers print the same later on, and a server can outlive that.
        "usage_error": r"^(?:[\w./-]{1,256} ){0,3}[\w./-]{1,256}: error: ",
    }.items()
}

#: One of these is in every line above: a quick look that spares most lines the long one.
TRIGGERS = re.compile(
    r"Load weight|KV [Cc]ache|Mamba Cache|unified-memory-pool|Memory pool end|max_running_requests|Capture |Tree cache|"
    r"max_total_num_tokens=|Engine startup|server process|Uvicorn running|fired up|SIGTERM|Shutting down|"
    r"kill_process_tree|hit an exception|sigquit|SIGQUIT|scheduler |Initialization failed|crashed with|ERROR:|"
    r"is not available|already in use|watchdog|Fatal Python|error: |python|server_args=|Init torch|Linear attention|"
    r"KV budget|prefill CUDA|piecewise CUDA|Post-capture|Radix|hierarchical|sglang"
)

#: Lines of ``--log-requests`` (as text or JSON) and of uvicorn: what clients and models wrote is no word of the server.
LOGGED_REQUEST = re.compile(r"^(?:(?:Receive|Finish): |\{\")")
ACCESS = re.compile(r"^INFO:\s{1,8}\S{1,64} - \"")

TRACEBACK = re.compile(r"^Traceback \(most recent call last\):")
EXCEPTION = re.compile(
    r"^(?P<kind>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:Error|Exception|Interrupt|Exit))(?::|$)"
)

#: Progress of loading or capturing: news of a phase that a start is in anyway.
PROGRESS = re.compile(r"^(?:Capturing |Compiling |Loading \w+ checkpoint|\[BCG\]|Multi-thread loading|\s*\d+%\|)")

#: Lines a diagnosis may need and that a short tail of the log would not hold.
NOTABLE = re.compile(
    r"capped to \d+ by the mamba|was reduced from the requested|larger than the profiled value"
    r"|Disabling auto-selected prefill|no scaling factors provided|[Oo]ut of memory|OutOfMemory|runs out of memory"
    r"|Not enough |too small to serve|leave no GPU memory|max_running_request is zero|Memory pool size is too small"
    r"|hit an exception|sigquit|SIGQUIT|scheduler (?:is dead|died)|Initialization failed|crashed with exit code"
    r"|watchdog timeout|\[Errno \d+\]|[Aa]lready in use|is not available in|: error: |memory capacity is unbalanced"
    r"|CompilationError|OutOfResources|MLIRError|illegal memory access|[Uu]nsupported (?:architecture|gpu)"
    r"|no kernel image|[Pp]eer ?[Aa]ccess|No module named|No such file or directory|memory leak detected"
    r"|Can not alloc mamba"
    r"|Retract requests|exceeds the maximum allowed length|longer than the model's context|Disabling Radix Cache"
    r"|Fatal Python error|[Kk]illed|is not compatible with|Page size must be|requires page_size=1|not enough memory"
)
HARMLESS = re.compile(
    r"Ignore import error when loading|Setup Custom allreduce failed|Fail to set RLIMIT_NOFILE|"
    r"destroy_process_group\(\) was not called"
)
