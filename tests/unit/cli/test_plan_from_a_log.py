"""``tuner plan --boot-log``: the flags of the start that wrote the log, against what that server came to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tuner.cli import main

DATA = Path(__file__).parents[2] / "data"
NEXT = DATA / "real_rounds" / "next-80b-whole-card.log"
AUTO = DATA / "real_rounds" / "27b-48g-auto-r2.log"
NEXT_MODEL = ("--model", "qwen3-next-80b-a3b-fp8")
AUTO_MODEL = ("--model", "qwen3.8-27b-fp8-text")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return tmp_path


def plan(*words: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, ["plan", *words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def pools(*words: str) -> tuple[int, int, int]:
    told = as_json(*words)
    return told["kv_tokens"], told["mamba_slots"], told["max_running_requests"]


def as_json(*words: str) -> Any:
    return json.loads(plan(*words, "--json").stdout)


def test_a_log_alone_is_planned_as_its_server_was_started() -> None:
    # What these servers printed: tokens, slots, requests.
    assert pools("--boot-log", str(NEXT), *NEXT_MODEL) == (1_318_948, 78, 15)
    assert pools("--boot-log", str(AUTO), *AUTO_MODEL) == (265_176, 23, 4)
    assert plan("--boot-log", str(NEXT), *NEXT_MODEL).stdout.startswith("Flags of next-80b-whole-card.log\n")


@pytest.mark.parametrize(
    "name", ["bf16-frac086", "bf16-frac086-ratio03", "bf16-frac095-slots24", "fp32-frac086", "r15-full"]
)
def test_every_recorded_log_alone_gives_the_pools_that_it_tells(name: str) -> None:
    log = str(DATA / "measured" / f"27b-48g-{name}.log")
    told = json.loads(CliRunner().invoke(main, ["log", log, "--json"]).stdout)
    seen = (told["kv_tokens"], told["mamba_slots"], told["max_running_requests"])
    assert pools("--boot-log", log, *AUTO_MODEL) == seen


def test_a_flag_of_the_log_given_by_hand_as_well_changes_nothing() -> None:
    same = ("--set", "mem_fraction_static=0.85")
    assert pools("--boot-log", str(NEXT), *NEXT_MODEL, *same) == (1_318_948, 78, 15)


def test_a_flag_that_is_set_goes_over_the_log_and_each_flag_says_where_it_is_from() -> None:
    words = ("--boot-log", str(NEXT), *NEXT_MODEL, "--set", "mem_fraction_static=0.9")
    told = as_json(*words)
    assert told["kv_tokens"] > 1_318_948
    assert told["sources"]["mem_fraction_static"] == "recipe"
    assert told["sources"]["mamba_full_memory_ratio"] == told["sources"]["max_running_requests"] == "boot log"
    assert told["flags_from"] == "Flags of next-80b-whole-card.log, with --set over them"
    text = plan(*words).stdout
    assert text.startswith("Flags of next-80b-whole-card.log, with --set over them\n")


def test_the_flags_of_a_preset_count_and_one_line_names_those_of_the_log_that_differ() -> None:
    first = plan("qwen3.8-27b-r01", "--boot-log", str(AUTO), *AUTO_MODEL).stdout.splitlines()[0]
    assert first == (
        "Flags of qwen3.8-27b-r01; 27b-48g-auto-r2.log was started with mem_fraction_static 0.983, not 0.86; "
        "kv_cache_dtype fp8_e4m3, not bfloat16; max_running_requests 4, not 3; "
        "speculative_num_draft_tokens 2, not unset; speculative_algorithm EAGLE, not unset"
    )
    assert (
        as_json("qwen3.8-27b-r01", "--boot-log", str(AUTO), *AUTO_MODEL)["sources"]["mem_fraction_static"] == "recipe"
    )


def test_a_log_of_the_preset_itself_has_nothing_that_differs(home: Path) -> None:
    own = DATA / "real_rounds" / "27b-48g-r01.log"
    words = ("qwen3.8-27b-r01", "--boot-log", str(own), *AUTO_MODEL)
    assert as_json(*words)["flags_from"] == "Flags of qwen3.8-27b-r01"
    # A server echoes EAGLE where NEXTN was asked for.
    solved = ("speculative_algorithm=NEXTN", "speculative_num_steps=1", "speculative_eagle_topk=1",
              "speculative_num_draft_tokens=2", "kv_cache_dtype=fp8_e4m3", "max_running_requests=4",
              "mem_fraction_static=0.983")  # fmt: skip
    asked = [word for assignment in solved for word in ("--set", assignment)]
    assert as_json("qwen3.8-27b-r01", "--boot-log", str(AUTO), *AUTO_MODEL, *asked)["flags_from"] == (
        "Flags of qwen3.8-27b-r01, with --set over them"
    )


def test_a_log_that_echoes_no_flags_says_so(home: Path) -> None:
    log = home / "cut.log"
    lines = NEXT.read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "server_args=" not in line), encoding="utf-8")
    # The start's own flags by hand, since the pools in the log are theirs.
    flags = ("mem_fraction_static=0.85", "mamba_full_memory_ratio=0.35", "mamba_radix_cache_strategy=extra_buffer",
             "speculative_algorithm=EAGLE", "speculative_num_steps=3", "speculative_eagle_topk=1",
             "speculative_num_draft_tokens=4", "max_running_requests=256", "disable_cuda_graph=true")  # fmt: skip
    asked = [word for assignment in flags for word in ("--set", assignment)]
    told = as_json("--boot-log", str(log), *NEXT_MODEL, *asked)
    assert told["flags_from"] == "No preset, and cut.log echoes no flags: SGLang's defaults, with --set over them"
    assert (told["kv_tokens"], told["mamba_slots"]) == (1_318_948, 78)
    assert as_json("qwen3-next-80b", "--boot-log", str(log), *NEXT_MODEL)["flags_from"] == (
        "Flags of qwen3-next-80b; cut.log echoes none"
    )


def test_a_model_folder_of_another_machine_is_named_with_what_to_do() -> None:
    said = plan("--boot-log", str(NEXT), status=2).stderr
    assert "/models/next-80b-fp8 is not on this machine: give --model DIR" in said
    assert "mem_fraction_static" not in said


def test_without_a_log_nothing_is_said_of_flags() -> None:
    words = ("qwen3-next-80b", "--free-before", "139", "--free-after", "61")
    assert plan(*words).stdout.startswith("SGLang")
    assert "flags_from" not in as_json(*words)


def test_flags_by_their_old_names_are_read_too(home: Path) -> None:
    log = home / "old.log"
    text = NEXT.read_text(encoding="utf-8").replace("mamba_radix_cache_strategy='ex", "mamba_scheduler_strategy='ex")
    log.write_text(text, encoding="utf-8")
    assert pools("--boot-log", str(log), *NEXT_MODEL) == (1_318_948, 78, 15)
    assert as_json("--boot-log", str(log), *NEXT_MODEL)["in_force"]["mamba_radix_cache_strategy"] == "extra_buffer"
