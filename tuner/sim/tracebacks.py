"""What SGLang 0.5.17 prints when its scheduler dies, as recorded."""

from __future__ import annotations

from tuner.sim.journal import Line, Output, Raw

_ROOT = "/opt/sglang/lib/sglang/srt"
_SIZING_FRAMES = (
    ("managers/scheduler.py", 4931, "run_scheduler_process", "scheduler = Scheduler("),
    ("managers/scheduler.py", 498, "__init__", "self.init_model_worker()"),
    ("managers/scheduler.py", 981, "init_model_worker", "self.init_memory_pools()"),
    ("managers/scheduler.py", 953, "init_memory_pools", "self.init_target_memory_pool()"),
    ("managers/tp_worker.py", 399, "alloc_memory_pool", "self.model_runner.alloc_memory_pool(memory_pool_config)"),
    ("model_executor/model_runner.py", 775, "alloc_memory_pool", "result = self.kv_cache_configurator.configure("),
    (
        "mem_cache/kv_cache_configurator.py",
        1782,
        "_resolve_memory_pool_config",
        "available_bytes = self._profile_available_bytes(pre_model_load_memory)",
    ),
)
_SIZING_END = {
    "mamba": ("mem_cache/kv_cache_configurator.py", 1963, "_handle_max_mamba_cache", "raise RuntimeError("),
    "budget": ("mem_cache/kv_cache_configurator.py", 1650, "_profile_available_bytes", "raise ValueError("),
    "requests": ("mem_cache/kv_cache_configurator.py", 1870, "resolve_max_num_reqs", "raise RuntimeError("),
}
_CAPTURE_FRAMES = (
    ("managers/scheduler.py", 4931, "run_scheduler_process", "scheduler = Scheduler("),
    ("managers/scheduler.py", 498, "__init__", "self.init_model_worker()"),
    ("model_executor/model_runner.py", 842, "init_cuda_graphs", "self.graph_runner.capture()"),
)
_FORWARD_FRAMES = (
    ("managers/scheduler.py", 4952, "run_scheduler_process", "scheduler.run_event_loop()"),
    ("managers/scheduler.py", 1571, "event_loop_overlap", "batch_result = self.run_batch(batch)"),
    ("model_executor/model_runner.py", 1204, "forward", "output = self._forward_raw(forward_batch)"),
    ("models/qwen3_5.py", 1436, "forward", "hidden_states, residual = layer("),
)
_LOAD_FRAMES = (
    ("managers/scheduler.py", 4931, "run_scheduler_process", "scheduler = Scheduler("),
    ("model_executor/model_runner.py", 698, "load_model", "self.model = get_model("),
    ("model_loader/loader.py", 731, "load_model", "model = _initialize_model("),
)
_ADVICE = (
    "Possible solutions:\n"
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
    "3. disable CUDA graph by --cuda-graph-backend-decode=disabled. (Not recommended. Huge performance loss)\n"
)


def _traceback(frames: tuple[tuple[str, int, str, str], ...], error: str) -> str:
    lines = "".join(
        f'  File "{_ROOT}/{path}", line {number}, in {function}\n    {code}\n'
        for path, number, function, code in frames
    )
    return f"Scheduler hit an exception: Traceback (most recent call last):\n{lines}{error}\n"


def refused_at_sizing(error: str, where: str) -> Line:
    """The pools are refused."""
    return Line(_traceback((*_SIZING_FRAMES, _SIZING_END[where]), error))


def _out_of_memory(tried_gib: float, free_gib: float, card_gib: float, others_gib: float) -> str:
    other = f"Process 4242 has {others_gib:.2f} GiB memory in use. " if others_gib >= 0.01 else ""
    used = max(0.0, card_gib - free_gib - others_gib)
    tried = f"{tried_gib:.2f} GiB" if tried_gib >= 1 else f"{max(tried_gib, 0.02) * 1024:.2f} MiB"
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {card_gib:.2f} GiB of which "
        f"{max(0.0, free_gib) * 1024:.2f} MiB is free. {other}Including non-PyTorch memory, this process has "
        f"{used:.2f} GiB memory in use."
    )


def oom_in_capture(tried_gib: float, free_gib: float, card_gib: float, others_gib: float) -> Line:
    """Graph capture ran out of memory."""
    reason = _out_of_memory(tried_gib, free_gib, card_gib, others_gib)
    return Line(_traceback(_CAPTURE_FRAMES, f"Exception: Capture cuda graph failed: {reason}\n{_ADVICE}"))


def oom_while_loading(tried_gib: float, free_gib: float, card_gib: float, others_gib: float) -> Line:
    """Weights or pools do not fit."""
    reason = _out_of_memory(tried_gib, free_gib, card_gib, others_gib)
    return Line(_traceback(_LOAD_FRAMES, f"torch.OutOfMemoryError: {reason}"))


def oom_while_serving(tried_gib: float, free_gib: float, card_gib: float, others_gib: float) -> Line:
    """Activations of a prompt do not fit."""
    reason = _out_of_memory(tried_gib, free_gib, card_gib, others_gib)
    return Line(_traceback(_FORWARD_FRAMES, f"torch.OutOfMemoryError: {reason}"))


def kernel_crash() -> Line:
    """A kernel does not compile."""
    return Line(
        _traceback(
            _FORWARD_FRAMES,
            "triton.compiler.errors.CompilationError: at 114:17:\n"
            "            qk = tl.dot(q.to(k.dtype), k)\n                 ^\nonly int8 supported!",
        )
    )


def scheduler_gone() -> Line:
    """A fault of the scheduler's own."""
    return Line(
        _traceback(
            _FORWARD_FRAMES,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        )
    )


def model_missing(path: str) -> Raw:
    """A model that is no folder and cannot be a name on the Hub: uncaught in the main process (exit status 1)."""
    return Raw(
        "Traceback (most recent call last):\n"
        '  File "/opt/env/lib/python3.12/site-packages/transformers/utils/hub.py", line 419, in cached_files\n'
        "    hf_hub_download(\n"
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        f"'{path}'. Use `repo_type` argument if needed.\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/sglang/lib/sglang/launch_server.py", line 64, in <module>\n'
        "    server_args = prepare_server_args(sys.argv[1:])\n"
        f"OSError: Incorrect path_or_model_id: '{path}'. Please provide either the path to a local folder or the "
        "repo_id of a model on the Hub.\n"
    )


def died_while_starting(pid: int) -> tuple[Output, ...]:
    """The main process ends at once."""
    return (
        Line("Received sigquit from a child process. It usually means the child failed."),
        Line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}"),
    )


def died_while_serving(pid: int) -> tuple[tuple[Output, ...], tuple[Output, ...]]:
    """The main process waits 5 s between the two parts."""
    return (
        (
            Line("SIGQUIT received. signum=None, frame=None. It usually means one child failed."),
            Line("Sleeping 5 seconds before crash diagnostics to let GPU activity settle."),
        ),
        (
            Line("No live scheduler processes found; skipping py-spy and CUDA coredump."),
            Line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}"),
        ),
    )


def process_group_warning() -> Raw:
    """What torch says at every stop."""
    return Raw(
        "[rank0]:[W1129 15:54:49.821748310 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was "
        "not called before program exit, which can leak resources. For more info, please see "
        "https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())\n"
    )
