"""A server that is not ours: looked at by its address, never changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakeserver import Script, closed_port, serving

from tuner.metrics.model import GpuProcess, GpuReading
from tuner.modelcard import ModelError
from tuner.paths import Home
from tuner.planner.model import CannotPlan
from tuner.recipe.model import Recipe
from tuner.server.holders import Holder
from tuner.session import attached as attaching
from tuner.session.attached import AddressError, Attached, AttachedSession, ReadOnly


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def port(script: Script) -> Iterator[int]:
    with serving(script) as found:
        yield found


@pytest.fixture
def session(tmp_path: Path, port: int) -> Iterator[AttachedSession]:
    server = Attached(f"127.0.0.1:{port}", {})
    found = AttachedSession(Home.at(tmp_path), server, {})
    yield found
    found.close()


def test_a_look_tells_its_readings_its_flags_and_what_it_changed(session: AttachedSession, port: int) -> None:
    session.look()
    look = session.look()
    assert look.alive
    assert look.url == f"http://127.0.0.1:{port}"
    assert look.readings is not None
    assert look.readings.running == 2
    assert look.running is not None
    assert look.running.round is None
    assert look.running.handle.recipe.flags["model_path"] == "/models/m"
    assert look.running.handle.recipe.tuner.sglang_version == "0.5.17"
    assert [finding.title for finding in look.changed] == ["max_running_requests is 9 in effect, 32 was asked."]


def test_nothing_of_it_can_be_changed(session: AttachedSession) -> None:
    cancel = threading.Event()
    with pytest.raises(ReadOnly, match="read-only: start, check and stop it where it runs"):
        session.stop(publish=print)
    with pytest.raises(ReadOnly):
        session.verify(publish=print, cancel=cancel)
    with pytest.raises(ReadOnly):
        session.run_round(Recipe(), publish=print, cancel=cancel)


def test_nothing_of_it_is_kept(session: AttachedSession) -> None:
    session.look(keep=True)
    assert session.history.count() == 0


def test_a_server_elsewhere_has_no_plan_and_no_cards_here(tmp_path: Path, script: Script) -> None:
    with serving(script) as port:
        server = Attached(f"http://127.0.0.1:{port}", {})
        server.here = False
        session = AttachedSession(Home.at(tmp_path), server, {})
        assert session.look().gpus == ()
        with pytest.raises(CannotPlan, match="on another machine"):
            session.planning_inputs(Recipe())
        session.close()


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("localhost", True), ("gpu-box-of-nobody", False), ("203.0.113.7", False)]
)
def test_which_addresses_are_this_machine(host: str, here: bool) -> None:
    assert Attached(f"{host}:30000", {}).here is here


class OneCard:
    """A driver with one card, of which a process holds a part."""

    reason = ""

    def read(self) -> list[GpuReading]:
        held = GpuProcess(pid=4242, memory_mib=40 * 1024)
        return [GpuReading(index=0, total_mib=49_140, used_mib=41_460, free_mib=7_680, processes=(held,))]

    def driver_version(self) -> None:
        return None

    def close(self) -> None:
        pass


def test_without_a_card_to_read_the_plan_names_the_command_that_takes_its_numbers(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = OneCard()
    monkeypatch.setattr(card, "read", list)
    monkeypatch.setattr("tuner.session.session.probe_for", lambda *_: card)
    session = AttachedSession(Home.at(tmp_path), Attached(f"127.0.0.1:{port}", {}), {}, model="qwen3.8-27b-fp8-text")
    with pytest.raises(CannotPlan, match=r"No GPU can be read here.*tuner plan takes that from --free-before"):
        session.planning_inputs(Recipe(flags={"model_path": "/models/not-here"}))
    session.close()


def test_with_a_model_named_it_plans_though_the_servers_folder_is_not_here(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(flags={"model_path": "/models/not-here", "mem_fraction_static": 0.86})
    monkeypatch.setattr("tuner.session.session.probe_for", lambda *_: OneCard())
    for ours, free_gib in ((True, 47.5), (None, 7.5)):
        monkeypatch.setattr(attaching, "holders", lambda found, _, ours=ours: {p.pid: Holder("", ours) for p in found})
        session = AttachedSession(
            Home.at(tmp_path), Attached(f"127.0.0.1:{port}", {}), {}, model="qwen3.8-27b-fp8-text"
        )
        inputs = session.planning_inputs(recipe)
        session.close()
        assert inputs.shape.name == "qwen3.8-27b-fp8-text"
        # Less what a start itself takes before its weights; what the server holds of the card it gives back.
        assert free_gib - 2 < inputs.free_before.gib < free_gib
    session = AttachedSession(Home.at(tmp_path), Attached(f"127.0.0.1:{port}", {}), {})
    with pytest.raises(ModelError, match="attach with --model"):
        session.planning_inputs(recipe)
    session.close()


def test_its_end_is_told_and_its_flags_stay_known(session: AttachedSession, script: Script) -> None:
    session.look()
    script.mode = "broken"
    look = session.look()
    assert not look.alive
    assert look.readings is not None
    assert look.readings.notice == "The server does not answer."
    assert look.running is not None
    assert look.running.handle.recipe.flags["model_path"] == "/models/m"


def test_the_flags_of_another_server_in_its_place_are_its_own(session: AttachedSession, script: Script) -> None:
    session.look()
    script.decoded, script.started, script.max_requests = 0, 22.2, 32
    session.look()
    assert session.look().changed == ()


@pytest.mark.parametrize(
    "url",
    ["", "ftp://host:1", "http://", "host:port", "http://host:99999", "http://host:0", "http://a b:1", "::1:30000"],
)
def test_an_address_that_is_none_is_said_to_be_none(url: str) -> None:
    with pytest.raises(AddressError, match="is no address of a server: write it as http://HOST:PORT"):
        Attached(url, {})


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("box:30000", "http://box:30000"),
        ("https://box", "https://box"),
        ("http://box:8000/sglang/", "http://box:8000/sglang"),
        ("http://[::1]:30000", "http://[::1]:30000"),
        ("模型服务器:30000", "http://模型服务器:30000"),
    ],
)
def test_addresses_as_people_write_them(url: str, base: str) -> None:
    assert Attached(url, {}).url == base


def test_a_password_in_an_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(AddressError) as caught:
        Attached("http://me:hunter2@box:1", {})
    assert "hunter2" not in str(caught.value)
    assert "--key-env" in str(caught.value)


def test_the_key_is_read_from_the_variable_named(script: Script, port: int) -> None:
    script.key = "s3cret"
    with pytest.raises(AddressError, match="MY_KEY is not set"):
        Attached(f"127.0.0.1:{port}", {}, "MY_KEY")
    for environ, name in (({"MY_KEY": "s3cret"}, "MY_KEY"), ({"SGLANG_API_KEY": "s3cret"}, None)):
        server = Attached(f"127.0.0.1:{port}", environ, name)
        assert server.recipe().flags["model_path"] == "/models/m"
        server.close()


def test_behind_a_key_that_is_not_there_the_open_metrics_still_go(script: Script, port: int) -> None:
    script.key = "s3cret"
    server = Attached(f"127.0.0.1:{port}", {})
    assert server.recipe() == Recipe()
    _, readings, _ = server.look()
    assert readings.running == 2
    assert "SGLANG_API_KEY" in readings.notice


def test_an_address_where_nothing_useful_answers_is_told_why(script: Script, port: int) -> None:
    with pytest.raises(AddressError, match="Nothing answers at"):
        Attached(f"127.0.0.1:{closed_port()}", {}).recipe()
    script.metrics, script.key = False, "s3cret"
    with pytest.raises(AddressError, match="wants its API key"):
        Attached(f"127.0.0.1:{port}", {}).recipe()
    script.mode, script.key = "nonsense", ""
    with pytest.raises(AddressError, match="is no SGLang server"):
        Attached(f"127.0.0.1:{port}", {}).recipe()


def test_a_stand_in_server_keeps_its_mark(script: Script, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"model_path": "/m", "simulated": True}
    assert attaching._told_by(told).simulated
    assert not attaching._told_by({"model_path": "/m"}).simulated


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter2@box:999999",
        "me:hunter2@box:1",
        "ftp://me:hunter2@box",
        "http://me:hunter2@[::1",
        "me:hunter2/@b",
    ],
)
def test_a_password_in_an_address_that_is_none_is_not_repeated_either(url: str) -> None:
    with pytest.raises(AddressError, match="must not hold a password") as caught:
        Attached(url, {})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://xn--a:1", "http://\udcff:1", "http://h/\udcff", "x" * 70_000])
def test_an_address_that_no_name_server_could_know_is_told_in_one_short_sentence(url: str) -> None:
    with pytest.raises(AddressError, match="is no address of a server") as caught:
        Attached(url, {})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", ["\udcff\udcfe", "s3cret\r", "s3\ncret"])
def test_a_key_that_cannot_be_sent_is_named_by_its_variable_alone(key: str) -> None:
    with pytest.raises(AddressError, match="The variable MY_KEY holds a character that no API key has") as caught:
        Attached("127.0.0.1:1", {"MY_KEY": key}, "MY_KEY")
    assert "s3" not in str(caught.value)
