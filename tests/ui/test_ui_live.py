"""The Live screen, the live strip and an app on a server that is only looked at."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest
from uifakes import DEMO, FakeSession, busy
from uiscreen import Opened, screen_text, told, until

from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import GpuInstance, GpuProcess, GpuReading, Readings
from tuner.rounds.samples import High, Moment
from tuner.ui.screens.help import HelpText
from tuner.ui.screens.large_chart import LargeChartScreen
from tuner.ui.screens.live import LiveScreen, facts
from tuner.ui.screens.working import WorkingScreen
from tuner.ui.trend import COARSE_EVERY_S, CURVES, Curve, Told, Trend, boundaries, stretch
from tuner.ui.widgets.live_strip import figures, notices
from tuner.ui.widgets.live_trend import charts

NINE_OF_32 = Finding(
    id=FindingId.ASKED_NOT_EFFECTIVE, severity=Severity.WARNING,
    title="max_running_requests is 9 in effect, 32 was asked.",
)  # fmt: skip
RUNNING = next(curve for curve in CURVES if curve.title == "Running")


def reading(at: float, **values: object) -> Readings:
    return msgspec.structs.replace(busy(220_000, 81), at=at, **values)


def serve(session: FakeSession) -> None:
    from tuner.recipe.model import Recipe
    from tuner.rounds.model import Round, RoundState

    round_ = session.history.open_round(
        Round(number=0, started_at=1.0, state=RoundState.VERIFIED, recipe=Recipe(flags={"max_running_requests": 3}))
    )
    session.serve(round_)
    session.readings = reading(time.time())


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (160, 45)])
async def test_every_reading_and_what_binds_are_on_the_live_screen(
    session: FakeSession, opened: Opened, size: tuple[int, int]
) -> None:
    serve(session)
    async with opened(size=size) as (app, pilot):
        await pilot.press("7")
        await until(pilot, lambda: "Binds now" in screen_text(app))
        text = screen_text(app)
        assert "[7 Live]" in text
        # 2 of 3 run and 1 waits: nothing is full, and the one that waits is being prefilled.
        assert "Prefill: 1 request waits" in " ".join(text.split())
        assert "73,333 of 220,000 tokens in use (33 %)" in " ".join(text.split())
        assert "TTFT" in text


async def test_charts_show_what_was_kept_before_the_app_opened_and_where_a_round_began(
    session: FakeSession, opened: Opened
) -> None:
    serve(session)
    serve(session)
    now = time.time()
    session.history.add_samples(1, [reading(now - 200 + s, running=3) for s in range(0, 100, 5)])
    session.history.add_samples(2, [reading(now - 90 + s, running=1) for s in range(0, 80, 5)])
    async with opened(size=(160, 45)) as (app, pilot):
        await pilot.press("7")
        await until(pilot, lambda: "┊r2" in screen_text(app))
        assert "KV in use" in screen_text(app)
        await pilot.press("-")
        await until(pilot, lambda: "· 30 minutes" in screen_text(app))
        await pilot.press("+", "+", "+")
        await until(pilot, lambda: "· 5 minutes" in screen_text(app))


async def test_one_measure_fills_the_screen_and_another_follows(session: FakeSession, opened: Opened) -> None:
    serve(session)
    now = time.time()
    session.history.add_samples(1, [reading(now - 200 + s) for s in range(0, 200, 5)])
    async with opened() as (app, pilot):
        await pilot.press("7")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen) and app.screen._read)
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, LargeChartScreen) and "KV in use, %" in screen_text(app))
        await pilot.press("right")
        await until(pilot, lambda: "Slots in use, %" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen))


async def test_how_busy_and_how_full_the_cards_are_is_measured_over_time_too(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(session)
    look, answered = session.look, session.readings
    cards = tuple(GpuReading(index=at, total_mib=1000, used_mib=250 * at, utilisation=30 * at) for at in range(4))

    def looked(**kw: bool) -> object:
        session.readings = msgspec.structs.replace(answered, at=time.time())
        return msgspec.structs.replace(look(**kw), gpus=cards)

    monkeypatch.setattr(session, "look", looked)
    async with opened(size=(200, 50)) as (app, pilot):
        await pilot.press("7")
        await until(pilot, lambda: "GPU busy 90 %" in screen_text(app) and "VRAM in use 75 %" in screen_text(app))
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, LargeChartScreen))
        await pilot.press("left")
        await until(pilot, lambda: "VRAM in use, %" in screen_text(app))
        await pilot.press("left")
        await until(pilot, lambda: "GPU busy, %" in screen_text(app))


async def test_plotext_is_not_loaded_by_the_live_screen(session: FakeSession, opened: Opened) -> None:
    import subprocess
    import sys

    code = "import sys, tuner.ui.screens.live, tuner.ui.app; sys.exit('plotext' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_server_that_stops_answering_leaves_no_old_number_on_the_screen(
    session: FakeSession, opened: Opened
) -> None:
    serve(session)
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("7")
        await until(pilot, lambda: "73,333" in screen_text(app))
        session.readings = Readings(at=time.time(), notice="The server does not answer.")
        await until(pilot, lambda: "does not answer: nothing of it is known now" in screen_text(app))
        assert "73,333" not in screen_text(app)


async def test_looks_that_do_not_come_are_told_with_their_age(session: FakeSession, opened: Opened) -> None:
    serve(session)
    async with opened() as (app, pilot):
        app.runner.close()
        await pilot.pause()
        app._looked_at_s -= 7
        app._mark_late()
        await until(pilot, lambda: "No news for 7 s: what is shown is that old." in screen_text(app))


async def test_what_the_server_changed_is_in_the_operators_face(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(session)
    look = session.look
    monkeypatch.setattr(session, "look", lambda **kw: msgspec.structs.replace(look(**kw), changed=(NINE_OF_32,)))
    async with opened(size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: "max_running_requests is 9 in effect, 32 was asked." in screen_text(app))
        await pilot.press("7")
        await until(pilot, lambda: "[7 Live]" in screen_text(app))
        assert "max_running_requests is 9 in effect, 32 was asked." in screen_text(app)


@pytest.mark.parametrize("key", ["R", "v", "s"])
async def test_a_server_that_is_only_looked_at_is_not_touched_and_a_sentence_says_why(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    serve(session)
    session.attached = "http://gpu-box:30000"
    look = session.look
    monkeypatch.setattr(
        session, "look", lambda **kw: msgspec.structs.replace(look(**kw), url="http://gpu-box:30000", gpus=())
    )
    async with opened() as (app, pilot):
        await until(pilot, lambda: "attached to http://gpu-box:30000, read-only" in screen_text(app))
        for words in ("R Restart", "v Verify", "s Stop", "A Auto"):
            assert words not in screen_text(app)
        await pilot.press(key)
        await until(pilot, lambda: "read-only: start, check and stop it where it runs." in told(app))
        assert not isinstance(app.screen, WorkingScreen)
    assert (session.asked, session.stopped) == ([], 0)


@pytest.mark.parametrize("attached", ["", "http://gpu-box:30000"])
async def test_the_keys_listed_for_a_server_that_is_only_looked_at_are_those_it_takes(
    session: FakeSession, opened: Opened, attached: str
) -> None:
    session.attached = attached
    async with opened() as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: "Esc closes" in screen_text(app))
        listed = app.screen.query_one(HelpText).text(100).plain
    on_the_server = ("Restart ", "Verify ", "Stop ", "Auto ", "tune.auto", "restart,")
    assert [words in listed for words in on_the_server] == [not attached] * len(on_the_server)
    assert "Quit" in listed and "Numbers" in listed


async def test_a_server_that_is_only_looked_at_gets_no_advice_from_rounds_of_this_machine(
    session: FakeSession, opened: Opened
) -> None:
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    for attached, told_of in (("", True), ("http://gpu-box:30000", False)):
        session.attached = attached
        async with opened() as (app, pilot):
            await pilot.press("5")
            await until(pilot, lambda: "[5 Doctor]" in screen_text(app))
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert (session.advice.sentence in screen_text(app)) is told_of


# what lines say


def test_of_several_cards_the_fullest_is_on_the_strip(session: FakeSession) -> None:
    serve(session)
    cards = [GpuReading(index=i, total_mib=10_240, used_mib=used) for i, used in enumerate((1024, 9216, 2048))]
    look = msgspec.structs.replace(session.look(), gpus=tuple(cards))
    assert figures(look)[0].words == "GPU 1 9.0/10.0 GiB 90 %"
    elsewhere = msgspec.structs.replace(look, gpus=(), url="http://x:1")
    assert figures(elsewhere)[0].title == "KV"


def test_a_value_of_the_last_batch_is_marked(session: FakeSession) -> None:
    serve(session)
    session.readings = reading(1.0, running=0, queued=0, stale=("slots_used", "slots_evictable"))
    slots = next(figure for figure in figures(session.look()) if figure.title == "Slots")
    assert slots.words.startswith("≈12 of 81")
    assert any("as of the last batch" in words for _, words, _ in facts(session.look(), {}, 90))


def test_the_strip_says_what_binds_where_nothing_is_missing(session: FakeSession) -> None:
    serve(session)
    session.readings = reading(1.0, running=3, queued=4)
    assert notices(session.look(), None, None) == (("! ", "Requests: 3 of 3 admitted run; 4 requests wait."),)
    session.readings = reading(1.0, notice="The server answers slowly: the last look took 1.3 s.")
    assert notices(session.look(), None, None) == (("! ", session.readings.notice),)


def test_a_card_tells_what_holds_it_back_its_parts_and_its_processes(session: FakeSession) -> None:
    card = GpuReading(
        index=0, name="NVIDIA H200", total_mib=143_771, used_mib=2048, power_w=690.0, power_limit_w=700.0,
        throttled=("power limit",), instances=(GpuInstance(name="MIG 1g.18gb", used_mib=1024, total_mib=18_432),),
        processes=(GpuProcess(pid=9, memory_mib=1024, name="模型"), GpuProcess(pid=10)),
    )  # fmt: skip
    lines = [
        f"{name} {words}".strip()
        for name, words, _ in facts(msgspec.structs.replace(session.look(), gpus=(card,)), {}, 90)
    ]
    assert lines[2] == "GPU 0 NVIDIA H200"
    assert lines[3] == "2.00 GiB of 140.40 GiB · 690 of 700 W · held back: power limit"
    assert lines[4:] == ["MIG 1g.18gb 1.00 GiB of 18.00 GiB", "1.00 GiB process 9 模型", "not told process 10"]


# charts


def moments(*pairs: tuple[float, int], name: str = "r1") -> list[Told]:
    return [Told(Moment(at=at, running=running), name) for at, running in pairs]


def test_a_column_shows_the_highest_value_of_its_time() -> None:
    kept = moments((100.0, 1), (101.0, 7), (102.0, 2), (115.0, 3))
    assert stretch(kept, RUNNING, 119.0, 20.0, 4).values == (7, 7, 7, 3)
    assert stretch(kept, RUNNING, 119.0, 20.0, 4).last == 3


def test_a_time_without_readings_is_a_gap() -> None:
    kept = moments((100.0, 4), (160.0, 5))
    assert stretch(kept, RUNNING, 169.0, 70.0, 7).values == (4, 4, 4, None, None, None, 5)


def test_a_chart_moves_by_whole_columns() -> None:
    kept = moments(*((float(at), at % 7) for at in range(100, 160)))
    first, second = (stretch(kept, RUNNING, end, 50.0, 10).values for end in (157.0, 159.9))
    assert first == second


def test_a_boundary_is_where_another_round_begins() -> None:
    kept = [*moments((100.0, 1), (110.0, 1)), *moments((120.0, 1), (130.0, 1), name="r2")]
    assert boundaries(kept, 139.0, 40.0, 4) == {2: "r2"}
    assert boundaries(kept, 139.0, 20.0, 4) == {0: "r2"}
    assert boundaries(kept, 1000.0, 40.0, 4) == {}


def test_a_trend_keeps_ten_minutes_finely_and_a_day_coarsely() -> None:
    trend = Trend()
    for second in range(0, 100_000, 10):
        trend.take(reading(float(second)), "r1")
    assert len(trend.told(300.0)) == 61
    coarse = trend.told(86_400.0)
    assert abs(len(coarse) - 86_400 / COARSE_EVERY_S) <= 2
    assert coarse[-1].moment.at == 99_990.0


def test_what_was_kept_goes_before_what_is_seen_and_is_not_seen_twice() -> None:
    trend = Trend()
    trend.take(reading(1000.0), "r2")
    trend.take(reading(1001.0), "r2")
    kept = moments((990.0, 1), (1000.0, 1), (1001.0, 1))
    trend.earlier(kept, kept)
    assert [one.moment.at for one in trend.told(300.0)] == [990.0, 1000.0, 1001.0]
    assert [one.moment.at for one in trend.told(3600.0)] == [990.0, 1000.0, 1001.0]
    # Two looks at the same moment are one.
    trend.take(reading(1001.0), "r2")
    assert len(trend.told(300.0)) == 3


def test_after_the_clock_was_set_back_charts_go_on() -> None:
    trend = Trend()
    for second in range(100):
        trend.take(reading(5000.0 + second), "r1")
    trend.take(reading(1400.0), "r1")
    trend.take(reading(1401.0), "r1")
    assert [one.moment.at for one in trend.told(300.0)] == [1400.0, 1401.0]
    assert [one.moment.at for one in trend.told(3600.0)] == [1400.0, 1401.0]


@pytest.mark.parametrize("cells", [10, 40, 78, 200])
@pytest.mark.parametrize("rows", [1, 3, 12, 60])
def test_charts_stay_in_their_room(cells: int, rows: int) -> None:
    kept = [
        Told(Moment(at=100.0 + s, running=s, decode_tokens_per_s=s / 3, ttft_s=High(s), kv_used_tokens=s,
                    kv_total_tokens=50), "r一二三" if s > 20 else "r1")
        for s in range(50)
    ]  # fmt: skip
    text = "\n".join(line.plain for line in charts(kept, 60.0, "1 minute", cells, rows, 150.0))
    lines = text.split("\n")
    assert len(lines) <= max(3, rows)
    assert "Running" in text or rows < 7


def test_a_value_of_zero_is_seen_and_a_missing_one_is_not() -> None:
    flat = Curve("Running", lambda m: m.running, None, str)
    assert stretch(moments((100.0, 0)), flat, 100.0, 1.0, 1).values == (0,)
    kept = [Told(Moment(at=100.0, running=0), "r1"), Told(Moment(at=130.0), "r1")]
    text = "\n".join(line.plain for line in charts(kept, 40.0, "40 s", 40, 9, 139.0))
    assert "▁" in text
    assert "all 0" in text
