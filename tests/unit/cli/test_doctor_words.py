"""What ``tuner doctor`` says of files and of a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tuner.cli import main

DATA = Path(__file__).parents[2] / "data"
PRESETS = Path(__file__).parents[3] / "presets"
REFUSED = str(DATA / "measured" / "27b-48g-fraction-too-low.log")
R15_LOG = str(DATA / "measured" / "27b-48g-r15-full.log")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return tmp_path


def run(*words: str, status: int) -> Result:
    result = CliRunner().invoke(main, ["doctor", *words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def as_json(*words: str, status: int) -> Any:
    return json.loads(run(*words, "--json", status=status).stdout)


def test_a_log_is_judged_with_the_flags_to_paste() -> None:
    told = run("--log", REFUSED, status=1).stdout
    assert "slots-negative" in told
    assert "--set mem_fraction_static=0.63" in told
    assert "would give" not in told


def test_with_the_recipe_the_remedy_is_planned_before_it_is_offered(home: Path) -> None:
    recipe = home / "mine.toml"
    text = (PRESETS / "qwen3.8-27b-r01.toml").read_text(encoding="utf-8")
    recipe.write_text(text.replace("mem_fraction_static = 0.86", "mem_fraction_static = 0.55"), encoding="utf-8")
    answer = as_json("--log", REFUSED, str(recipe), status=1)
    first = answer["findings"][0]
    assert first["id"] == "slots-negative"
    assert set(first) == {"id", "severity", "title", "evidence", "remedy", "flags", "after", "problem", "stays"}
    assert first["after"]["fits"] is True
    assert first["after"]["kv_tokens"] > 0
    assert "would give" in run("--log", REFUSED, str(recipe), status=1).stdout


def test_a_log_of_another_command_is_called_that() -> None:
    answer = as_json("--log", REFUSED, str(PRESETS / "qwen3.8-27b-r15.toml"), status=1)
    assert any("another command" in f["title"] for f in answer["findings"])


def test_without_a_recipe_nothing_is_planned() -> None:
    answer = as_json("--log", R15_LOG, status=1)
    assert [f["after"] for f in answer["findings"]] == [None] * len(answer["findings"])
    assert answer["of"] == R15_LOG


def test_a_healthy_log_is_status_0(home: Path) -> None:
    healthy = str(DATA / "measured" / "dense-small.log")
    assert [f["severity"] for f in as_json("--log", healthy, status=0)["findings"]] == ["note"]


def test_a_metrics_page_is_judged_and_one_that_is_none_is_told(home: Path) -> None:
    data = json.loads((DATA / "measured" / "tiny-auto-strategy-never-hits.json").read_text(encoding="utf-8"))
    page = home / "metrics.txt"
    page.write_text(data["metrics_end"], encoding="utf-8")
    assert [f["id"] for f in as_json("--metrics", str(page), status=1)["findings"]] == ["prefix-cache-off"]
    for text in ('{"detail":"Not Found"}\n', "<html>no</html>"):
        page.write_text(text, encoding="utf-8")
        assert [f["id"] for f in as_json("--metrics", str(page), status=1)["findings"]] == ["metrics-off"]


def test_the_logs_of_two_roles_are_compared(home: Path) -> None:
    begin = "[2026-01-01 00:00:00] server_args=ServerArgs(disaggregation_mode='{}', mamba_ssm_dtype='{}', tp_size=1)\n"
    pools = (
        "[2026-01-01 00:00:01] Load weight begin. avail mem=46.83 GB\n"
        "[2026-01-01 00:00:02] Mamba Cache is allocated. max_mamba_cache_size: 63, conv_state size: 0.10GB, "
        "ssm_state size: {}GB\n"
    )
    for role, dtype, gib in (("prefill", "float32", "8.00"), ("decode", "bfloat16", "4.00")):
        (home / f"{role}.log").write_text(begin.format(role, dtype) + pools.format(gib), encoding="utf-8")
    words = ("--log", str(home / "prefill.log"), "--log", str(home / "decode.log"))
    found = {f["id"]: f for f in as_json(*words, status=1)["findings"]}
    assert "mamba_ssm_dtype is float32 in prefill, bfloat16 in decode" in found["pd-mismatch"]["evidence"]


def test_a_preset_alone_has_its_plan_judged() -> None:
    answer = as_json("demo", status=1)
    found = {f["id"]: f for f in answer["findings"]}
    assert found["pool-below-context"]["after"]["kv_tokens"] >= 262_144
    assert "the plan of" in answer["of"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--log", "no-such.log"), "no-such.log cannot be read"),
        (("--metrics", "no-such.txt"), "no-such.txt cannot be read"),
        (("no-such-preset",), "no-such-preset"),
        ((str(PRESETS / "qwen3.8-27b-r15.toml"),), "How much VRAM is free is not known here"),
    ],
)
def test_wrong_use_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    result = run(*words, status=2)
    assert said in result.stderr
    assert result.stdout == ""


def test_an_empty_log_says_so(home: Path) -> None:
    (home / "empty.log").touch()
    assert "is empty" in run("--log", str(home / "empty.log"), status=2).stderr


def test_escape_sequences_and_secrets_of_a_log_stay_there(home: Path) -> None:
    log = home / "odd.log"
    log.write_text(
        "[2026-01-01 00:00:00] Scheduler hit an exception: Traceback (most recent call last):\n"
        "RuntimeError: \x1b[31mboom 模型 api_key='hunter2'\n",
        encoding="utf-8",
    )
    told = run("--log", str(log), status=1).stdout
    assert "boom 模型" in told
    assert "hunter2" not in told
    assert "\x1b" not in told


def test_without_a_server_and_without_rounds_there_is_nothing_to_say() -> None:
    answer = as_json(status=0)
    assert answer["findings"] == []
    assert "no server of the tuner runs" in answer["of"]


def test_a_log_without_its_option_is_told_where_it_goes() -> None:
    assert f"is a log, not a recipe: give it as --log {REFUSED}." in run(REFUSED, status=2).stderr
