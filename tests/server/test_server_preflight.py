"""What is said before a start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import GpuProcess, GpuReading
from tuner.paths import Home
from tuner.recipe import to_shell
from tuner.recipe.model import SIMULATOR, Recipe, TunerSettings
from tuner.server import guard, installed_version, interpreter, launch_spec, machine, preflight
from tuner.server.cards import looks_like_sglang, running_sglang, used_gpus
from tuner.server.guard import forced, internal_ports
from tuner.server.interpreter import inspect_interpreter, resolve_interpreter
from tuner.server.model import LaunchSpec, StartRefused
from tuner.server.supervisor import Supervisor

CARD = GpuReading(index=0, uuid="GPU-aa", total_mib=49140, used_mib=600, free_mib=48540)


@pytest.fixture
def sglang_env(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds a package named sglang that must never be imported."""
    site = tmp_path / "site"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang" / "__init__.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    info = site / "sglang-0.5.17.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.17\n", encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(site)}


@pytest.fixture(autouse=True)
def no_other_sglang(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else runs on the machine of the test is nothing to these tests, but for the one that looks."""
    if "sleeper" not in request.fixturenames:
        monkeypatch.setattr(guard, "running_sglang", lambda **_: [])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "模型"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def real(model: Path, port: int, **flags: object) -> Recipe:
    return Recipe(
        python=sys.executable,
        flags={"model_path": str(model), "port": port, "attention_backend": "triton", **flags},
    )


def ids(findings: tuple[Finding, ...]) -> list[tuple[FindingId, Severity]]:
    return [(finding.id, finding.severity) for finding in findings]


def check(recipe: Recipe, home: Home, environ: dict[str, str], gpus: list[GpuReading]) -> tuple[Finding, ...]:
    return preflight(recipe, launch_spec(recipe, home, environ), gpus, home)


def test_nothing_is_said_when_nothing_is_wrong(home: Home, model: Path, port: int, sglang_env: dict[str, str]) -> None:
    assert check(real(model, port), home, sglang_env, [CARD]) == ()


def test_the_command_is_exact_and_its_interpreter_comes_first(
    home: Home, model: Path, port: int, sglang_env: dict[str, str]
) -> None:
    recipe = Recipe(
        python=sys.executable,
        flags={"model_path": str(model), "port": port, "api_key": "${KEY}", "enable_metrics": True},
        environment={"CUDA_VISIBLE_DEVICES": "3", "EXTRA": "x-${KEY}"},
    )
    spec = launch_spec(recipe, home, {**sglang_env, "KEY": "geheim"}, "r4")
    assert spec.argv[:3] == (sys.executable, "-m", "sglang.launch_server")
    assert spec.argv[3:5] == ("--model-path", str(model))
    assert spec.argv[spec.argv.index("--api-key") + 1] == "geheim"
    assert spec.environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert spec.environment["PYTHONUNBUFFERED"] == "1"
    assert spec.environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert spec.environment["EXTRA"] == "x-geheim"
    assert spec.recipe == recipe
    assert spec.round_name == "r4"


def test_a_launcher_stands_in_front_and_what_lies_behind_it_is_not_checked(home: Home, port: int) -> None:
    recipe = Recipe(
        python="/only/in/the/container/python",
        flags={"model_path": "/only/in/the/container/模型", "port": port},
        tuner=TunerSettings(launcher="env -u 'A B' FRONT=1"),
    )
    environ = {"PATH": os.environ["PATH"]}
    spec = launch_spec(recipe, home, environ)
    assert spec.argv[:6] == ("env", "-u", "A B", "FRONT=1", "/only/in/the/container/python", "-m")
    (found,) = preflight(recipe, spec, [CARD], home)
    assert found.id is FindingId.BEHIND_LAUNCHER
    assert found.severity is Severity.NOTE
    assert found.evidence == ("env -u 'A B' FRONT=1",)


def test_a_launcher_that_is_not_there_is_refused(home: Home, port: int) -> None:
    recipe = Recipe(flags={"port": port}, tuner=TunerSettings(launcher="no-such-launcher --x"))
    with pytest.raises(StartRefused, match="no command no-such-launcher"):
        launch_spec(recipe, home, {"PATH": os.environ["PATH"]})


def test_the_stand_in_gets_its_switches_and_its_card(home: Home, port: int) -> None:
    recipe = Recipe(
        python=SIMULATOR,
        flags={"model_path": "demo", "port": port},
        tuner=TunerSettings(
            model_shape="hybrid-tiny", simulator={"speed": 50, "no_colour": True, "fault": "hang", "off": False}
        ),
    )
    spec = launch_spec(recipe, home, {})
    assert spec.argv[1:3] == ("-m", "tuner.sim")
    assert spec.simulated
    words = spec.argv[3:]
    assert words[-2:] == ("--sim-card", str(home.card(port)))
    assert words[words.index("--sim-shape") + 1] == "hybrid-tiny"
    assert words[words.index("--sim-speed") + 1] == "50"
    assert "--sim-no-colour" in words
    assert "--sim-off" not in words


def test_everything_missing_from_a_command_is_told_at_once(home: Home) -> None:
    recipe = Recipe(flags={"model_path": "m/m", "api_key": "${A_KEY}"}, environment={"HF_TOKEN": "${A_TOKEN}"})
    with pytest.raises(StartRefused) as refusal:
        launch_spec(recipe, home, {})
    found = refusal.value.findings
    assert [f.id for f in found] == [FindingId.MODULE_MISSING, FindingId.SECRET_MISSING, FindingId.SECRET_MISSING]
    assert "[server]" in found[0].remedy
    assert "A_TOKEN" in found[1].title
    assert "A_KEY" in found[2].title


def test_preflight_without_a_command_says_what_is_missing_too(home: Home, port: int) -> None:
    recipe = Recipe(flags={"port": port}, environment={"X": "${NO_SUCH_VARIABLE_AT_ALL}"})
    found = {finding.id for finding in preflight(recipe, None, [CARD], home)}
    assert found == {FindingId.SECRET_MISSING, FindingId.MODULE_MISSING, FindingId.MODEL_MISSING}


def test_an_interpreter_without_sglang_is_refused(home: Home, model: Path, port: int) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = check(real(model, port), home, clean, [CARD])
    assert ids(found) == [(FindingId.MODULE_MISSING, Severity.FATAL)]
    assert sys.executable in found[0].title


def test_an_interpreter_that_is_none_is_refused(home: Home, model: Path, port: int) -> None:
    recipe = Recipe(python="/bin/true", flags={"model_path": str(model), "port": port})
    found = check(recipe, home, dict(os.environ), [CARD])
    assert ids(found) == [(FindingId.MODULE_MISSING, Severity.FATAL)]
    with pytest.raises(StartRefused, match="no interpreter"):
        launch_spec(Recipe(python="no-such-python"), home, dict(os.environ))


def test_an_interpreter_that_never_answers_is_asked_once_and_leaves_nothing(
    home: Home, model: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "_TIMEOUT_S", 0.5)
    silent = tmp_path / "python"
    silent.write_text(f"#!/bin/sh\nsleep 600 &\necho $! >>{tmp_path}/asked\nwait\n", encoding="utf-8")
    silent.chmod(0o755)
    recipe = Recipe(python=str(silent), flags={"model_path": str(model), "port": port})
    found = check(recipe, home, dict(os.environ), [CARD])
    assert ids(found) == [(FindingId.MODULE_MISSING, Severity.FATAL)]
    assert "did not answer within" in found[0].title
    (helper,) = (tmp_path / "asked").read_text(encoding="utf-8").split()
    assert not psutil.pid_exists(int(helper)) or psutil.Process(int(helper)).status() == psutil.STATUS_ZOMBIE


def test_the_version_is_read_without_importing_sglang_and_remembered_until_it_changes(
    home: Home, sglang_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inspect_interpreter(sys.executable, home, sglang_env).sglang == "0.5.17"
    monkeypatch.setenv("PYTHONPATH", sglang_env["PYTHONPATH"])
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", None)
        assert installed_version(sys.executable, home, os.environ) == "0.5.17"
    site = tmp_path / "site"
    (site / "sglang-0.5.17.dist-info").rename(site / "sglang-0.5.23.dist-info")
    metadata = site / "sglang-0.5.23.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n", encoding="utf-8")
    assert installed_version(sys.executable, home, os.environ) == "0.5.23"
    assert installed_version(SIMULATOR, home, os.environ) is None
    assert installed_version("no-such-python", home, os.environ) is None


def test_a_relative_interpreter_becomes_absolute_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "python-of-venv"
    link.symlink_to(sys.executable)
    assert resolve_interpreter("python-of-venv", {"PATH": str(tmp_path / "bin")}) == str(link)
    assert resolve_interpreter(str(link), {}) == str(link)


@pytest.mark.parametrize("path", ["", "/no/such/model", "relative/but/deep"])
def test_a_missing_model_is_refused(home: Home, port: int, sglang_env: dict[str, str], path: str) -> None:
    found = check(real(Path(path), port, model_path=path), home, sglang_env, [CARD])
    assert ids(found) == [(FindingId.MODEL_MISSING, Severity.FATAL)]


def test_a_start_that_is_wanted_all_the_same_may_die_but_never_doubles_a_server(
    home: Home, port: int, supervisor: Supervisor, fake_spec: Callable[..., LaunchSpec], tmp_path: Path
) -> None:
    supervisor.start(fake_spec("--load-until", str(tmp_path / "never")))
    recipe = Recipe(python="/bin/true", flags={"model_path": "/no/such/model", "port": port})
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = forced(check(recipe, home, clean, [CARD]))
    by_id = {finding.id: finding.severity for finding in found}
    assert by_id[FindingId.MODULE_MISSING] is by_id[FindingId.MODEL_MISSING] is Severity.WARNING
    assert by_id[FindingId.DOUBLE_START] is Severity.FATAL


def test_a_hub_name_is_no_missing_model(home: Home, port: int, sglang_env: dict[str, str]) -> None:
    recipe = real(Path(), port, model_path="Qwen/Qwen3-Next-80B-A3B-Instruct-FP8")
    assert check(recipe, home, sglang_env, [CARD]) == ()


def test_a_folder_without_a_config_is_no_model(
    home: Home, port: int, sglang_env: dict[str, str], tmp_path: Path
) -> None:
    (found,) = check(real(tmp_path, port), home, sglang_env, [CARD])
    assert "config.json" in found.title


def test_too_little_memory_is_refused_by_the_weights_on_disk(
    home: Home, model: Path, port: int, sglang_env: dict[str, str]
) -> None:
    with (model / "model-1.safetensors").open("wb") as file:
        file.truncate(30 << 30)
    small = GpuReading(index=0, total_mib=49140, used_mib=29140, free_mib=20000)
    found = check(real(model, port), home, sglang_env, [small])
    assert (FindingId.GPU_BUSY, Severity.FATAL) in ids(found)
    assert "30.00 GiB" in found[0].title
    two = [small, GpuReading(index=1, total_mib=49140, used_mib=29140, free_mib=20000)]
    assert all(f.severity is not Severity.FATAL for f in check(real(model, port, tp_size=2), home, sglang_env, two))
    assert all(
        f.severity is not Severity.FATAL
        for f in check(real(model, port, load_format="dummy"), home, sglang_env, [small])
    )


def test_other_use_of_the_card_is_a_warning(home: Home, model: Path, port: int, sglang_env: dict[str, str]) -> None:
    me = GpuProcess(pid=os.getpid(), memory_mib=92 * 1024)
    shared = GpuReading(index=0, total_mib=143771, used_mib=95131, free_mib=48639, processes=(me,))
    found = check(real(model, port), home, sglang_env, [shared])
    assert ids(found) == [(FindingId.GPU_BUSY, Severity.WARNING)]
    assert "92.00 GiB" in found[0].evidence[0]


def test_use_by_nobody_that_can_be_seen_is_a_warning(
    home: Home, model: Path, port: int, sglang_env: dict[str, str]
) -> None:
    shared = GpuReading(index=0, total_mib=143771, used_mib=95131, free_mib=48639)
    assert ids(check(real(model, port), home, sglang_env, [shared])) == [(FindingId.GPU_BUSY, Severity.WARNING)]


@pytest.mark.parametrize("number_means_another", [False, True])
def test_an_sglang_that_a_container_hides_behind_a_name_is_refused(
    home: Home, model: Path, port: int, sglang_env: dict[str, str], number_means_another: bool
) -> None:
    pid = os.getpid() if number_means_another else 2**22 + 7
    hidden = GpuProcess(pid=pid, memory_mib=40000, name="sglang::scheduler")
    busy = GpuReading(index=0, total_mib=143771, used_mib=41000, free_mib=102771, processes=(hidden,))
    assert ids(check(real(model, port), home, sglang_env, [busy])) == [(FindingId.GPU_BUSY, Severity.FATAL)]


def test_an_sglang_that_still_loads_is_refused_unless_it_uses_another_gpu(
    home: Home,
    model: Path,
    port: int,
    sglang_env: dict[str, str],
    sleeper: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    site = tmp_path / "loading"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang" / "__init__.py").touch()
    (site / "sglang" / "launch_server.py").write_text(
        "print('loading', flush=True)\nimport time\ntime.sleep(600)", encoding="utf-8"
    )
    for devices in ("0", "1"):
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", "--port", "31999"],
            env={**os.environ, "PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": devices},
            stdout=subprocess.PIPE,
        )
        sleeper.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
    first, second = sleeper
    assert {first.pid, second.pid} <= {server.pid for server in running_sglang()}
    two = [CARD, GpuReading(index=1, uuid="GPU-bb", total_mib=49140, used_mib=600, free_mib=48540)]
    found = check(real(model, port), home, sglang_env, two)
    mine = [f for f in found if f"process {first.pid}" in f.title or f"process {second.pid}" in f.title]
    assert [(f.id, f.severity) for f in mine] == [(FindingId.GPU_BUSY, Severity.FATAL)]
    assert f"process {first.pid}" in mine[0].title
    assert "31999" in mine[0].title
    # The driver knows better than the environment where a server is.
    loaded = GpuReading(
        index=1,
        uuid="GPU-bb",
        total_mib=49140,
        used_mib=600,
        free_mib=48540,
        processes=(GpuProcess(pid=first.pid, memory_mib=5),),
    )
    elsewhere = check(real(model, port), home, sglang_env, [CARD, loaded])
    assert not [f for f in elsewhere if f"process {first.pid}" in f.title]


@pytest.mark.parametrize(
    ("command", "is_server"),
    [
        (["/env/bin/python3", "-m", "sglang.launch_server", "--model-path", "m"], True),
        (["/usr/bin/python", "/env/bin/sglang", "serve", "--model-path", "m"], True),
        (["sglang::scheduler_TP0"], True),
        (["docker", "run", "lmsys/sglang", "python3", "-m", "sglang.launch_server"], True),
        (["ssh", "box", "python", "-m", "sglang.launch_server"], False),
        (["grep", "-m", "sglang.launch_server"], False),
        (["vim", "sglang.launch_server"], False),
        (["/bin/bash", "-c", "tail -f sglang.launch_server.log"], False),
        ([], False),
    ],
)
def test_an_sglang_is_known_by_its_command_line(command: list[str], is_server: bool) -> None:
    assert looks_like_sglang(command) is is_server


def test_the_gpus_of_a_start_are_those_that_cuda_would_take() -> None:
    gpus = [GpuReading(index=i, uuid=f"GPU-{c * 4}") for i, c in enumerate("abcd")]

    def indexes(devices: str | None, **flags: object) -> list[int]:
        environment = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
        return [gpu.index for gpu in used_gpus(Recipe(python="p", flags=flags), environment, gpus)]

    assert indexes(None) == [0]
    assert indexes("3") == [3]
    assert indexes("3,1", tp_size=2) == [3, 1]
    assert indexes("GPU-cc") == [2]
    assert indexes("0,9,1", tp_size=2) == [0]
    assert indexes(None, tp_size=2, base_gpu_id=2) == [2, 3]
    assert indexes(None, dp_size=2, gpu_id_step=2) == [0, 2]
    assert indexes("") == []


def test_no_visible_gpu_is_refused(home: Home, model: Path, port: int, sglang_env: dict[str, str]) -> None:
    found = check(real(model, port), home, {**sglang_env, "CUDA_VISIBLE_DEVICES": "7"}, [CARD])
    assert ids(found) == [(FindingId.GPU_BUSY, Severity.FATAL)]


def test_missing_compilers_are_a_warning_where_kernels_are_compiled(
    home: Home, model: Path, port: int, sglang_env: dict[str, str], tmp_path: Path
) -> None:
    bin_only = {**sglang_env, "PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)}
    recipe = real(model, port, attention_backend="flashinfer")
    link = tmp_path / "python"
    link.symlink_to(Path(sys.executable).resolve())
    recipe = Recipe(python=str(link), flags=recipe.flags)
    found = check(recipe, home, bin_only, [CARD])
    assert ids(found) == [(FindingId.TOOL_CHAIN_MISSING, Severity.WARNING)]
    assert "ninja and nvcc" in found[0].title


def test_a_full_disk_is_told_before_the_start(
    home: Home, model: Path, port: int, sglang_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    found = check(real(model, port), home, sglang_env, [CARD])
    assert [f.severity for f in found] == [Severity.FATAL]
    assert "TUNER_HOME" in found[0].remedy


def test_an_old_driver_is_told(home: Home, model: Path, port: int, sglang_env: dict[str, str], tmp_path: Path) -> None:
    info = tmp_path / "site" / "nvidia_cuda_runtime-13.0.96.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nvidia-cuda-runtime\nVersion: 13.0.96\n", encoding="utf-8"
    )
    recipe = real(model, port)
    spec = launch_spec(recipe, home, sglang_env)
    assert ids(preflight(recipe, spec, [CARD], home, driver="550.54")) == [(FindingId.DRIVER_OLD, Severity.WARNING)]
    assert preflight(recipe, spec, [CARD], home, driver="580.159.04") == ()
    assert preflight(recipe, spec, [CARD], home, driver=None) == ()


def test_inner_ports_are_those_that_sglang_binds() -> None:
    assert internal_ports(Recipe(flags={"port": 30000})) == {}
    assert internal_ports(Recipe(flags={"nccl_port": 28000})) == {"NCCL": 28000}
    inner = internal_ports(Recipe(flags={"port": 30000, "enable_dp_attention": True}))
    assert min(inner.values()) == 30233
    assert max(inner.values()) == 30238
    assert min(internal_ports(Recipe(flags={"port": 65500, "enable_dp_attention": True})).values()) == 65267


def test_a_proxy_of_the_environment_is_told_and_does_not_reach_the_servers_own_requests(
    home: Home, model: Path, port: int, sglang_env: dict[str, str]
) -> None:
    environ = {**sglang_env, "https_proxy": "http://proxy.example:3128"}
    spec = launch_spec(real(model, port), home, environ)
    assert "127.0.0.1" in spec.environment["no_proxy"].split(",")
    (finding,) = preflight(real(model, port), spec, [CARD], home)
    assert (finding.id, finding.severity) == (FindingId.UNKNOWN, Severity.NOTE)
    assert "https_proxy" in finding.title
    assert "proxy.example" not in finding.title


def test_cards_that_cannot_reach_each_other_are_told_when_ranks_are_spread_over_them(
    home: Home, model: Path, port: int, sglang_env: dict[str, str]
) -> None:
    two = [CARD, GpuReading(index=1, uuid="GPU-bb", total_mib=49140, used_mib=600, free_mib=48540)]
    apart = [(0, 1, "turned off in the driver")]
    recipe = real(model, port, tp_size=2)
    found = preflight(recipe, launch_spec(recipe, home, sglang_env), two, home, apart=apart)
    told = [f for f in found if f.id is FindingId.PEER_ACCESS]
    assert [f.severity for f in told] == [Severity.WARNING]
    assert "GPU 0 and GPU 1" in told[0].title
    assert "turned off in the driver" in told[0].title
    single = real(model, port)
    assert preflight(single, launch_spec(single, home, sglang_env), two, home, apart=apart) == ()


@pytest.mark.parametrize(("driver", "told"), [("530.30.02", True), ("535.54", False), (None, False), ("?", False)])
def test_a_driver_too_old_for_unified_memory_is_told(
    home: Home, model: Path, port: int, sglang_env: dict[str, str], driver: str | None, told: bool
) -> None:
    recipe = real(model, port, enable_unified_memory=True)
    found = preflight(recipe, launch_spec(recipe, home, sglang_env), [CARD], home, driver=driver)
    assert ids(found) == ([(FindingId.DRIVER_OLD, Severity.WARNING)] if told else [])


def test_a_model_to_be_fetched_needs_room_in_its_cache(
    home: Home, port: int, sglang_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    environ = {**sglang_env, "HF_HUB_CACHE": str(cache)}
    recipe = Recipe(
        python=sys.executable, flags={"model_path": "Qwen/Some-Model", "port": port, "attention_backend": "triton"}
    )
    spec = launch_spec(recipe, home, environ)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 30))
    (finding,) = preflight(recipe, spec, [CARD], home)
    assert "Qwen/Some-Model" in finding.title
    assert str(cache) in finding.title
    assert "HF_HOME" in finding.remedy
    (cache / "models--Qwen--Some-Model" / "snapshots").mkdir(parents=True)
    assert preflight(recipe, spec, [CARD], home) == ()


def test_a_server_of_a_start_script_is_recognised_while_it_loads(
    home: Home, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    fake.chmod(0o755)
    recipe = Recipe(python=SIMULATOR, flags={"model_path": "m", "port": port})
    script = tmp_path / "start.sh"
    script.write_text(to_shell(recipe), encoding="utf-8")
    environ = {**os.environ, "TUNER_HOME": str(home.state_root.parent), "PYTHON": str(fake)}
    with subprocess.Popen(["bash", str(script)], env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("Log: ")
            found = preflight(recipe, None, [], home)
            assert ids(found) == [(FindingId.DOUBLE_START, Severity.FATAL)]
            assert "start script" in found[0].title
            assert f"process {server.pid}" in found[0].evidence[0]
            again = subprocess.run(["bash", str(script)], env=environ, capture_output=True, text=True, check=False)
            assert again.returncode == 1
            assert str(server.pid) in again.stderr
        finally:
            server.kill()
    assert preflight(recipe, None, [], home) == ()


def test_a_start_script_recognises_a_server_of_the_tuner_while_it_loads(
    supervisor: Supervisor, home: Home, port: int, fake_spec: Callable[..., LaunchSpec], tmp_path: Path
) -> None:
    handle = supervisor.start(fake_spec("--load-until", str(tmp_path / "never")))
    script = tmp_path / "start.sh"
    script.write_text(to_shell(handle.recipe), encoding="utf-8")
    environ = {**os.environ, "TUNER_HOME": str(home.state_root.parent), "PYTHON": sys.executable}
    refused = subprocess.run(["bash", str(script)], env=environ, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert str(handle.pid) in refused.stderr
    assert supervisor.running() == [handle]
