from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.checks.model import CheckResult, Verdict
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import Reach, Readings, Spread
from tuner.recipe.model import ApiSettings, Recipe
from tuner.rounds import schema
from tuner.rounds.history import History, HistoryError, UnknownRound
from tuner.rounds.model import Round, RoundState
from tuner.rounds.pareto import point_of
from tuner.rounds.summary import summarise
from tuner.serverlog.model import BootFacts, Phase

WRITER = Path(__file__).with_name("history_writer.py")
STARTED = 1_796_000_000.0


def draft(note: str = "", simulated: bool = False, **flags: object) -> Round:
    asked = {"model_path": "/models/hybrid-27b-fp8", "mem_fraction_static": 0.86, **flags}
    return Round(
        number=0,
        started_at=STARTED,
        state=RoundState.STARTING,
        recipe=Recipe(name="r15", flags=asked, environment={"CUDA_VISIBLE_DEVICES": "3"}),
        note=note,
        simulated=simulated,
    )


def finished(round_: Round) -> Round:
    return msgspec.structs.replace(
        round_,
        state=RoundState.VERIFIED,
        boot=BootFacts(phase=Phase.READY, ready=True, kv_tokens=262_294, mamba_slots=57, max_running_requests=3),
        ready_seconds=72.01,
        checks=(
            CheckResult(name="thinking", verdict=Verdict.PASS, reason="answered"),
            CheckResult(name="tool call", verdict=Verdict.FAIL, reason="no call came"),
        ),
        readings=Readings(at=STARTED, metrics=Reach.OK, ttft_s=Spread(p50=0.8, p95=1.2, count=20)),
        findings=(Finding(id=FindingId.LOW_HEADROOM, severity=Severity.WARNING, title="Little is left."),),
    )


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.sqlite") as kept:
        yield kept


def test_a_round_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history:
        kept = history.save(finished(history.open_round(draft("first try"))))
    with History(tmp_path / "history.sqlite") as history:
        assert history.get(kept.number) == kept
        assert kept.name == "r1"
        assert kept.boot is not None
        assert kept.boot.kv_tokens == 262_294


def test_rounds_are_numbered_in_the_order_they_are_opened(history: History) -> None:
    assert [history.open_round(draft()).number for _ in range(3)] == [1, 2, 3]


def test_two_tuners_never_get_the_same_number(tmp_path: Path) -> None:
    numbers: list[int] = []

    def tuner() -> None:
        with History(tmp_path / "history.sqlite") as mine:
            numbers.extend(mine.open_round(draft()).number for _ in range(10))

    threads = [threading.Thread(target=tuner) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 41))


def test_several_threads_share_one_history(history: History) -> None:
    def work() -> None:
        for _ in range(10):
            opened = history.open_round(draft())
            history.set_note(opened.number, f"note of {opened.name}")
            assert history.get(opened.number).note == f"note of {opened.name}"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.count() == 40
    assert all(r.note == f"note of {r.name}" for r in history.list(limit=40))


def test_a_note_written_while_the_round_runs_survives_its_end(history: History) -> None:
    running = history.open_round(draft("asked for long inputs"))
    history.set_note(running.number, "显存还剩 4.5 GiB，保留")
    history.set_verdict(running.number, "keep")
    kept = history.save(finished(running))
    assert (kept.note, kept.verdict) == ("显存还剩 4.5 GiB，保留", "keep")
    assert history.get(kept.number) == kept


def test_a_verdict_is_one_of_three_words(history: History) -> None:
    opened = history.open_round(draft())
    with pytest.raises(HistoryError, match=r'"keep", "reject" or nothing, not with "good"'):
        history.set_verdict(opened.number, "good")


@pytest.mark.parametrize("what", ["get", "note", "save", "samples"])
def test_a_round_that_is_not_there_is_named_with_the_newest_one(history: History, what: str) -> None:
    opened = history.open_round(draft())
    calls = {
        "get": lambda: history.get(7),
        "note": lambda: history.set_note(7, "x"),
        "save": lambda: history.save(msgspec.structs.replace(opened, number=7)),
        "samples": lambda: history.add_samples(7, [Readings(at=1.0)]),
    }
    with pytest.raises(UnknownRound) as caught:
        calls[what]()
    assert str(caught.value) == "There is no round r7: the newest is r1."
    assert isinstance(caught.value, KeyError)


