"""Finding rounds again: words, states, flags, tags, marks, the last good one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_history import draft, finished

from tuner.rounds import schema
from tuner.rounds.history import History, HistoryError
from tuner.rounds.model import RoundState
from tuner.rounds.search import Search, condition, read_line


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """r1 verified, r2 refused, r3 verified and simulated, r4 starting."""
    with History(tmp_path / "history.sqlite") as kept:
        kept.save(finished(kept.open_round(draft("erster Versuch"))))
        refused = msgspec.structs.replace(
            kept.open_round(draft("100% 显存不够", mem_fraction_static=0.5, enable_metrics=True)),
            state=RoundState.REFUSED,
            reason="Not enough memory.",
        )
        kept.save(refused)
        kept.save(finished(kept.open_round(draft(simulated=True, cuda_graph_bs_decode=[1, 2]))))
        kept.open_round(draft(kv_cache_dtype="fp8_e4m3"))
        yield kept


def found(history: History, simulated: bool | None = None, **search: object) -> list[int]:
    wanted = Search(**search)  # type: ignore[arg-type]
    numbers = [line.number for line in history.summaries(search=wanted, simulated=simulated)]
    assert numbers == [r.number for r in history.list(search=wanted, simulated=simulated)]
    assert len(numbers) == history.count(search=wanted, simulated=simulated)
    return numbers


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (("versuch",), [1]),
        (("显存",), [2]),
        (("memory", "100%"), [2]),
        (("fp8_e4m3",), [4]),
        (("r3",), [3]),
        (("%",), [2]),
        (("hybrid-27b",), [4, 3, 2, 1]),
        (("nothing like it",), []),
        (("refused",), [2]),
    ],
)
def test_words_are_looked_for_in_all_that_was_written(
    history: History, words: tuple[str, ...], numbers: list[int]
) -> None:
    assert found(history, words=words) == numbers


def test_rounds_are_filtered_by_state_flag_and_kind(history: History) -> None:
    assert found(history, states=(RoundState.VERIFIED,)) == [3, 1]
    assert found(history, states=(RoundState.VERIFIED,), simulated=False) == [1]
    assert found(history, flags=(("mem_fraction_static", 0.5),)) == [2]
    assert found(history, flags=(("enable_metrics", True),)) == [2]
    assert found(history, flags=(("cuda_graph_bs_decode", [1, 2]),)) == [3]
    assert found(history, flags=(("kv_cache_dtype", None),)) == [3, 2, 1]
    assert found(history, with_flags=("kv_cache_dtype",)) == [4]
    with pytest.raises(HistoryError, match="is no name of a flag"):
        found(history, with_flags=('x"',))


def test_tags_are_put_on_found_counted_and_taken_away(history: History) -> None:
    assert history.set_tags(1, ["winner", "#长输入", "winner"]) == ("winner", "长输入")
    history.set_tags(3, ["winner"])
    assert history.get(1).tags == ("winner", "长输入") and history.summaries(limit=1)[0].tags == ()
    assert found(history, tags=("winner",)) == [3, 1]
    assert found(history, tags=("winner", "长输入")) == [1]
    assert found(history, tags=("win",)) == []
    assert history.tags() == {"winner": 2, "长输入": 1}
    assert history.set_tags(1, remove=["winner", "absent"]) == ("长输入",)
    assert history.save(finished(history.get(1))).tags == ("长输入",)
    for bad in ("two words", "", "a,b", "x" * 41):
        with pytest.raises(HistoryError, match="one word of up to 40 letters"):
            history.set_tags(1, [bad])


def test_the_last_good_round_is_the_kept_one_else_the_newest_verified(history: History) -> None:
    def good(simulated: bool | None = None) -> int | None:
        round_ = history.last_good(simulated)
        return round_.number if round_ else None

    assert good() == 3 and good(simulated=False) == 1
    history.set_verdict(3, "reject")
    assert good() == 1
    history.set_verdict(1, "reject")
    assert good() is None
    history.set_verdict(2, "keep")
    assert good() == 2
    assert found(history, verdict="reject") == [3, 1]


def test_a_history_of_the_first_version_gets_tags_and_leaves_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.sqlite"
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        schema.prepare(path)
    old = sqlite3.connect(path)
    with History(tmp_path / "other.sqlite") as other:
        other.save(finished(other.open_round(draft("kept"))))
    old.execute("ATTACH ? AS other", (str(tmp_path / "other.sqlite"),))
    columns = ", ".join(row[1] for row in old.execute("PRAGMA main.table_info(rounds)"))
    old.execute(f"INSERT INTO main.rounds ({columns}) SELECT {columns} FROM other.rounds")
    old.commit()
    old.close()
    with History(path) as history:
        assert history.get(1).note == "kept" and history.get(1).tags == ()
        assert history.set_tags(1, ["new"]) == ("new",)
    backup = sqlite3.connect(tmp_path / "history.sqlite.version-1")
    assert backup.execute("PRAGMA user_version").fetchone() == (1,)
    assert backup.execute("SELECT note FROM rounds").fetchall() == [("kept",)]
    backup.close()


@settings(max_examples=60, deadline=None)
@given(word=st.text(max_size=12), tag=st.text(max_size=12), value=st.text(max_size=8) | st.floats(allow_nan=False))
def test_any_words_find_rounds_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, word: str, tag: str, value: object
) -> None:
    with History(tmp_path_factory.mktemp("any") / "history.sqlite") as history:
        opened = history.open_round(draft(f"x{word}y"))
        search = Search(words=(word,), flags=(("revision", value),))
        try:
            assert history.summaries(search=search) == []
            if word.encode("utf-8", "replace").decode() == word and "\0" not in word and "*" not in history.get(1).note:
                assert [r.number for r in history.list(search=Search(words=(word,)))] == [opened.number]
            history.set_tags(1, [tag])
        except (HistoryError, UnicodeEncodeError) as error:
            assert isinstance(error, HistoryError), error


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("", [4, 3, 2, 1]),
        ("verified", [3, 1]),
        ("verified refused", [3, 2, 1]),
        ("real verified", [1]),
        ("SIM", [3]),
        ("kept", [1]),
        ("#winner", [1]),
        ("mem_fraction_static=0.5", [2]),
        ("--kv-cache-dtype=fp8_e4m3", [4]),
        ("kv_cache_dtype= real", [2, 1]),
        ("'100% 显存'", [2]),
        ("'100% 显", [2]),
        ("x=y", []),
        ("front", [3, 1]),
        ("front real", [1]),
    ],
)
def test_rounds_are_found_by_what_an_operator_types(history: History, line: str, numbers: list[int]) -> None:
    for number in (1, 3):
        boot = msgspec.structs.replace(history.get(number).boot, max_running_requests=3)
        history.save(msgspec.structs.replace(history.get(number), boot=boot, effective={"max_req_input_len": 1000}))
    history.set_verdict(1, "keep")
    history.set_tags(1, ["winner"])
    search = read_line(line)
    assert [found.number for found in history.summaries(search=search)] == numbers
    assert history.count(search=search) == len(numbers)


def test_a_value_that_a_flag_cannot_take_is_told_while_it_is_typed() -> None:
    with pytest.raises(HistoryError, match="it takes a number above 0"):
        read_line("mem_fraction_static=much")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_anything_may_be_typed_to_find_rounds(line: str) -> None:
    try:
        search = read_line(line)
    except HistoryError as error:
        assert str(error).endswith((".", "?"))
        return
    condition(search)
