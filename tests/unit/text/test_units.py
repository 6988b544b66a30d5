import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.units import format_bytes, format_gib, format_seconds, format_tokens, parse_gib, parse_tokens


def test_sizes_are_written_as_operators_read_them():
    assert format_gib(12.2449) == "12.24 GiB"
    assert format_gib(3, 0) == "3 GiB"
    assert format_bytes(78446592) == "74.8 MiB"
    assert format_bytes(1288490189) == "1.2 GiB"
    assert format_bytes(32768) == "32.0 KiB"
    assert format_bytes(512) == "512 B"
    assert format_bytes(-2048) == "-2.0 KiB"
    assert format_tokens(262294) == "262,294"


def test_a_size_just_below_a_unit_moves_up_instead_of_showing_1024():
    assert format_bytes((1 << 20) - 1) == "1.0 MiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0024, "2.4 ms"),
        (0.06, "60 ms"),
        (0.0999, "0.10 s"),
        (0.83, "0.83 s"),
        (4.5, "4.5 s"),
        (9.96, "10 s"),
        (41, "41 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3720, "1 h 02 min"),
        (-41, "-41 s"),
    ],
)
def test_durations_show_what_matters_at_their_size(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("48", 48),
        ("48 GiB", 48),
        ("48GB", 48),
        ("48g", 48),
        ("46.83", 46.83),
        (".5", 0.5),
        ("512 MiB", 0.5),
        ("1,024 MiB", 1),
        ("1 TiB", 1024),
    ],
)
def test_memory_is_read_as_typed(text, gib):
    assert parse_gib(text) == pytest.approx(gib)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("100K", 100_000),
        ("90,000", 90_000),
        ("262144", 262_144),
        ("256Ki", 262_144),
        ("1.5M", 1_500_000),
        ("90_000", 90_000),
        (" 64k ", 64_000),
        ("100 tokens", 100),
    ],
)
def test_tokens_are_read_as_typed(text, tokens):
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "x", "-1", "48 apples", "nan", "inf", "1e3", "4 8"])
def test_a_wrong_size_says_what_to_write(text):
    with pytest.raises(ValueError, match="write for example"):
        parse_gib(text)


@pytest.mark.parametrize("text", ["", "lots", "-5", "12,34", "1.5"])
def test_a_wrong_token_count_is_refused_with_a_sentence(text):
    with pytest.raises(ValueError, match=r"is not a (whole )?number of tokens"):
        parse_tokens(text)


@given(st.text(max_size=400))
def test_no_text_makes_the_readers_fail_in_any_other_way(text):
    for read in (parse_gib, parse_tokens):
        try:
            assert read(text) >= 0
        except ValueError as error:
            assert str(error).endswith(".")


@given(st.integers(0, 10**15))
def test_a_formatted_token_count_reads_back(n):
    assert parse_tokens(format_tokens(n)) == n
