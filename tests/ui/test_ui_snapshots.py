"""Every screen at three sizes, as an operator sees it: its text, and in the second theme its colours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from textual.geometry import Region
from textual.pilot import Pilot
from uifakes import DEMO, FakeSession
from uiscreen import Opened, poorest_contrast, screen_text, styles_text, until

from tuner.findings import Finding, FindingId, Severity
from tuner.planner.model import Plan, PlanInputs, Term
from tuner.rounds.model import Change, ChangeVerdict, Round, RoundDiff
from tuner.ui.app import TunerApp
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.widgets.pool_numbers import PoolNumbers
from tuner.ui.widgets.slider import Slider

SIZES = [(80, 24), (120, 36), (200, 50)]
FOUND = (
    Finding(id=FindingId.POOL_BELOW_CONTEXT, severity=Severity.WARNING, title="Inputs above the KV pool are refused.",
            remedy="Give KV more memory."),
    Finding(id=FindingId.RATIO_MISFIT, severity=Severity.NOTE, title="81 slots for 3 requests.",
            remedy="Take a smaller ratio.", evidence=("42 slots are worth 100,000 tokens",),
            flags={"mamba_full_memory_ratio": 0.2}),
)  # fmt: skip


def planned(inputs: PlanInputs) -> Plan:
    """Round numbers by a rule of three: the screens are tested here, not the planner."""
    flags = inputs.flags
    rest = inputs.free_after.gib - 46.83 * (1 - flags.get("mem_fraction_static", 0.86))
    ratio = flags.get("mamba_full_memory_ratio", 0.9)
    kv, states = rest / (1 + ratio), rest * ratio / (1 + ratio)
    sizes = {"weights": 27.54, "states": states, "kv": kv, "graphs": 1.86, "free": 18.1 - rest}
    labels = {"kv": "KV"}
    return Plan(
        fits=rest > 1,
        binds="kv",
        basis="formula",
        mamba_slots=int(states / 0.074),
        kv_tokens=int(kv * 32768),
        max_running_requests=min(3, int(states / 0.37)),
        slots_per_request=5,
        bytes_per_slot=79_000_000,
        bytes_per_token=32_768,
        mamba_gib=states,
        kv_gib=kv,
        spec_buffer_gib=0.0,
        reserve_gib=6.56,
        longest_input_tokens=min(262_138, int(kv * 32768) - 6),
        context_len=262_144,
        ready_free_gib=18.1 - rest,
        lowest_free_gib=17.1 - rest,
        headroom_line_gib=4.4,
        terms=tuple(Term(name=n, label=labels.get(n, n), gib=g) for n, g in sizes.items()),
        sources={"free_before": "boot log"},
        requests_asked=3,
    )


def compared(old: Round, new: Round) -> RoundDiff:
    return RoundDiff(
        old=old.name,
        new=new.name,
        flags_changed=(Change(name="mamba_full_memory_ratio", old=0.9, new=0.3, change="-0.6"),),
        pools=(
            Change(name="KV tokens", old=220_650, new=321_198, change="+100,548", verdict=ChangeVerdict.BETTER),
            Change(name="state slots", old=81, new=39, change="-42", verdict=ChangeVerdict.WORSE),
        ),
        metrics=(
            Change(name="TTFT p50, s", old=0.83, new=0.81, change="-0.02", verdict=ChangeVerdict.WITHIN_NOISE),
            Change(name="acceptance length", old=None, new=1.8, verdict=ChangeVerdict.NOT_COMPARABLE),
        ),
        summary="+100,548 KV tokens for 42 slots.",
        simulated=True,
    )


@pytest.fixture(autouse=True)
def _pinned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What other parts of the tuner word belongs to their tests."""
    monkeypatch.setattr("tuner.ui.preview.make_plan", planned)
    monkeypatch.setattr("tuner.doctor.remedy.make_plan", planned)
    monkeypatch.setattr("uifakes.make_plan", planned)
    monkeypatch.setattr("tuner.ui.preview.diagnose_plan", lambda *_: FOUND)
    monkeypatch.setattr("tuner.ui.screens.compare.diff", compared)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def history(session: FakeSession) -> FakeSession:
    """Three rounds: one good, one with another ratio, one that failed; the second runs."""

    def run(**flags: object) -> None:
        session.run_round(DEMO.with_flags(flags), publish=lambda _: None, cancel=threading.Event(), note="试一试")

    run()
    session.fail_in = "sizing pools"
    run(mem_fraction_static=0.55)
    session.fail_in = None
    run(mamba_full_memory_ratio=0.3)
    return session


