"""A history that is damaged in any field of any table: one sentence for what is lost, and the rest is read.

``TUNER_DAMAGES=2000`` tries so many damages; a change gets a sample of them.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuner.checks.model import CheckResult, Verdict
from tuner.metrics.model import Reach, Readings, Spread
from tuner.recipe.model import Recipe
from tuner.rounds.history import DamagedRound, History, HistoryError
from tuner.rounds.model import Round, RoundState
from tuner.rounds.search import Search
from tuner.serverlog.model import BootFacts, Phase

DAMAGES = int(os.environ.get("TUNER_DAMAGES", "150"))
AT = 1_796_000_000.0
SAMPLES = 20
VALUES: tuple[Any, ...] = (
    "", "x", b"\xff\xfe\0", -1, 1 << 62, 1e308, -1e308, b"{}", "[]", "{", "null", '"x"', "[" * 5000, '{"a":' * 100, 0.5,
    "\x1b[2J", '{"at":1e400}', '{"at":"x"}', '[1,2,{"a":null}]', '{"at":-5}', '{"at":1e300}',
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (None, -1, "x", [], {}, 1 << 80, 1e308, "\ud800", [[[]]], True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a history of three verified rounds with samples."""
    path = tmp_path_factory.mktemp("whole") / "history.sqlite3"
    with History(path) as history:
        for number in (1, 2, 3):
            flags = {"model_path": "/models/m", "mem_fraction_static": 0.8}
            opened = history.open_round(
                Round(number=0, started_at=AT, state=RoundState.STARTING, recipe=Recipe(flags=flags), tags=("night",))
            )
            history.save(
                msgspec.structs.replace(
                    opened,
                    state=RoundState.VERIFIED,
                    boot=BootFacts(phase=Phase.READY, ready=True, kv_tokens=1000, max_running_requests=3),
                    effective={"max_req_input_len": 900},
                    checks=(CheckResult(name="thinking", verdict=Verdict.PASS, reason="answered"),),
                    readings=Readings(at=AT, metrics=Reach.OK, ttft_s=Spread(p50=0.8, p95=1.2, count=20)),
                )
            )
            history.add_samples(number, [Readings(at=AT + s, kv_used_tokens=s, running=1) for s in range(SAMPLES)])
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def questions(history: History) -> Iterator[Callable[[], object]]:
    """Everything that a command or a screen asks of a history."""
    yield history.list
    yield history.summaries
    yield history.count
    yield history.tags
    yield history.last
    yield history.last_good
    yield history.front
    yield lambda: history.sampled_since(0.0)
    for search in (Search(tags=("night",)), Search(with_flags=("mem_fraction_static",)), Search(front=True)):
        yield lambda s=search: history.summaries(search=s)  # type: ignore[misc]
    for number in (1, 2, 3):
        for ask in (history.get, history.find, history.samples, history.moments):
            yield lambda ask=ask, n=number: ask(n)  # type: ignore[misc]
        yield lambda n=number: history.moments(n, 10.0, AT + 5)  # type: ignore[misc]
        yield lambda n=number: history.set_tags(n, add=("seen",))  # type: ignore[misc]
        yield lambda n=number: history.set_note(n, "seen")  # type: ignore[misc]
        yield lambda n=number: history.thin_samples(n, 1e12, 60.0)  # type: ignore[misc]


def asked(path: Path) -> int:
    """Asks everything; returns how much was refused. Anything but a sentence of the history fails the test."""
    refused = 0
    try:
        history = History(path)
    except HistoryError:
        return 1
    with history:
        for ask in questions(history):
            try:
                ask()
            except HistoryError as error:
                assert str(error).endswith((".", ").")), error
                refused += 1
    return refused


def damaged(path: Path, table: str, column: str, value: Any, row: int = 2) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?", (value, row))
    connection.close()


def columns(path: Path, table: str) -> list[str]:
    with sqlite3.connect(path) as connection:
        found = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    connection.close()
    return found


def fields(document: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every field of a JSON value."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield (*way, key)
        yield from fields(value, (*way, key))


def test_whatever_field_is_overwritten_every_question_has_an_answer_or_a_sentence(whole: bytes, tmp_path: Path) -> None:
    chance = random.Random(7)
    path = tmp_path / "history.sqlite3"
    path.write_bytes(whole)
    # A key takes nothing but a whole number.
    places = [
        (t, column) for t in ("rounds", "samples") for column in columns(path, t) if column not in ("id", "number")
    ]
    with sqlite3.connect(path) as connection:
        bodies = {
            t: connection.execute(f"SELECT body FROM {t} WHERE rowid = 2").fetchone()[0] for t in ("rounds", "samples")
        }
    connection.close()
    for number in range(DAMAGES):
        for rest in tmp_path.glob("history.*"):
            rest.unlink()
        path.write_bytes(whole)
        if number % 3 == 0:
            table = chance.choice(("rounds", "samples"))
            document = json.loads(bodies[table])
            *way, last = chance.choice(list(fields(document)))
            inner = document
            for step in way:
                inner = inner[step]
            inner[last] = chance.choice(JSON_VALUES)
            damaged(path, table, "body", json.dumps(document))
        elif number % 3 == 1:
            table, column = chance.choice(places)
            damaged(path, table, column, chance.choice(VALUES))
        else:
            content = bytearray(whole)
            for _ in range(chance.choice((1, 10, 1000))):
                content[chance.randrange(len(content))] = chance.randrange(256)
            path.write_bytes(content[: chance.choice((len(content), chance.randrange(len(content))))])
        asked(path)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("rounds", "tags", "{"),
        ("rounds", "tags", "[1, null, {}]"),
        ("rounds", "flags", "{"),
        ("rounds", "note", b"\xff"),
        ("rounds", "verdict", b"\xff"),
        ("rounds", "max_running_requests", "many"),
        ("rounds", "ttft_p50_s", b"\xff"),
    ],
)
def test_of_a_damaged_round_the_others_are_found_by_tag_flag_and_front(
    whole: bytes, tmp_path: Path, table: str, column: str, value: Any
) -> None:
    path = tmp_path / "history.sqlite3"
    path.write_bytes(whole)
    damaged(path, table, column, value)
    with History(path) as history:
        assert {1, 3} <= {line.number for line in history.summaries(search=Search(tags=("night",)))}
        assert {1, 3} <= {line.number for line in history.summaries(search=Search(with_flags=("mem_fraction_static",)))}
        assert {1, 3} <= history.front()
        assert {1, 3} <= {round_.number for round_ in history.list()}
        assert history.tags()["night"] >= 2


@pytest.mark.parametrize(
    ("column", "value"), [("body", "{"), ("body", '{"at":-5}'), ("body", b"\xff"), ("at", "x"), ("at", b"\xff")]
)
def test_one_damaged_sample_costs_the_chart_that_sample_alone(
    whole: bytes, tmp_path: Path, column: str, value: Any
) -> None:
    path = tmp_path / "history.sqlite3"
    path.write_bytes(whole)
    damaged(path, "samples", column, value)
    with History(path) as history:
        assert len(history.samples(1)) >= SAMPLES - 1
        assert len(history.moments(1, 1.0)) >= SAMPLES - 1
        assert history.moments(1)[-1].kv_used_tokens == SAMPLES - 1
        assert len(history.samples(2)) == SAMPLES


def test_when_no_sample_can_be_read_that_is_said(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite3"
    path.write_bytes(whole)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE samples SET body = '{' WHERE round = 2")
    connection.close()
    with History(path) as history:
        for ask in (history.samples, history.moments):
            with pytest.raises(DamagedRound, match="No sample of r2 can be read from the history"):
                ask(2)
