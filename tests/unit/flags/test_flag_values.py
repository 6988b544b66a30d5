"""Values of flags: what is taken, and what is said when it is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.flags import FlagInfo, FlagValueError, catalogue, check_value, lookup, parse_value
from tuner.flags.values import is_json


def info(name: str) -> FlagInfo:
    found = lookup(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("mem_fraction_static", "0.9", 0.9),
        ("mem_fraction_static", "1", 1.0),
        ("max_running_requests", "3", 3),
        ("chunked_prefill_size", "-1", -1),
        ("context_length", "100k", 100_000),
        ("context_length", "25.6k", 25_600),
        ("context_length", "256Ki", 262_144),
        ("enable_metrics", "true", True),
        ("enable_metrics", "off", False),
        ("kv_cache_dtype", "fp8_e4m3", "fp8_e4m3"),
        ("cuda_graph_bs_decode", "1 2 4", [1, 2, 4]),
        ("cuda_graph_bs_decode", "1,2,4", [1, 2, 4]),
        ("cuda_graph_bs_decode", "[1, 2]", [1, 2]),
        ("default_chat_template_kwargs", '{"enable_thinking": true}', {"enable_thinking": True}),
        ("sidecar_args", '["--a", 1]', ["--a", 1]),
        ("log_requests_level", "2", 2),
        ("served_model_name", "模型", "模型"),
    ],
)
def test_a_text_becomes_the_value_it_means(name: str, text: str, value: Any) -> None:
    assert parse_value(info(name), text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("0.5", 0.5), ("true", True), ("abc", "abc"), ("1e999", "1e999")]
)
def test_a_flag_that_is_not_known_takes_the_plainest_reading(text: str, value: Any) -> None:
    assert parse_value(None, text) == value


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mem_fraction_static", "abc", 'mem_fraction_static cannot be "abc"; it takes a number above 0 and up to 1.'),
        ("mem_fraction_static", 1.7, "mem_fraction_static cannot be 1.7; it takes a number above 0 and up to 1."),
        ("mem_fraction_static", -0.1, "mem_fraction_static cannot be -0.1; it takes a number above 0 and up to 1."),
        ("mem_fraction_static", True, "mem_fraction_static cannot be true; it takes a number above 0 and up to 1."),
        ("port", 70000, "port cannot be 70000; it takes a whole number of at least 1 and up to 65535."),
        ("max_running_requests", 2.5, "max_running_requests cannot be 2.5; it takes a whole number of at least 1."),
        ("enable_metrics", "yes", 'enable_metrics cannot be "yes"; it takes true or false.'),
        ("cuda_graph_bs_decode", [], "cuda_graph_bs_decode cannot be an empty list; it takes at least one value."),
        ("sidecar_args", {"a": 1}, "sidecar_args cannot be a table; it takes an array."),
        ("default_chat_template_kwargs", "{", 'default_chat_template_kwargs cannot be "{"; it takes valid JSON.'),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(name: str, value: Any, said: str) -> None:
    with pytest.raises(FlagValueError) as refused:
        check_value(info(name), value)
    assert str(refused.value) == said


def test_a_wrong_choice_is_told_the_right_ones() -> None:
    with pytest.raises(FlagValueError, match="it takes one of auto, no_buffer, extra_buffer, extra_buffer_lazy"):
        check_value(info("mamba_radix_cache_strategy"), "extra-buffer")
    assert check_value(info("schedule_policy"), "hrrn", any_choice=True) == "hrrn"


def test_a_refused_secret_is_not_shown() -> None:
    with pytest.raises(FlagValueError) as refused:
        check_value(info("api_key"), 12345)
    assert "12345" not in str(refused.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.sampled_from(list(catalogue().values())), ANYTHING)
def test_any_value_is_taken_or_refused_in_one_line(flag: FlagInfo, value: Any) -> None:
    try:
        taken = check_value(flag, value)
    except FlagValueError as refused:
        assert str(refused).startswith(flag.name) and "\n" not in str(refused)
    else:
        assert is_json(taken)
        assert check_value(flag, taken) == taken


@settings(max_examples=300)
@given(st.sampled_from([None, *catalogue().values()]), st.text(max_size=30) | st.from_regex(r"-?[0-9]{1,40}[kMG.]?"))
def test_any_text_is_read_or_refused_in_one_line(flag: FlagInfo | None, text: str) -> None:
    try:
        value = parse_value(flag, text)
    except FlagValueError as refused:
        assert flag is not None and "\n" not in str(refused)
    else:
        assert flag is None or check_value(flag, value) == value