def test_a_round_can_be_looked_for_without_an_error(history: History) -> None:
    opened = history.open_round(draft())
    assert history.find(opened.number) == opened
    assert history.find(2) is None


def test_an_empty_history_says_so(history: History) -> None:
    with pytest.raises(UnknownRound, match="still empty"):
        history.get(1)
    assert history.list() == []
    assert history.last() is None


def test_the_last_round_can_be_asked_for_by_state_and_kind(history: History) -> None:
    good = history.save(finished(history.open_round(draft())))
    history.save(finished(history.open_round(draft(simulated=True))))
    history.open_round(draft())
    assert history.last((RoundState.VERIFIED, RoundState.UNVERIFIED), simulated=False) == good
    newest = history.last()
    assert newest is not None
    assert newest.number == 3
    assert history.last([RoundState.REFUSED]) is None


def test_readings_of_a_round_come_back_in_the_order_of_time(history: History) -> None:
    opened = history.open_round(draft())
    later, sooner = Readings(at=2.0, kv_used_tokens=9), Readings(at=1.0, ttft_s=Spread(p50=0.1, p95=0.2, count=3))
    history.add_samples(opened.number, [later, sooner])
    assert history.samples(opened.number) == [sooner, later]


def test_secrets_are_not_kept_and_variables_are_not_resolved(tmp_path: Path) -> None:
    recipe = Recipe(
        flags={"model_path": "/m", "api_key": "sk-live-1234567890", "hf_revision": "main"},
        environment={"HF_TOKEN": "hf_abcdefghijklmnop0123", "OTHER_TOKEN": "${OTHER_TOKEN}"},
        api=ApiSettings(api_key_env="TAOTOKEN_API_KEY"),
        source_text='api_key = "sk-live-1234567890"\n',
    )
    with History(tmp_path / "history.sqlite") as history:
        opened = history.open_round(msgspec.structs.replace(draft(), recipe=recipe))
        history.set_note(opened.number, "started with --api-key sk-live-1234567890")
        kept = history.get(opened.number)
    on_disk = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"1234567890" not in on_disk
    assert b"abcdefghijklmnop0123" not in on_disk
    assert kept.recipe.environment["OTHER_TOKEN"] == "${OTHER_TOKEN}"
    assert kept.recipe.api.api_key_env == "TAOTOKEN_API_KEY"
    assert kept.recipe.flags["hf_revision"] == "main"


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history:
        history.open_round(draft())
        files = [f for f in tmp_path.iterdir() if not f.name.endswith(".lock")]
        assert files
        assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in files)


def test_the_rounds_list_shows_what_each_round_changed(history: History) -> None:
    history.open_round(draft())
    history.open_round(draft(simulated=True, mem_fraction_static=0.5))
    history.save(finished(history.open_round(draft(mem_fraction_static=0.98, kv_cache_dtype="fp8_e4m3"))))
    third, _, first = history.summaries()
    assert third.changed == {"mem_fraction_static": (0.86, 0.98), "kv_cache_dtype": (None, "fp8_e4m3")}
    assert first.changed == {}
    assert (third.checks_passed, third.checks_total) == (1, 2)
    assert (third.kv_tokens, third.mamba_slots, third.ttft_p50_s) == (262_294, 57, 0.8)
    assert third == summarise(history.get(3), before=history.get(1))


def test_a_long_history_is_read_page_by_page(history: History) -> None:
    for _ in range(7):
        history.open_round(draft())
    history.open_round(draft(simulated=True))
    assert [r.number for r in history.list(limit=3)] == [8, 7, 6]
    assert [r.number for r in history.list(limit=3, offset=6)] == [2, 1]
    assert [r.number for r in history.list(limit=2, newest_first=False)] == [1, 2]
    assert [r.number for r in history.summaries(limit=2, offset=1, simulated=False)] == [6, 5]
    assert (history.count(), history.count(simulated=True)) == (8, 1)