async def settled(app: TunerApp, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: app.running_name == "r3" and app.baseline.name == "r3")
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_tune(history: FakeSession, opened: Opened, snapshot: SnapshotAssertion, size: tuple[int, int]) -> None:
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)
        ratio = app.screen.query_one("#mamba_full_memory_ratio", Slider)
        ratio.focus()
        await pilot.press("shift+right")
        await until(pilot, lambda: any(app.screen.query_one("#mem_fraction_static", Slider).bad))
        await pilot.pause()
        await looks(app, pilot, snapshot)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_restart(
    history: FakeSession, opened: Opened, snapshot: SnapshotAssertion, size: tuple[int, int]
) -> None:
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)
        app.screen.query_one("#mamba_full_memory_ratio", Slider).focus()
        await pilot.press("right", "R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.pause()
        await looks(app, pilot, snapshot, dialog_of(app))


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_rounds(history: FakeSession, opened: Opened, snapshot: SnapshotAssertion, size: tuple[int, int]) -> None:
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)
        await pilot.press("2")
        await until(pilot, lambda: "r3 verified" in screen_text(app))
        await pilot.press("down")
        await until(pilot, lambda: "r2 failed" in screen_text(app))
        await looks(app, pilot, snapshot)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_compare(
    history: FakeSession, opened: Opened, snapshot: SnapshotAssertion, size: tuple[int, int]
) -> None:
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)
        app.marked = (1, 3)
        await pilot.press("3")
        await until(pilot, lambda: "r1 → r3" in screen_text(app))
        await pilot.pause()
        await looks(app, pilot, snapshot)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_doctor(history: FakeSession, opened: Opened, snapshot: SnapshotAssertion, size: tuple[int, int]) -> None:
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)
        await pilot.press("5")
        await until(pilot, lambda: "ratio-misfit" in screen_text(app) or "pool-below-context" in screen_text(app))
        await pilot.press("down")
        await until(pilot, lambda: "ratio-misfit" in screen_text(app) and "a Apply" in screen_text(app))
        await looks(app, pilot, snapshot)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_presets(
    history: FakeSession,
    opened: Opened,
    snapshot: SnapshotAssertion,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "small.toml").write_text(
        "# A small model.\n#\n# Measured nowhere.\n\n"
        '[server]\nmodel_path = "/models/small"\n[memory]\nmem_fraction_static = 0.7\nmamba_full_memory_ratio = 0.4\n'
    )
    monkeypatch.setattr("tuner.ui.screens.presets.list_presets", lambda home: {"small": tmp_path / "small.toml"})
    monkeypatch.setattr("tuner.ui.screens.presets.packaged_presets", lambda: tmp_path)
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)
        await pilot.press("6")
        await until(pilot, lambda: "Here it would give" in screen_text(app) and "q Quit" in screen_text(app))
        await looks(app, pilot, snapshot)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_dialogs(
    history: FakeSession,
    opened: Opened,
    snapshot: SnapshotAssertion,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What opens over the screens: text alone, the colours are those of the restart dialog."""
    monkeypatch.chdir(history.folder)
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)
        for name, keys in (
            ("keys", ("question_mark",)),
            ("options", ("tab", "tab", "tab", "enter")),
            ("numbers", ("t",)),
            ("note", ("n",)),
            ("export", ("e",)),
            ("stop", ("s",)),
            ("ended", ("b", "R", "y")),
        ):
            app.screen.query_one("#mem_fraction_static", Slider).focus()
            await pilot.press(*keys)
            await until(pilot, lambda: bool(app.screen.query(".dialog")))
            if name == "ended":
                await until(pilot, lambda: "r4 verified" in screen_text(app))
            await pilot.pause()
            assert screen_text(app, dialog_of(app)) == snapshot(name=name)
            assert poorest_contrast(app, dialog_of(app))[0] >= 3
            await pilot.press("escape")
            await until(pilot, lambda: not app.screen.query(".dialog"))


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_log(
    history: FakeSession, opened: Opened, snapshot: SnapshotAssertion, size: tuple[int, int], tmp_path: Path
) -> None:
    recorded = Path(__file__).parents[1] / "data" / "measured" / "27b-48g-fraction-too-low.log"
    (tmp_path / "r3.log").write_bytes(recorded.read_bytes())
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)
        await pilot.press("4")
        await until(pilot, lambda: "kill_process_tree" in screen_text(app))
        await pilot.pause()
        # Above is the path of the file, at the right edge the scroll bar, which comes when it comes.
        lines = [line[: size[0] - 4].rstrip() for line in screen_text(app).splitlines()[3:]]
        assert "\n".join(lines) == snapshot


def dialog_of(app: TunerApp) -> Region:
    """Of a dialog only its box: what lies behind it is not its business."""
    return app.screen.query(".dialog").first().region


async def looks(app: TunerApp, pilot: Pilot[None], snapshot: SnapshotAssertion, part: Region | None = None) -> None:
    """The text in one theme; in the other the same text, the colours kept, and none that cannot be read."""
    text = screen_text(app, part)
    assert text == snapshot
    app.theme = "tuner-light"
    await until(pilot, lambda: app.screen.styles.background.brightness > 0.9 and not still_moving(app))
    await pilot.pause()
    assert screen_text(app, part) == text
    assert styles_text(app, part) == snapshot(name="light")
    contrast, words = poorest_contrast(app, part)
    assert contrast >= 3, words


def still_moving(app: TunerApp) -> bool:
    return any(numbers.fresh for numbers in app.screen.query(PoolNumbers))
