from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))

from checks_simulator import free_port

from tuner.cli.check import verify_command
from tuner.cli.history import diff_command, show_command
from tuner.cli.measure import measure_command
from tuner.cli.run import run_command, stop_command
from tuner.recipe import load
from tuner.recipe.model import RecipeError

ROOT = Path(__file__).parents[3]
FEW = ("--concurrency", "2", "--requests", "6", "--input", "64", "--output", "4")


def invoked(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def told(result: Result) -> Any:
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


def recipe(folder: Path, port: int, more: str = "") -> Path:
    """The demo at once, on a port of its own, with small pools and a goal."""
    text = (ROOT / "presets" / "demo.toml").read_text()
    text = text.replace("port = 30100", f'port = {port}\napi_key = "${{LOCAL_KEY}}"')
    text = text.replace("[memory]", "[memory]\nmax_total_tokens = 40000\nmax_mamba_cache_size = 40")
    text += f"""slo_ttft_s = 30.0
slo_itl_ms = 5000
simulator = {{ speed = 0 }}

[api]
base_url = "http://127.0.0.1:{port}/v1"
api_key_env = "GATEWAY_KEY"
{more}"""
    path = folder / "small.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A round on the simulator, running, in a home of its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("measured")
        patch.setenv("TUNER_HOME", str(folder / "home"))
        patch.setenv("LOCAL_KEY", "sk-local-key-0123456789")
        patch.setenv("GATEWAY_KEY", "sk-local-key-0123456789")
        path = recipe(folder, free_port())
        started = invoked(run_command, str(path), "--json")
        try:
            assert told(started)["state"] == "verified", started.output
            yield path
        finally:
            invoked(stop_command, "--now")


def test_the_full_set_is_recorded_in_the_round(preset: Path) -> None:
    result = invoked(verify_command, "--full", "--json")
    checks = told(result)["checks"]
    assert result.exit_code == 0, checks
    assert len(checks) == 10
    assert {check["verdict"] for check in checks} == {"pass"}


def test_models_of_a_gateway_stand_beside_the_local_round_and_its_key_nowhere(preset: Path) -> None:
    result = invoked(verify_command, "--gateway", "--model", "one", "--model", "two")
    assert result.exit_code == 0, result.output
    head = result.stdout.splitlines()[0]
    assert head.split() == ["check", "r1", "(direct)", "one", "two"]
    assert "sk-local" not in result.output
    models = told(invoked(verify_command, "--gateway", "--json"))["models"]
    assert [model["model"] for model in models] == ["r1 (direct)", "hybrid-27b"]


def test_a_load_is_kept_with_its_round_and_told_without_its_samples(preset: Path) -> None:
    found = told(invoked(measure_command, *FEW, "--json"))
    assert (found["round"], found["failed"], found["samples"]) == ("r1", 0, 18)
    # The goal is the recipe's.
    assert found["slo"] == {"ttft_s": 30.0, "itl_s": 5.0}
    assert found["good_share"] == 1.0
    said = invoked(measure_command, *FEW, "--slo-ttft", "9")
    assert "repeat 1 of 3" in said.stderr
    assert "3 of 3 repeats of 6 requests" in said.stdout
    kept = told(invoked(show_command, "r1", "--json"))["measurements"]
    assert [len(measured["samples"]) for measured in kept] == [18, 18]
    assert [measured["slo"]["ttft_s"] for measured in kept] == [30.0, 9.0]


def test_speed_by_length_is_kept_too(preset: Path) -> None:
    found = told(invoked(measure_command, "--physics", "--json"))["physics"]
    assert [point["tokens"] for point in found["points"]] == [1_024, 4_096, 16_384]


def test_a_recorded_workload_is_replayed(preset: Path, tmp_path: Path) -> None:
    workload = tmp_path / "mine.jsonl"
    line = {"messages": [{"role": "user", "content": "你好"}], "max_tokens": 4}
    workload.write_text("".join(json.dumps({"ts": n / 50, **line}) + "\n" for n in range(4)))
    for timing in ((), ("--own-timing", "--speedup", "2")):
        found = told(invoked(measure_command, "--workload", str(workload), *timing, "--json"))
        assert (found["failed"], found["samples"]) == (0, 12)
        assert found["load"]["workload"].startswith("mine.jsonl#")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--workload", "/nowhere.jsonl"), "cannot be read"),
        (("--ab", "schedule_policy"), "takes a flag and two values"),
        (("--ab", "schedule_policy=lpm,lpm"), "two different values"),
        (("--ab", "no_such_flag=1,2"), "no_such_flag"),
        (("--own-timing",), "go with --workload"),
        (("demo",), "goes with --ab"),
    ],
)
def test_wrong_use_gets_one_sentence(preset: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = invoked(measure_command, *arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_two_values_of_a_flag_take_turns_and_both_keep_their_loads(preset: Path) -> None:
    result = invoked(measure_command, str(preset), "--ab", "schedule_policy=lpm,fcfs", "--starts", "1", *FEW, "--json")
    found = told(result)
    assert [side["value"] for side in found["sides"]] == ["schedule_policy=lpm", "schedule_policy=fcfs"]
    first, second = (side["rounds"] for side in found["sides"])
    assert int(second[0][1:]) == int(first[0][1:]) + 1
    # One start of each side says nothing of their scatter.
    assert {change["verdict"] for change in found["changes"]} == {"not comparable"}
    load_lines = [
        c for c in told(invoked(diff_command, first[0], second[0], "--json"))["metrics"] if "load" in c["name"]
    ]
    assert load_lines


def test_a_goal_in_the_recipe_must_be_a_number(tmp_path: Path) -> None:
    path = recipe(tmp_path, 30_000)
    assert load(path).tuner.slo_itl_ms == 5_000.0
    path.write_text(path.read_text().replace("slo_ttft_s = 30.0", 'slo_ttft_s = "fast"'))
    with pytest.raises(RecipeError, match=r"tuner\.slo_ttft_s"):
        load(path)
