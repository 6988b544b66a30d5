"""From a recipe to a process: words, environment, start script, assignments."""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuner.flags import catalogue, is_in
from tuner.recipe import (
    Recipe,
    RecipeError,
    TunerSettings,
    dumps_toml,
    loads_toml,
    merge_set,
    resolve_argv,
    resolve_environment,
    simulator_argv,
    to_argv,
    to_shell,
)
from tuner.recipe.script_file import loads_script

HELP = Path(__file__).parents[2] / "data" / "help-0.5.17.txt"


def parser_of_the_help_text() -> argparse.ArgumentParser:
    """A parser with every flag of 0.5.17's ``--help``, as strict as the text tells."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    body = HELP.read_text(encoding="utf-8").split("\noptions:\n", 1)[1]
    for line in body.splitlines():
        if not line.startswith("  -") or line.startswith("  -h,"):
            continue
        declaration = re.split(r"\s{2,}", line.strip())[0]
        names = re.findall(r"--[a-z0-9-]+", re.sub(r"\{[^}]*\}", "", declaration))
        form = declaration.split(names[-1], 1)[1].strip()
        if len(names) > 1 and names[1] == "--no-" + names[0][2:]:
            parser.add_argument(names[0], action=argparse.BooleanOptionalAction)
        elif not form:
            parser.add_argument(*names, action="store_true")
        else:
            nargs = "*" if form.startswith("[") and "..." in form else "+" if "..." in form else None
            nargs = "?" if form.startswith("[") and "..." not in form else nargs
            choices = re.match(r"\[?\{([^}]*)\}", form)
            parser.add_argument(*names, nargs=nargs, choices=choices[1].split(",") if choices else None)
    return parser


def sample(name: str) -> Any:
    info = catalogue()[name]
    if info.secret:
        return "${SOME_KEY}"
    if info.kind == "bool":
        return True
    item: Any = info.choices[-1] if info.choices else {"int": 3, "float": 0.5}.get(info.kind, "a word")
    if info.kind == "list":
        element: Any = info.choices[-1] if info.choices else {"int": 3, "float": 0.5, "str": "word"}[info.element]
        return [element, element]
    if info.kind == "json":
        return [1, {"a": "b"}] if info.form == "array" else {"a": [1, None, "é'"]}
    return item


def test_every_flag_of_0_5_17_goes_through_its_parser() -> None:
    parser = parser_of_the_help_text()
    for name, info in catalogue().items():
        if not is_in(info, "0.5.17"):
            continue
        words = to_argv(Recipe(flags={name: sample(name)}))
        taken = vars(parser.parse_args(words))
        assert taken[name] not in (None, False), words
        assert to_argv(loads_toml(dumps_toml(Recipe(flags={name: sample(name)})))) == words


def test_switches_lists_and_tables_take_the_form_the_parser_reads() -> None:
    recipe = Recipe(
        flags={
            "enable_metrics": True,
            "trust_remote_code": False,
            "dllm_fdfo": False,
            "cuda_graph_bs_decode": [1, 2],
            "cuda_graph_config": {"decode": {"backend": "disabled"}},
            "chunked_prefill_size": -1,
            "served_model_name": "-x",
            "model_checksum": True,
        }
    )
    assert to_argv(recipe) == [
        "--served-model-name=-x",
        "--chunked-prefill-size",
        "-1",
        "--cuda-graph-bs-decode",
        "1",
        "2",
        "--cuda-graph-config",
        '{"decode":{"backend":"disabled"}}',
        "--enable-metrics",
        "--no-dllm-fdfo",
        "--model-checksum",
    ]


def test_the_order_of_words_does_not_follow_the_order_of_flags() -> None:
    flags = {"port": 1, "mem_fraction_static": 0.9, "model_path": "m"}
    words = to_argv(Recipe(flags=flags))
    assert words == to_argv(Recipe(flags=dict(reversed(flags.items()))))
    assert words[:2] == ["--model-path", "m"]


def test_an_older_sglang_gets_the_flag_by_its_old_name() -> None:
    recipe = Recipe(flags={"mamba_radix_cache_strategy": "extra_buffer"}, tuner=TunerSettings(sglang_version="0.5.9"))
    assert to_argv(recipe) == ["--mamba-scheduler-strategy", "extra_buffer"]


def test_a_list_that_argparse_would_take_for_flags_is_refused() -> None:
    with pytest.raises(RecipeError, match="begins with a dash"):
        to_argv(Recipe(flags={"encoder_urls": ["--x"]}))


def test_an_unknown_flag_in_a_recipe_is_refused_with_the_one_meant() -> None:
    with pytest.raises(RecipeError, match="perhaps mem_fraction_static was meant"):
        to_argv(Recipe(flags={"mem_fraction": 0.9}))


def test_variables_are_read_at_launch_only() -> None:
    recipe = loads_toml(
        '[server]\nmodel_path = "${MODELS}/a"\napi_key = "${KEY}"\n'
        '[parsers]\ndefault_chat_template_kwargs = {who = "${WHO}"}\n[environment]\nA = "x${KEY}y"\nB = "$plain"\n'
    )
    environ = {"MODELS": "/m", "KEY": "secret", "WHO": 'a "b"'}
    assert resolve_environment(recipe, environ) == {"A": "xsecrety", "B": "$plain"}
    words = resolve_argv(recipe, environ)
    assert words[:2] == ["--model-path", "/m/a"] and "secret" in words
    assert '{"who":"a \\"b\\""}' in words
    assert "secret" not in " ".join(to_argv(recipe)) + dumps_toml(recipe) + to_shell(recipe)


def test_a_variable_that_is_not_set_is_named() -> None:
    recipe = loads_toml('[environment]\nHF_TOKEN = "${MY_TOKEN}"\n')
    with pytest.raises(RecipeError, match=r"The environment variable MY_TOKEN is not set, and environment\.HF_TOKEN"):
        resolve_environment(recipe, {})


def test_simulator_switches_come_from_the_tuners_table() -> None:
    recipe = Recipe(tuner=TunerSettings(simulator={"speed": 50, "fault": "oom", "quiet": True, "loud": False}))
    assert simulator_argv(recipe) == ["--sim-speed", "50", "--sim-fault", "oom", "--sim-quiet"]


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("mem_fraction_static=0.9", "mem_fraction_static", 0.9),
        ("--kv-cache-dtype=fp8_e4m3", "kv_cache_dtype", "fp8_e4m3"),
        ("mamba_scheduler_strategy=no_buffer", "mamba_radix_cache_strategy", "no_buffer"),
        ("speculative.num_steps=2", "speculative_num_steps", 2),
        ("enable_metrics", "enable_metrics", True),
        ("enable_prefix_caching=false", "disable_radix_cache", True),
        ("context_length=100k", "context_length", 100_000),
        ('default_chat_template_kwargs={"a": 1}', "default_chat_template_kwargs", {"a": 1}),
        ("served_model_name=a=b", "served_model_name", "a=b"),
    ],
)
def test_an_assignment_sets_a_flag(assignment: str, name: str, value: Any) -> None:
    assert merge_set(Recipe(), [assignment]).flags == {name: value}


def test_assignments_reach_the_rest_of_a_recipe() -> None:
    recipe = merge_set(
        Recipe(flags={"port": 1}),
        [
            "python=simulator",
            "env.A=1",
            "tuner.headroom_gib=3",
            'tuner.simulator={"speed": 9}',
            "port=",
            "tp_size=2",
            "tuner.need_agents=3",
            "tuner.slo_ttft_s=2",
        ],
    )
    assert recipe.simulated and recipe.environment == {"A": "1"} and recipe.flags == {"tp_size": 2}
    assert recipe.tuner == TunerSettings(headroom_gib=3.0, simulator={"speed": 9}, need_agents=3, slo_ttft_s=2.0)
    assert merge_set(recipe, ["python=", "env.A="]) == msgspec.structs.replace(recipe, python=None, environment={})


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("mem_fraction=0.9", "perhaps mem_fraction_static was meant"),
        ("enable_elastic_memory_pool=true", "SGLang has no such flag; enable_unified_memory"),
        ("mem_fraction_static=abc", "it takes a number above 0 and up to 1"),
        ("mem_fraction_static", "needs a value: write mem_fraction_static=value"),
        ("=3", "write key=value"),
        ("tuner.colour=red", r"\[tuner\] has no key colour"),
        ("api_key=hunter2hunter2", "holds a secret in clear"),
        ("python", "needs a value"),
    ],
)
def test_an_assignment_that_cannot_be_is_explained(assignment: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as refused:
        merge_set(Recipe(), [assignment])
    assert "hunter2" not in str(refused.value)


FAKE_SERVER = '#!/bin/sh\necho "ARGS $*"; echo "CUDA $CUDA_VISIBLE_DEVICES"; echo "PATH $PATH"\n'


@pytest.fixture
def script(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    """A start script with an interpreter of ours, its log folder, and the environment to run it in."""
    fake = tmp_path / "环境 bin" / "python"
    fake.parent.mkdir()
    fake.write_text(FAKE_SERVER, encoding="utf-8")
    fake.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    recipe = Recipe(
        flags={"model_path": "/models/it's ${WHERE}", "port": port, "api_key": "${KEY}"},
        environment={"CUDA_VISIBLE_DEVICES": "3"},
        python=str(fake),
    )
    path = tmp_path / "start.sh"
    path.write_text(to_shell(recipe, ["r15 $(rm -rf x)"]), encoding="utf-8")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "WHERE": "a b", "KEY": "k"}
    return path, tmp_path / ".local" / "state" / "sglang", environ


bash = pytest.mark.skipif(
    not (shutil.which("bash") and shutil.which("flock")), reason="the start script needs bash and flock"
)


@bash
def test_the_start_script_starts_the_interpreter_with_its_folder_first(
    script: tuple[Path, Path, dict[str, str]],
) -> None:
    path, logs, environ = script
    done = subprocess.run(["bash", str(path)], env=environ, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    (log,) = logs.glob("*.log")
    said = log.read_text(encoding="utf-8")
    assert "ARGS -m sglang.launch_server --model-path /models/it's a b --port" in said
    assert "--api-key k" in said and "CUDA 3" in said
    assert f"PATH {path.parent / '环境 bin'}:/usr/bin" in said


@bash
def test_a_launcher_stands_in_front_in_the_start_script_too(script: tuple[Path, Path, dict[str, str]]) -> None:
    path, logs, environ = script
    recipe = loads_script(path.read_text(encoding="utf-8")).recipe
    behind = msgspec.structs.replace(recipe, tuner=TunerSettings(launcher="env 'FRONT=a b'"))
    text = to_shell(behind)
    assert loads_script(text).recipe.tuner == behind.tuner
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(["bash", str(path)], env=environ, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    (log,) = logs.glob("*.log")
    assert "ARGS -m sglang.launch_server" in log.read_text(encoding="utf-8")


@bash
def test_the_start_script_refuses_a_second_start_while_the_first_still_loads(
    script: tuple[Path, Path, dict[str, str]],
) -> None:
    path, logs, environ = script
    servers = logs.parent / "tuner" / "servers"
    servers.mkdir(parents=True)
    port = re.search(r"^tuner_port=(\d+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert port is not None
    lock = servers / f"{port[1]}.live"
    done = subprocess.run(
        ["flock", str(lock), "bash", str(path)], env=environ, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert "already running or still loading" in done.stderr


@bash
def test_the_start_script_refuses_a_taken_port_and_a_missing_variable(
    script: tuple[Path, Path, dict[str, str]],
) -> None:
    path, _, environ = script
    port = re.search(r"^tuner_port=(\d+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert port is not None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(port[1])))
        taken.listen()
        done = subprocess.run(["bash", str(path)], env=environ, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1 and "taken by another program" in done.stderr
    del environ["KEY"]
    done = subprocess.run(["bash", str(path)], env=environ, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode != 0 and "KEY: must be set in the environment" in done.stderr


def test_a_script_for_the_stand_in_says_so() -> None:
    text = to_shell(Recipe(python="simulator", flags={"model_path": "m"}, tuner=TunerSettings(simulator={"speed": 9})))
    assert "not SGLang" in text and "-m tuner.sim" in text and "--sim-speed 9" in text
    assert "sglang.launch_server" not in text