def test_a_page_of_ten_thousand_rounds_reads_only_its_own_rows(history: History) -> None:
    """Counted in steps of SQLite's machine, which, unlike time, are the same on every computer."""
    opened = finished(history.open_round(draft()))
    connection = sqlite3.connect(history.path)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(rounds)") if row[1] != "number"]
    names = ", ".join(columns)
    history.save(opened)

    def steps(offset: int = 0) -> int:
        count = [0]

        def tick() -> int:
            count[0] += 1
            return 0

        history._connection.set_progress_handler(tick, 100)
        assert history.summaries(limit=50, offset=offset)
        history._connection.set_progress_handler(None, 100)
        return count[0]

    connection.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)"
        f" INSERT INTO rounds ({names}) SELECT {names} FROM rounds, n WHERE number = 1"
    )
    connection.commit()
    few = steps()
    connection.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)"
        f" INSERT INTO rounds ({names}) SELECT {names} FROM rounds, n WHERE number = 1"
    )
    connection.commit()
    connection.close()
    assert history.count() == 10_061
    assert steps() <= few * 2
    assert history.summaries(limit=1)[0].number == 10_061


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"port = 30000\n", "This file is no history: move it away"),
        (b"SQLite format 3\x00" + b"\x00" * 84, "belongs to another program"),
    ],
)
def test_a_file_of_something_else_is_left_untouched(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(content)
    with pytest.raises(HistoryError, match=sentence) as caught:
        History(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE rounds (x)")
    foreign.commit()
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="belongs to another program"):
        History(path)
    assert path.read_bytes() == before


def test_a_folder_in_place_of_the_history_gives_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").mkdir()
    with pytest.raises(HistoryError, match=r"The history cannot be used at .*: Is a directory"):
        History(tmp_path / "history.sqlite")


def filled(path: Path, rounds: int = 30) -> bytes:
    with History(path) as history:
        for _ in range(rounds):
            history.save(finished(history.open_round(draft())))
    return path.read_bytes()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_history_cut_short_gives_a_sentence_and_is_left_untouched(tmp_path: Path, share: float) -> None:
    path = tmp_path / "history.sqlite"
    whole = filled(path)
    cut = whole[: int(len(whole) * share)]
    path.write_bytes(cut)
    with pytest.raises(HistoryError, match="The history is damaged: move the file away"):
        History(path)
    assert path.read_bytes() == cut


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_damaged_history_gives_a_sentence_or_its_rounds(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path = tmp_path_factory.mktemp("damaged") / "history.sqlite"
    damaged = bytearray(filled(path, 6))
    chance = random.Random(seed)
    for _ in range(40):
        damaged[chance.randrange(100, len(damaged))] = chance.randrange(256)
    path.write_bytes(damaged)
    try:
        with History(path) as history:
            for round_ in history.list():
                history.get(round_.number)
            history.summaries()
    except HistoryError as error:
        assert str(error).endswith((".", ")"))
        assert "\n" not in str(error)


def test_a_history_of_a_newer_tuner_is_left_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    with monkeypatch.context() as newer:
        newer.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("ALTER TABLE rounds ADD COLUMN colour TEXT",)))
        before = filled(path)
    with pytest.raises(HistoryError, match=r"newer tuner \(its version 3, this one knows 2\): update the tuner"):
        History(path)
    assert path.read_bytes() == before


def test_an_older_history_is_migrated_after_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    filled(path, 3)
    steps = ("ALTER TABLE rounds ADD COLUMN colour TEXT NOT NULL DEFAULT ''",)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, steps))
    with History(path) as history:
        assert [r.number for r in history.list()] == [3, 2, 1]
        assert history.open_round(draft()).number == 4
    backup = sqlite3.connect(tmp_path / "history.sqlite.version-2")
    assert backup.execute("PRAGMA user_version").fetchone() == (2,)
    assert backup.execute("SELECT count(*) FROM rounds").fetchone() == (3,)
    backup.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    filled(path, 3)
    with monkeypatch.context() as newer:
        broken = ("ALTER TABLE rounds ADD COLUMN colour TEXT", "ALTER TABLE nowhere ADD COLUMN x TEXT")
        newer.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
        with pytest.raises(HistoryError, match=r"stays as it was: no such table: nowhere .*backup is history\.sqlite"):
            History(path)
    with History(path) as history:
        assert history.count() == 3


def test_a_full_disk_gives_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    filled(path, 3)
    with History(path) as history:
        pages = history._connection.execute("PRAGMA page_count").fetchone()[0]
        history._connection.execute(f"PRAGMA max_page_count = {pages}")
        long = msgspec.structs.replace(draft(), reason="no room " * 12_000)
        with pytest.raises(HistoryError, match="The disk that holds the history is full: free some space"):
            history.open_round(long)
        assert history.count() == 3
        history._connection.execute("PRAGMA max_page_count = 1000000")
        assert history.open_round(long).number == 4


