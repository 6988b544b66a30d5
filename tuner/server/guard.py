"""Preflight: everything that speaks against a start, all at once, before anything is started."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import GpuReading
from tuner.paths import Home
from tuner.place import there
from tuner.recipe.model import Recipe
from tuner.server import ports, presence
from tuner.server.cards import Foreign, card_findings, running_sglang, used_gpus
from tuner.server.family import family
from tuner.server.handles import HandleStore
from tuner.server.interpreter import Interpreter, inspect_interpreter, resolve_interpreter
from tuner.server.launch import interpreter_findings, secret_findings
from tuner.server.machine import HUB_NAME, machine_findings
from tuner.server.managers import kept_up
from tuner.server.model import LaunchSpec, ServerHandle
from tuner.text import clip, plain

_MIB = 1 << 20
_SHOWN_CELLS = 160
#: Oldest driver branch of a CUDA major version, by NVIDIA's minor-version compatibility table.
_LEAST_DRIVER = {12: 525, 13: 580}
_BACKENDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend", "sampling_backend")
#: What a start dies of without harm to anything else.
_ITS_OWN = frozenset({FindingId.MODULE_MISSING, FindingId.MODEL_MISSING})
_ORDER = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def preflight(
    recipe: Recipe,
    spec: LaunchSpec | None,
    gpu: Sequence[GpuReading],
    home: Home,
    need_mib: int | None = None,
    driver: str | None = None,
    apart: Sequence[tuple[int, int, str]] = (),
) -> tuple[Finding, ...]:
    """What speaks against a start of ``recipe`` now, worst first; a fatal finding refuses it.

    ``spec`` is None when the recipe could not be made into a command (see ``launch_spec``). ``need_mib`` is the least
    free memory per GPU that the start needs; without it, the weights on disk tell. ``driver`` is the version of the
    GPU driver; ``apart`` are pairs of GPUs of the start that cannot reach each other's memory, and why. Raises
    ``HomeError``.
    """
    environment = spec.environment if spec is not None else {**os.environ, **recipe.environment}
    mine = [(handle, family(handle)) for handle in HandleStore(home).all()]
    alive = [(handle, processes) for handle, processes in mine if processes]
    found = [
        *_command_findings(recipe, spec, home, environment, driver),
        *_model_findings(recipe),
        *_port_findings(recipe, [handle for handle, _ in alive], home),
        *_gpu_findings(recipe, environment, gpu, alive, need_mib),
        *machine_findings(recipe, environment, used_gpus(recipe, environment, gpu), home, driver, apart),
    ]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


def forced(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings of a preflight for a start that is wanted all the same: what only this start dies of is a warning.

    Whatever would double a server, or take memory from another one, still refuses.
    """
    return tuple(
        msgspec.structs.replace(finding, severity=Severity.WARNING) if finding.id in _ITS_OWN else finding
        for finding in findings
    )


def _command_findings(
    recipe: Recipe, spec: LaunchSpec | None, home: Home, environment: Mapping[str, str], driver: str | None
) -> Iterator[Finding]:
    yield from secret_findings(recipe, environment if spec is None else {**os.environ, **spec.environment})
    problems = interpreter_findings(recipe, environment)
    yield from problems
    if recipe.simulated or problems or recipe.python is None:
        return
    if recipe.launcher:
        yield _behind_launcher(recipe)
        return
    python = resolve_interpreter(recipe.python, environment) or recipe.python
    interpreter = inspect_interpreter(python, home, environment)
    if not interpreter.has_sglang:
        yield Finding(
            id=FindingId.MODULE_MISSING,
            severity=Severity.FATAL,
            title=interpreter.problem or f"{python} has no SGLang.",
            remedy="Set python under [server] to the absolute path of the interpreter that has SGLang "
            "(an activated conda environment is not enough).",
        )
        return
    yield from _tool_findings(recipe, interpreter, python, environment)
    yield from _driver_findings(interpreter, driver)


