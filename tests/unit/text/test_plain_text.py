import subprocess
import sys
import unicodedata

import pytest
import wcwidth
from hypothesis import example, given
from hypothesis import strategies as st

from tuner.text import ONE_CELL_EACH, clip, fitted, plain, width, wrapped


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;ZXZpbA==\x07paste", "paste"),
        ("\x1bP1$r0m\x1b\\after", "after"),
        ("\x9b2Jgone", "gone"),
        ("\x9d0;title\x9crest", "rest"),
        ("a\x00b\x07c\x7fd\x85e", "abcde"),
        ("line\r\nnext\tcell", "line\nnext\tcell"),
        ("admin\u202etxt.exe", "admintxt.exe"),
        ("你好，世界 🎉", "你好，世界 🎉"),
        ("\ud800x", "\ufffdx"),
        ("[/foo] [rank0]: error", "[/foo] [rank0]: error"),
        ("cut \x1b]0;title never ends", "cut 0;title never ends"),
    ],
)
def test_nothing_that_moves_a_terminal_comes_through(dirty, clean):
    assert plain(dirty) == clean


@given(st.text(alphabet=st.characters(), max_size=200))
def test_whatever_comes_out_is_safe_and_stays_so(text):
    out = plain(text)
    assert plain(out) == out
    assert not any(ord(c) < 32 and c not in "\n\t" for c in out)
    assert not any(0x7F <= ord(c) <= 0x9F for c in out)
    out.encode()


#: A mark that takes a cell of its own only behind a letter has no width by itself.
without_lone_marks = st.text(max_size=30).filter(lambda text: unicodedata.category((plain(text) or "x")[0]) != "Mc")


@example(text="\u200d", cells=1, right=False)
@given(without_lone_marks, st.integers(0, 20), st.booleans())
def test_a_column_is_filled_exactly_whatever_is_in_it(text, cells, right):
    assert width(fitted(plain(text).replace("\n", " ").replace("\t", " "), cells, right=right)) == cells


def test_a_column_is_filled_at_the_end_that_is_asked():
    assert fitted("状态", 6) == "状态  " and fitted("状态", 6, right=True) == "  状态"
    assert fitted("状态池", 4, right=True) == " 状…"


def test_wide_characters_take_two_cells():
    assert width("abc") == 3
    assert width("你好") == 4
    assert width("a\x07b") == 2


@pytest.mark.parametrize(
    ("text", "cells", "shown"),
    [
        ("hello", 5, "hello"),
        ("hello", 4, "hel…"),
        ("你好世界", 8, "你好世界"),
        ("你好世界", 7, "你好世…"),
        ("你好世界", 6, "你好…"),
        ("hello", 1, "…"),
        ("hello", 0, ""),
        ("", 5, ""),
    ],
)
def test_a_clipped_text_ends_in_an_ellipsis_and_fits(text, cells, shown):
    assert clip(text, cells) == shown


@given(st.text(alphabet=st.sampled_from("ab你🎉é\u0301\u200d\ufe0f♥👩🔬 "), max_size=60), st.integers(0, 40))
def test_a_clipped_text_never_needs_more_cells_than_given(text, cells):
    shown = clip(text, cells)
    assert width(shown) <= cells
    assert shown == text or cells == 0 or shown.endswith("…")


@given(text=st.text(alphabet="ab 模型é\u0301", max_size=60), cells=st.integers(1, 20))
def test_wrapped_lines_lose_nothing_and_keep_to_their_width(text: str, cells: int) -> None:
    lines = wrapped(text, cells)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(width(line) <= max(cells, 2) for line in lines)


def test_what_is_counted_as_one_cell_each_takes_one_cell_by_the_tables_too() -> None:
    single = [chr(point) for point in range(0x3000) if ONE_CELL_EACH.fullmatch(chr(point))]
    assert len(single) > 1500
    assert [f"U+{ord(char):04X}" for char in single if wcwidth.wcwidth(char) != 1] == []
    text = "".join(single)
    assert width(text) == wcwidth.wcswidth(text) == len(text)


def test_the_width_tables_are_loaded_for_wide_text_alone() -> None:
    words = "import sys; from tuner.text import clip, width; clip('KV pool → 42 % ▉', 9); "
    words += "print('wcwidth' in sys.modules); width('显存'); print('wcwidth' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "True"]