def test_a_history_that_may_only_be_read_is_read_and_says_why_it_does_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.sqlite"
    filled(path, 2)
    connect = sqlite3.connect
    monkeypatch.setattr(
        schema.sqlite3, "connect", lambda path, **options: connect(f"file:{path}?mode=ro", uri=True, **options)
    )
    with History(path) as history:
        assert history.count() == 2
        with pytest.raises(HistoryError, match="may not be written: make the file and its folder writable"):
            history.set_note(1, "x")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
def test_a_place_that_cannot_be_written_gives_a_sentence() -> None:
    with pytest.raises(HistoryError, match=r"The history cannot be used at /proc/nowhere/history\.sqlite"):
        History("/proc/nowhere/history.sqlite")


def test_a_log_of_a_history_that_was_moved_away_is_not_played_into_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    kept = History(path)
    kept.open_round(draft())
    log = (tmp_path / "history.sqlite-wal").read_bytes()
    kept.close()
    path.unlink()
    (tmp_path / "history.sqlite-wal").write_bytes(log)
    with History(path) as history:
        assert history.count() == 0
        assert history.open_round(draft()).number == 1


def test_a_history_that_was_half_made_when_the_power_went_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite.new").write_bytes(b"SQLite format 3\x00 and no more")
    (tmp_path / "history.sqlite").touch()
    with History(tmp_path / "history.sqlite") as history:
        assert history.open_round(draft()).number == 1
    assert not (tmp_path / "history.sqlite.new").exists()


def test_a_name_that_is_no_utf8_does_not_lose_the_round(history: History) -> None:
    odd = os.fsdecode(b"/models/\xff-27b")
    opened = history.open_round(draft(model_path=odd, note="\udc80"))
    assert history.get(opened.number).recipe.model_path.endswith("-27b")
    history.set_note(opened.number, "half \udc80 a pair")
    assert history.get(opened.number).note.startswith("half ")
    assert history.summaries()[0].model.endswith("-27b")


def test_a_round_that_could_not_be_read_again_is_refused(history: History) -> None:
    opened = history.open_round(draft())
    torn = msgspec.structs.replace(opened, started_at=float("nan"))
    with pytest.raises(HistoryError, match="This round cannot be read from the history"):
        history.save(torn)
    assert history.get(opened.number) == opened


def test_after_the_end_the_history_gives_a_sentence(tmp_path: Path) -> None:
    history = History(tmp_path / "history.sqlite")
    history.close()
    history.close()
    with pytest.raises(HistoryError, match="The history cannot be used as it is"):
        history.count()