def _behind_launcher(recipe: Recipe) -> Finding:
    return Finding(
        id=FindingId.BEHIND_LAUNCHER,
        severity=Severity.NOTE,
        title=f"The server starts through {recipe.launcher[0]}: its interpreter, tools and driver are not checked.",
        evidence=(clip(plain(shlex.join(recipe.launcher)), _SHOWN_CELLS),),
        remedy="Make sure that it stays in front until the server ends, passes signals on, and passes the variables of "
        "[environment].",
    )


def _driver_findings(interpreter: Interpreter, driver: str | None) -> Iterator[Finding]:
    cuda = 13 if interpreter.cuda13 else 12 if interpreter.cuda12 else None
    if cuda is None or driver is None or not (major := driver.split(".", 1)[0]).isdigit():
        return
    if int(major) < _LEAST_DRIVER[cuda]:
        yield Finding(
            id=FindingId.DRIVER_OLD,
            severity=Severity.WARNING,
            title=f"Driver {driver} is older than CUDA {cuda} needs ({_LEAST_DRIVER[cuda]}).",
            evidence=(f"PyTorch {interpreter.torch or '?'} of this interpreter brings CUDA {cuda}",),
            remedy="Update the driver, or use an environment with an older CUDA.",
        )


def _tool_findings(
    recipe: Recipe, interpreter: Interpreter, python: str, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """FlashInfer compiles kernels at the first start; without ninja or nvcc a child dies of it in the middle."""
    backends = {str(recipe.flags.get(name, "")) for name in _BACKENDS}
    if "flashinfer" not in backends and not (backends == {""} and interpreter.flashinfer):
        return
    path = f"{Path(python).parent}:{environment.get('PATH', '')}"
    nvcc = Path(environment.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    missing = [] if shutil.which("ninja", path=path) else ["ninja"]
    if not shutil.which("nvcc", path=path) and not nvcc.exists():
        missing.append("nvcc")
    if missing:
        yield Finding(
            id=FindingId.TOOL_CHAIN_MISSING,
            severity=Severity.WARNING,
            title=f"FlashInfer may have to compile kernels, and {' and '.join(missing)} cannot be found.",
            remedy="Install ninja into the server's environment and set CUDA_HOME, or use attention_backend triton.",
        )


def _model_findings(recipe: Recipe) -> Iterator[Finding]:
    if recipe.simulated:
        return
    path = recipe.model_path
    if recipe.launcher and path and there(path) is None:
        return  # a container has folders of its own
    folder = there(path)
    if not path:
        title = "The recipe names no model."
    elif folder is not None and folder.is_dir():
        if there(folder / "config.json"):
            return
        title = f"The model folder {path} has no config.json."
    elif (folder is not None and folder.is_file()) or HUB_NAME.fullmatch(path):
        return
    else:
        title = f"There is no model folder {path}."
    yield Finding(
        id=FindingId.MODEL_MISSING,
        severity=Severity.FATAL,
        title=title,
        remedy="Set model_path to the folder with the model's config.json and weights.",
    )


def _port_findings(recipe: Recipe, mine: Sequence[ServerHandle], home: Home) -> Iterator[Finding]:
    same = next((handle for handle in mine if handle.port == recipe.port), None)
    if same is not None:
        yield double_start(same)
        return
    if presence.held(home, recipe.port):
        yield _started_by_script(home, recipe.port)
        return
    problem = ports.bind_problem(recipe.host, recipe.port)
    if problem is not None:
        yield Finding(
            id=FindingId.PORT_IN_USE,
            severity=Severity.FATAL,
            title=f"The server cannot listen on {recipe.host}:{recipe.port}: {problem}.",
            evidence=tuple(_holder_lines(recipe.port)),
            remedy="Stop what listens there, or set another port.",
        )
    if recipe.simulated:
        return
    for purpose, port in internal_ports(recipe).items():
        if (problem := ports.bind_problem("127.0.0.1", port)) is not None:
            yield Finding(
                id=FindingId.PORT_IN_USE,
                severity=Severity.FATAL,
                title=f"SGLang needs port {port} for {purpose}: {problem}.",
                evidence=tuple(_holder_lines(port)),
                remedy="Stop what listens there, or set another port.",
            )


def internal_ports(recipe: Recipe) -> dict[str, int]:
    """Ports beside the server's own that a start binds, by purpose (0.5.17: ``server_args.PortArgs``).

    Without DP attention everything but a given NCCL port goes through files or ports chosen free.
    """
    wanted: dict[str, int] = {}
    if isinstance(nccl := recipe.flags.get("nccl_port"), int):
        wanted["NCCL"] = nccl
    if recipe.flags.get("enable_dp_attention") and not recipe.flags.get("dist_init_addr"):
        base = recipe.port + 233 if recipe.port + 233 < 1 << 16 else recipe.port - 233
        for offset, purpose in enumerate(("start-up", "tokenizer", "detokenizer", "RPC", "metrics", "scheduler")):
            wanted[purpose] = base + offset
    return wanted


def _holder_lines(port: int) -> Iterator[str]:
    for holder in ports.holders(port):
        command = plain(holder.command or "not visible to you")
        yield clip(f"process {holder.pid or '?'}: {command}", _SHOWN_CELLS)
        yield from kept_up(holder.pid) if holder.pid is not None else ()


def _started_by_script(home: Home, port: int) -> Finding:
    """The finding that a server lives on the port which holds our lock and which no tuner started."""
    lines = []
    for process in presence.holders(home, port):
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        lines += [clip(plain(f"process {process.pid}: {words}"), _SHOWN_CELLS), *kept_up(process.pid)]
    return Finding(
        id=FindingId.DOUBLE_START,
        severity=Severity.FATAL,
        title=f"A server that a start script started is on port {port}, serving or still loading.",
        evidence=tuple(lines),
        remedy="End that script's server first (Ctrl-C, or kill with the process number), or set another port.",
    )


def double_start(handle: ServerHandle) -> Finding:
    """The finding that a server of ours is on the port, serving or still loading."""
    name = f" ({handle.round_name})" if handle.round_name else ""
    return Finding(
        id=FindingId.DOUBLE_START,
        severity=Severity.FATAL,
        title=f"A server{name} that the tuner started is already on port {handle.port}, process {handle.pid}.",
        evidence=(f"log: {handle.log_path}",),
        remedy="Stop it first (tuner stop), or use it as it is.",
    )


def _gpu_findings(
    recipe: Recipe,
    environment: Mapping[str, str],
    gpus: Sequence[GpuReading],
    mine: Sequence[tuple[ServerHandle, Sequence[psutil.Process]]],
    need_mib: int | None,
) -> Iterator[Finding]:
    # A server of ours on this very port is told of as a double start; all others count as any SGLang does.
    same_port = {process.pid for handle, family_ in mine if handle.port == recipe.port for process in family_}
    servers: list[Foreign] = [] if recipe.simulated else running_sglang(except_pids=same_port)
    if need_mib is None:
        need_mib = _weights_mib(recipe)
    yield from card_findings(recipe, environment, gpus, servers=servers, told_of=same_port, need_mib=need_mib)


def _weights_mib(recipe: Recipe) -> int | None:
    """Weights on disk per rank, MiB: the least that must be free. None where they are not on disk or stay there."""
    folder = there(recipe.model_path)
    if recipe.simulated or recipe.flags.get("load_format") == "dummy" or recipe.flags.get("cpu_offload_gb"):
        return None
    if folder is None or not folder.is_dir():
        return None
    total = sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())
    ranks = 1
    for name in ("tp_size", "pp_size"):
        count = recipe.flags.get(name)
        ranks *= count if isinstance(count, int) and count > 0 else 1
    return total // ranks // _MIB or None
