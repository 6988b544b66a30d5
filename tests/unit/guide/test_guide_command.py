"""``tuner guide``: list, read, search."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from guide_words import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.cli import main
from tuner.guide import NAMES, GuideError, page, search, section
from tuner.guide.lines import paragraphs, printed, shown_row, shown_rows
from tuner.text import width


def guide(*words: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, ["guide", *words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_the_list_has_every_page_on_a_line_of_80_columns() -> None:
    lines = guide().stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(NAMES)]] == list(NAMES)
    assert all(width(line) <= 80 for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_printed_as_plain_text(name: str) -> None:
    text = guide(name).stdout
    assert "```" not in text and "\n#" not in text
    assert text.startswith(f"{page(name).title}\n===")
    assert all(width(line) <= 80 for line in text.splitlines())


def test_the_id_of_a_finding_prints_what_it_means() -> None:
    assert guide("oom-in-capture").stdout.startswith("oom-in-capture\n---")
    assert "LOWER the fraction" in guide("OOM-in-capture").stdout


def test_a_page_that_there_is_not_names_the_nearest() -> None:
    result = guide("two-pool", status=2)
    assert result.stderr == "tuner: The guide has no page 'two-pool': perhaps two-pools is meant.\n"
    assert json.loads(guide("qqq", "--json", status=2).stdout)["error"].startswith("The guide has no page 'qqq'")
    assert "faq" in guide("qqq", status=2).stderr


def test_search_finds_what_stands_across_the_end_of_a_line() -> None:
    text = page("two-pools").text
    broken = next(b for _, b in paragraphs(text) if len(b) > 1)
    words = f"{broken[0].split()[-1]} {broken[1].split()[0]}"
    assert words not in text
    assert [hit.text for hit in search(words) if hit.page == "two-pools"] == [broken[0]]


def test_search_says_where_and_in_which_section() -> None:
    result = guide("--search", "Ping  Pong")
    assert "findings: slot-assert\n" in result.stdout
    assert "faq" not in guide("--search", "ping pong", "findings").stdout
    hits = json.loads(guide("--search", "ping pong", "--json").stdout)
    for hit in hits:
        row = page(hit["page"]).text.splitlines()[hit["line"]]
        assert hit["text"] in row
    assert all(section(hit["section"]) is not None for hit in hits)


def test_search_for_what_is_nowhere_fails_in_a_sentence() -> None:
    assert "No page has 'xyzzy'" in guide("--search", "xyzzy", status=1).stderr
    assert json.loads(guide("--search", "xyzzy", "--json", status=1).stdout) == []
    assert guide("--search", " ", status=1).stdout == ""
    assert "no page 'qqq'" in guide("--search", "x", "qqq", status=2).stderr


def test_json_carries_the_page_whole() -> None:
    told = json.loads(guide("faq", "--json").stdout)
    assert told["text"] == (ROOT / "tuner/guide/pages/faq.md").read_text(encoding="utf-8")
    assert [entry["name"] for entry in json.loads(guide("--json").stdout)] == list(NAMES)


def test_a_line_of_the_text_is_found_on_the_screen() -> None:
    text = "# T\n\nsum\n\n```\ncode\n```\n\n## H\n"
    rows = shown_rows(text)
    assert [row.text for row in rows] == ["T", "", "sum", "", "code", "", "H"]
    assert rows[shown_row(text, 5)].text == "code"
    assert rows[shown_row(text, 8)].text == "H"
    assert printed(text) == "T\n=\n\nsum\n\n    code\n\nH\n-"


def test_a_page_is_asked_for_by_its_name_alone() -> None:
    for name in ("../two-pools", "", "two-pools.md"):
        with pytest.raises(GuideError):
            page(name)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_words_in_a_row_are_found_where_they_stand(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    first, block = data.draw(st.sampled_from(list(paragraphs(page(name).text))))
    words = " ".join(block).split()
    start = data.draw(st.integers(0, len(words) - 1))
    wanted = " ".join(words[start : start + data.draw(st.integers(1, 4))])
    hits = search(wanted.swapcase(), name)
    assert any(first <= hit.line < first + len(block) for hit in hits)