@pytest.mark.timeout(0)
def test_killing_the_tuner_while_it_writes_loses_no_committed_round(tmp_path: Path) -> None:
    """What the writer said to be kept is there, whole, after each kill at a random moment.

    A sample of twenty; ``TUNER_KILLS=1000 pytest -n 0 tests/unit/rounds/test_history.py -k killing`` kills a thousand.
    """
    path = tmp_path / "history.sqlite"
    chance = random.Random(20261129)
    with subprocess.Popen(
        [sys.executable, str(WRITER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as nursery:
        for kill in range(int(os.environ.get("TUNER_KILLS", "20"))):
            said = killed_writer(nursery, path, kill, chance)
            promised = [json.loads(line) for line in said]
            assert promised
            nothing_is_lost(path, kill, promised)
        assert nursery.stdin is not None
        nursery.stdin.close()


def killed_writer(nursery: subprocess.Popen[str], path: Path, kill: int, chance: random.Random) -> list[str]:
    """What a writer said before it was killed at a random moment."""
    assert nursery.stdin is not None and nursery.stdout is not None
    nursery.stdin.write(f"{path}\t{kill}\n")
    nursery.stdin.flush()
    pid = int(nursery.stdout.readline())
    said = [nursery.stdout.readline() for _ in range(chance.randrange(1, 12))]
    time.sleep(chance.random() * 0.004)  # to hit any point of the next write
    os.kill(pid, signal.SIGKILL)
    while (line := nursery.stdout.readline()) != "end\n":
        said.append(line)
    return said


def nothing_is_lost(path: Path, kill: int, promised: list[dict[str, Any]]) -> None:
    with History(path) as history:
        assert history._connection.execute("PRAGMA quick_check").fetchone()[0] == "ok"
        for promise in {p["number"]: p for p in promised}.values():
            kept = history.get(promise["number"])
            steps = [RoundState.STARTING, RoundState.CHECKING, RoundState.VERIFIED]
            assert steps.index(kept.state) >= steps.index(RoundState(promise["state"]))
            assert len(history.samples(kept.number)) in ({0, 25} if promise["samples"] == 0 else {25})
            if promise["note"]:
                assert kept.note == promise["note"] and kept.tags == (f"kill-{kill}",)
        numbers = [r.number for r in history.summaries(limit=1_000_000)]
        assert numbers == list(range(len(numbers), 0, -1))


def test_a_round_that_no_reader_can_take_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite3"
    with History(path) as history:
        history.open_round(draft())
        history.open_round(draft())
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE rounds SET body = ? WHERE number = 1", ("[" * 50_000 + "]" * 50_000,))
            body = connection.execute("SELECT body FROM rounds WHERE number = 2").fetchone()[0]
            late = msgspec.json.encode({**msgspec.json.decode(body), "started_at": 1e300}).decode()
            connection.execute("UPDATE rounds SET body = ?, started_at = 1e300 WHERE number = 2", (late,))
        with pytest.raises(HistoryError, match="r1 cannot be read from the history: "):
            history.get(1)
        with pytest.raises(HistoryError, match="r2 cannot be read from the history: it started at no time"):
            history.get(2)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("body", b'{"number": 2, "started_at": 17', "cut short or overwritten"),
        ("body", b'{"note": "\xff\xfe"', "cut short or overwritten"),
        ("state", b"exploded", "Invalid enum value 'exploded'"),
        ("started_at", b"yesterday", "Expected `float`"),
        ("flags", b"{", "truncated"),
        ("tags", b"nothing", "malformed"),
        ("reason", b"\xff\xfe \x80", "bytes that are no text"),
        ("kv_tokens", b"many", "Expected `int | null`"),
    ],
)
def test_a_damaged_round_is_listed_with_what_is_known_and_the_others_work(
    tmp_path: Path, column: str, value: bytes, told: str
) -> None:
    path = tmp_path / "history.sqlite3"
    with History(path) as history:
        for note in ("one", "two", "three"):
            history.save(finished(history.open_round(draft(note))))
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE rounds SET {column} = CAST(? AS TEXT) WHERE number = 2", (value,))
    with History(path) as history:
        newer, damaged, older = history.summaries()
        assert (newer.number, damaged.number, older.number) == (3, 2, 1)
        assert not newer.damaged and not older.damaged and told in damaged.damaged
        assert (damaged.note, damaged.max_running_requests) == ("two", 3)
        assert {3, 1} <= {r.number for r in history.list()}
        assert history.last_good() == history.last() == history.get(3)
        assert {point.number for point in history.points()} >= {3, 1}
        history.set_note(2, "left alone")
        assert history.summaries(limit=1, offset=1)[0].note == "left alone"
        assert history.open_round(draft("four")).number == 4


def test_a_history_in_a_folder_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    filled(path, 2)
    before = sorted(tmp_path.iterdir()), path.read_bytes()
    monkeypatch.setattr(schema.os, "access", lambda where, mode: mode != os.W_OK)
    with History(path) as history:
        assert history.only_readable
        assert [line.number for line in history.summaries()] == [2, 1]
        assert history.last() == history.get(2)
        with pytest.raises(HistoryError, match="may not be written: make the file and its folder writable"):
            history.set_note(1, "x")
    assert (sorted(tmp_path.iterdir()), path.read_bytes()) == before


def test_an_older_history_that_may_only_be_read_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.sqlite"
    filled(path, 1)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("SELECT 1",)))
    monkeypatch.setattr(schema.os, "access", lambda where, mode: mode != os.W_OK)
    with pytest.raises(HistoryError, match="copy it to a folder you can write, and set TUNER_HOME"):
        History(path)


def test_places_between_input_agents_and_latency_are_read_as_the_rounds_have_them(history: History) -> None:
    kept = [history.save(finished(history.open_round(draft(simulated=n % 2 == 0)))) for n in range(4)]
    told = msgspec.structs.replace(kept[0], effective={"max_req_input_len": 9_000}, fingerprint={"config": "abc"})
    rejected = history.save(told)
    history.set_verdict(kept[3].number, "reject")
    assert history.points() == [point_of(round_) for round_ in (rejected, kept[1], kept[2])]
