"""The guide tells the truth: what it names exists, what it works out comes out, and it fits the terminal."""

from __future__ import annotations

import json
import re
import shlex
from importlib.resources import files as packaged
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from guide_words import ROOT, commands, files, flags, spans

from tuner.cli import main
from tuner.findings import FindingId
from tuner.flags import lookup
from tuner.guide import NAMES, page, section, sections
from tuner.planner.model import HEADROOM_GIB
from tuner.recipe.toml_file import loads_toml
from tuner.server.logfile import KEEP_DAYS, KEEP_FILES
from tuner.text import width

IDS = {str(name) for name in FindingId}
#: Words in the shape of a flag that are something else: of the recipe's own tables, of SGLang's source, of its log.
NO_FLAGS = {
    "server_args", "server_info", "model_shape", "sglang_version", "headroom_gib", "slo_ttft_s", "slo_itl_ms",
    "need_input_tokens", "need_output_tokens", "need_agents", "need_warm_prefixes",
    "base_url", "api_key_env", "total_rest_memory", "cache_hit_rate", "http_proxy", "no_proxy", "extra_buffer",
    "extra_buffer_lazy", "no_buffer", "mamba_cache_per_req", "resolve_max_num_reqs", "get_num_allocatable_reqs",
    "kv_tokens", "qwen3_coder", "fp8_e4m3",
}  # fmt: skip
CELLS = 76
SPECULATION = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": "1",
    "speculative_eagle_topk": "1",
    "speculative_num_draft_tokens": "2",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return tmp_path


