"""The catalogue against what ``--help`` of SGLang 0.5.17 prints."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tuner import flags
from tuner.flags import FlagInfo, catalogue, is_in, lookup, suggest

HELP = Path(__file__).parents[2] / "data" / "help-0.5.17.txt"


def options() -> dict[str, str]:
    """Every flag of the help text with what follows it: "" for a switch, else its value's form."""
    found: dict[str, str] = {}
    body = HELP.read_text(encoding="utf-8").split("\noptions:\n", 1)[1]
    for line in body.splitlines():
        if not line.startswith("  -"):
            continue
        declaration = re.split(r"\s{2,}", line.strip())[0]
        for spelling in re.findall(r"(--[a-z0-9-]+)((?: \[?\{[^}]*\}[^,]*| (?!--)[^,{]+)?)", declaration):
            found[spelling[0]] = spelling[1].strip()
    found.pop("--help")
    return found


def test_every_flag_of_the_help_text_is_known() -> None:
    assert len(options()) > 460
    unknown = [flag for flag in options() if lookup(flag) is None and not flag.startswith("--no-")]
    assert unknown == []


def test_every_negation_of_the_help_text_is_known() -> None:
    negations = {flag for flag in options() if flag.startswith("--no-")}
    assert negations == {info.negation for info in catalogue().values() if info.negation}


def test_switches_lists_and_choices_are_those_of_the_help_text() -> None:
    for flag, form in options().items():
        info = lookup(flag)
        if info is None:
            continue
        assert (info.kind == "bool") == (form == ""), flag
        assert (info.kind == "list") == (" ..." in form), flag
        choices = re.match(r"\[?\{([^}]*)\}", form)
        if choices and not info.replaced_by:
            assert [str(choice) for choice in info.choices] == choices[1].split(","), flag


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("--mem-fraction-static", "mem_fraction_static"),
        ("mem-fraction-static", "mem_fraction_static"),
        ("model", "model_path"),
        ("tensor_parallel_size", "tp_size"),
        ("--mamba-scheduler-strategy", "mamba_radix_cache_strategy"),
        ("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
        ("speculative_draft_model", "speculative_draft_model_path"),
        ("stream_output", "incremental_streaming_output"),
    ],
)
def test_a_flag_is_found_by_any_of_its_spellings(spelling: str, name: str) -> None:
    info = lookup(spelling)
    assert info is not None and info.name == name


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("mem_fraction", "mem_fraction_static"),
        ("mem_frac", "mem_fraction_static"),
        ("max_runing_requests", "max_running_requests"),
        ("kv_cache_type", "kv_cache_dtype"),
        ("mamba_ratio", "mamba_full_memory_ratio"),
        ("chunk_prefill_size", "chunked_prefill_size"),
    ],
)
def test_a_misspelt_flag_suggests_the_one_meant(wrong: str, meant: str) -> None:
    assert lookup(wrong) is None
    assert suggest(wrong) == meant


@pytest.mark.parametrize("nonsense", ["", "   ", "xyzzy", "日本語", "--"])
def test_nonsense_suggests_nothing(nonsense: str) -> None:
    assert suggest(nonsense) is None


def test_a_version_without_a_flag_is_told_from_one_with_it() -> None:
    strategy = lookup("mamba_radix_cache_strategy")
    compiler = lookup("cuda_graph_tc_compiler")
    assert strategy is not None and compiler is not None
    assert is_in(strategy, "0.5.17") and not is_in(strategy, "0.5.12")
    assert is_in(compiler, "0.5.17") and not is_in(compiler, "0.5.23")
    assert is_in(strategy, "0.5.17.post1") and not is_in(strategy, "0.5.9.post3")


def described() -> list[FlagInfo]:
    return [info for info in catalogue().values() if info.tuning]


def test_what_the_tuner_says_of_a_flag_is_whole() -> None:
    assert len(described()) >= 70
    for info in described():
        assert info.help.endswith(".") and info.help.count(". ") == 0, info.name
        assert info.section in ("server", "memory", "scheduling", "speculative", "parsers", "observability"), info.name
        if info.low is not None:
            assert info.high is not None and info.step is not None and info.low < info.high, info.name
            assert info.unit, info.name
            for bound in (info.low, info.high):
                assert info.above is None or bound > info.above, info.name
                assert info.least is None or bound >= info.least, info.name
                assert info.most is None or bound <= info.most, info.name


def test_the_pools_that_flags_move_are_as_measured() -> None:
    moves = {info.name: info.moves for info in described()}
    assert moves["mamba_ssm_dtype"] == "mamba"
    assert moves["kv_cache_dtype"] == "kv"
    assert moves["mamba_full_memory_ratio"] == "both"
    assert moves["mamba_radix_cache_strategy"] == "requests"


def test_no_description_is_for_a_flag_that_does_not_exist() -> None:
    text = (Path(flags.__file__).parent / "flags.toml").read_text(encoding="utf-8")
    names = list(tomllib.loads(text))
    assert list(catalogue())[: len(names)] == names