def answer(*words: str) -> Any:
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def test_every_page_can_be_reached_and_no_other_lies_about() -> None:
    there = {entry.name for entry in packaged("tuner.guide").joinpath("pages").iterdir()}
    assert there == {f"{name}.md" for name in NAMES}
    assert len(set(NAMES)) == len(NAMES)
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("## The guide")[1].split("## For contributors")[0]
    named = " ".join(re.findall(r"(?m)^\| (`.*?) \|", readme))
    assert sorted(re.findall(r"`([\w-]+)`", named)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_a_terminal_of_80_columns_and_draws_in_ascii(name: str) -> None:
    told = page(name)
    assert told.title and "\n" not in told.title and not told.title.startswith("#")
    assert "\n" not in told.summary and width(told.summary) <= 60
    for number, row in enumerate(told.text.splitlines(), start=1):
        assert row.isascii(), (number, row)
        assert width(row) <= CELLS, (number, row)
    assert told.text.count("```") % 2 == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_a_page_is_one(name: str) -> None:
    for line in commands(name):
        words = shlex.split(line)[1:]
        try:
            with main.make_context("tuner", list(words)) as context:
                _, command, rest = main.resolve_command(context, words) if words else ("", None, [])
                if command is not None:
                    command.make_context(words[0], list(rest), parent=context).close()
        except click.MissingParameter:
            # The name of a command in a sentence, without what it needs.
            assert len(words) == 1, line
        except click.ClickException as error:
            pytest.fail(f"{line}: {error.format_message()}")
        if words[:1] == ["guide"] and len(words) == 2:
            assert words[1] in NAMES or section(words[1]) is not None, line


def test_there_are_commands_to_try() -> None:
    assert sum(len(commands(name)) for name in NAMES) > 80


@pytest.mark.parametrize("name", NAMES)
def test_every_file_and_flag_and_finding_of_a_page_exists(name: str) -> None:
    missing = [path for path in files(name) if not (ROOT / path).exists()]
    assert not missing
    unknown = [flag for flag in flags(name) - NO_FLAGS if lookup(flag) is None]
    assert not unknown
    ids = {word for word in spans(name) if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", word)}
    assert ids <= IDS | set(NAMES) | {"lint-imports"}


def test_every_finding_has_its_section_and_no_other_has() -> None:
    headings = [told.heading for told in sections("findings")]
    assert sorted(headings) == sorted(IDS)
    for told in sections("findings"):
        assert len(told.text.splitlines()) >= 3, told.heading


def test_every_answer_of_the_faq_names_a_finding_and_a_command() -> None:
    answers = sections("faq")
    assert len(answers) >= 30
    for told in answers:
        words = [" ".join(word.split()) for word in re.findall(r"`([^`]+)`", told.text)]
        assert IDS & set(words), told.heading
        assert [word for word in words if word.startswith("tuner ")], told.heading
        prose = told.text.split("\n\n")[1]
        assert 2 <= len(re.findall(r"[.?](?=\s|$)", prose)) <= 7, told.heading


def test_the_worked_example_of_r01_is_what_the_planner_and_the_server_say(home: Path) -> None:
    text = page("two-pools").text
    line = next(line for line in commands("two-pools") if line.startswith("tuner plan qwen3.8-27b-r01 "))
    planned = answer(*shlex.split(line)[1:])
    came = answer("log", str(ROOT / "tests/data/real_rounds/27b-48g-r01.log"))
    told = next(s.text for s in sections("two-pools") if s.heading == "Worked example: r01")
    for number in (planned["kv_tokens"], came["kv_tokens"], planned["longest_input_tokens"]):
        assert f"{number:,}" in told
    for gib in (planned["reserve_gib"], planned["mamba_gib"], planned["kv_gib"]):
        assert f"{gib:.3f} GiB" in told
    assert planned["mamba_slots"] == came["mamba_slots"] == 41
    assert f"slots                6.028 GiB / 146.8 MiB, less one         {planned['mamba_slots']}" in told
    assert planned["max_running_requests"] == came["max_running_requests"] == 3
    assert planned["kv_tokens_low"] <= came["kv_tokens"] <= planned["kv_tokens_high"]
    assert came["kv_tokens"] - planned["kv_tokens"] == 30 and "the 30 tokens" in " ".join(told.split())
    assert f"{planned['bytes_per_slot']:,}  float32" in text
    assert f"= {planned['bytes_per_token']:,} bytes   bfloat16" in text
    assert f"{planned['bytes_per_slot'] // planned['bytes_per_token']:,} bfloat16 tokens" in " ".join(text.split())


def test_each_changed_flag_of_the_worked_example_gives_what_its_line_says(home: Path) -> None:
    told = next(s.text for s in sections("two-pools") if s.heading == "Worked example: r01")
    rows = re.findall(r"(?m)^(\w+=\S+) +(\d+) +([\d,]+)$", told)
    assert len(rows) == 5
    for change, slots, tokens in rows:
        planned = answer(
            "plan", "qwen3.8-27b-r01", "--free-before", "46.83", "--free-after", "19.29", "--set", change
        )  # fmt: skip
        assert (planned["mamba_slots"], planned["kv_tokens"]) == (int(slots), int(tokens.replace(",", ""))), change


def test_the_worked_example_of_r15_is_what_the_planner_and_the_server_say(home: Path) -> None:
    planned = answer("plan", "qwen3.8-27b-r15", "--free-before", "46.83", "--free-after", "13.76")
    came = answer("log", str(ROOT / "tests/data/measured/27b-48g-r15-full.log"))
    told = next(s.text for s in sections("two-pools") if s.heading == "Worked example: r15")
    for number in (planned["kv_tokens"], came["kv_tokens"], planned["longest_input_tokens"]):
        assert f"{number:,}" in told
    for gib in (planned["reserve_gib"], planned["mamba_gib"], planned["kv_gib"]):
        assert f"{gib:.3f} GiB" in told
    assert planned["mamba_slots"] == came["mamba_slots"] == 57 and "    57\n" in told
    graphs = sum(came["graphs_gib"].values())
    assert f"{graphs:.2f} GiB of graphs" in " ".join(told.split())
    assert f"{came['available_gib']:.2f} GiB." in told
    text = page("two-pools").text
    assert f"{planned['bytes_per_slot']:,}  bfloat16" in text
    assert f"= {planned['bytes_per_token']:,} bytes   fp8_e4m3" in text
    assert f"{planned['bytes_per_slot'] // planned['bytes_per_token']:,} fp8 tokens" in " ".join(text.split())


def test_the_slots_per_request_of_the_page_are_the_planners(home: Path) -> None:
    told = next(s.text for s in sections("two-pools") if s.heading == "Slots per request")
    wanted = {
        "prefix cache off (disable_radix_cache)": ("disable_radix_cache=true",),
        "no_buffer": ("mamba_radix_cache_strategy=no_buffer", "disable_overlap_schedule=true"),
        "extra_buffer, without the overlap schedule": (
            "mamba_radix_cache_strategy=extra_buffer",
            "disable_overlap_schedule=true",
        ),
        "extra_buffer_lazy (from 0.5.13)": ("mamba_radix_cache_strategy=extra_buffer_lazy",),
        "extra_buffer": ("mamba_radix_cache_strategy=extra_buffer",),
        "auto, model class on no list of 0.5.17": (),
    }
    rows = dict(re.findall(r"(?m)^(\S.*?)  +(\d)$", told))
    assert rows.keys() == wanted.keys()
    for row, changes in wanted.items():
        words = [word for change in changes for word in ("--set", change)]
        planned = answer("plan", "qwen3.8-27b-r01", "--free-before", "46.83", "--free-after", "19.29", *words)
        assert planned["slots_per_request"] == int(rows[row]), row


def test_the_tour_tells_the_real_rounds_as_they_were(home: Path) -> None:
    text = " ".join(page("rounds-in-practice").text.split())
    for name in ("27b-48g-r01", "27b-48g-solved-mtp"):
        came = answer("log", str(ROOT / f"tests/data/real_rounds/{name}.log"))
        assert f"{came['kv_tokens']:,}" in text
    rows = re.findall(r"(?m)^ ?(\d+) {3}\S", page("rounds-in-practice").text)
    assert [int(row) for row in rows] == list(range(1, 16))
    for name, number in (("r01", "63,501"), ("r15", "223,039")):
        assert number in text and number in (ROOT / f"presets/qwen3.8-27b-{name}.toml").read_text(encoding="utf-8")


def test_the_recipe_of_the_page_is_one(home: Path) -> None:
    told = next(s.text for s in sections("files-and-settings") if s.heading == "Presets of your own")
    recipe = loads_toml(told.split("```")[1])
    assert recipe.kept == () and recipe.launcher and recipe.api.api_key_env and recipe.tuner.headroom_gib == 4.4
    assert recipe.tuner.slo_itl_ms and recipe.tuner.slo_ttft_s and recipe.environment and recipe.python


def test_auto_takes_other_slots_from_0_5_14_on(home: Path) -> None:
    """What the pages say of an upgrade."""
    for version, slots in (("0.5.13", 3), ("0.5.14", 5)):
        planned = answer("plan", "qwen3-next-80b", "--free-before", "78", "--free-after", "39", "--sglang", version,
                         "--set", "mamba_radix_cache_strategy=auto", "--set", "tp_size=2",
                         "--set", "speculative_algorithm=", "--set", "max_running_requests=8")  # fmt: skip
        assert planned["slots_per_request"] == slots, version


def test_the_figures_of_the_faq_are_those_of_the_recordings() -> None:
    """Cached tokens and times to first token of one prefix three times, slots and tokens of three starts."""
    text = " ".join(page("faq").text.split())
    seen = json.loads((ROOT / "tests/data/measured/27b-48g-r15-full.json").read_text(encoding="utf-8"))["prefix"]
    assert ", ".join(f"{one['ttft_s']:.3f}" for one in seen) in text
    cached = [int(re.findall(r'"cached_tokens":(\d+)', one["first"])[0]) for one in seen]
    assert f"{', '.join(f'{n:,}' for n in cached)} of 8,003 tokens" in text
    pools = " ".join(page("two-pools").text.split())
    for name, told in (("fp32-frac086", pools), ("bf16-frac086", pools), ("bf16-frac086-ratio03", text)):
        came = answer("log", str(ROOT / f"tests/data/measured/27b-48g-{name}.log"))
        assert f"{came['mamba_slots']} slots and {came['kv_tokens']:,} tokens" in told
    log = (ROOT / "tests/data/measured/27b-48g-r15-full.log").read_text(encoding="utf-8")
    held = {int(n) for n in re.findall(r"#running-req: 3, .*?mamba num: (\d+)", log)}
    assert held == {12} and "3 of them held 12" in pools


def test_the_files_page_tells_how_long_logs_stay() -> None:
    text = " ".join(page("files-and-settings").text.split())
    assert f"older than {KEEP_DAYS:.0f} days" in text and f"the newest {KEEP_FILES};" in text
    assert f"{HEADROOM_GIB} GiB unless headroom_gib" in " ".join(page("findings").text.split())


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        (7, {"mem_fraction_static": "0.88", **SPECULATION}),
        (8, {"mem_fraction_static": "0.5", **SPECULATION}),
        (12, {"mem_fraction_static": "0.92", **SPECULATION}),
        (14, {"mem_fraction_static": "0.98", "mamba_radix_cache_strategy": "extra_buffer", **SPECULATION}),
    ],
)
def test_the_finding_of_a_row_of_the_tour_is_what_the_plan_tells(home: Path, row: int, changes: dict[str, str]) -> None:
    told = re.search(rf"(?m)^ ?{row} {{2,3}}.*plan: ([a-z-]+)$", page("rounds-in-practice").text)
    assert told is not None
    flags = {"mamba_ssm_dtype": "bfloat16", "mamba_full_memory_ratio": "0.5", "kv_cache_dtype": "fp8_e4m3", **changes}
    words = [word for name, value in flags.items() for word in ("--set", f"{name}={value}")]
    result = CliRunner().invoke(
        main, ["plan", "qwen3.8-27b-r01", "--free-before", "46.83", "--free-after", "13.76", *words, "--json"]
    )
    assert told[1] in {finding["id"] for finding in json.loads(result.stdout)["findings"]}
