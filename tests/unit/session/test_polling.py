"""A server that dies, hangs, is slow, talks nonsense, restarts or resets its counters: what each look says."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import psutil
import pytest
from fakeserver import Script, closed_port, serving

from tuner.metrics.model import Reach, Readings
from tuner.metrics.words import rows
from tuner.probes.http import ServerClient
from tuner.session.polling import TIMEOUT_S, Poller
from tuner.ui.app import LATE_S
from tuner.ui.runner import EVERY_S

#: Looks at one server for leaks; the full count by TUNER_POLLS=10000.
POLLS = int(os.environ.get("TUNER_POLLS", "150"))


class Clock:
    """Seconds that pass as told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def poller(port: int, clock: Clock, *, key: str | None = None, timeout: float = 5.0) -> Poller:
    client = ServerClient(f"http://127.0.0.1:{port}", api_key=key, timeout=timeout)
    return Poller(client, "THE_KEY", clock=clock, wall=clock)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def port(script: Script) -> Iterator[int]:
    with serving(script) as found:
        yield found


def looks(poll: Poller, clock: Clock, count: int = 1) -> Readings:
    """The last of some looks, one a second."""
    for _ in range(count):
        clock.now += 1
        readings = poll.read()
    return readings


def test_whatever_happens_is_told_within_three_seconds() -> None:
    """A look a second that takes no longer than its timeout; of a look that never ends the app tells by itself."""
    assert EVERY_S + TIMEOUT_S < 3
    assert LATE_S < 3


def test_a_server_at_work(script: Script, port: int) -> None:
    clock = Clock()
    now = looks(poller(port, clock), clock, 3)
    assert (now.decode_tokens_per_s, now.running, now.kv_total_tokens, now.notice) == (10, 2, 2000, "")
    assert now.at == clock.now


def test_a_server_that_hangs_does_not_answer_and_its_last_values_are_gone(script: Script, port: int) -> None:
    clock = Clock()
    poll = poller(port, clock, timeout=0.2)
    assert looks(poll, clock, 2).decode_tokens_per_s == 10
    script.mode = "hangs"
    hung = looks(poll, clock)
    assert (hung.metrics, hung.loads, hung.answered_s) == (Reach.UNREACHABLE, Reach.UNREACHABLE, None)
    assert hung.notice == "The server does not answer."
    assert rows(hung) == ()
    script.mode = "fine"
    script.go_on.set()
    assert looks(poll, clock).decode_tokens_per_s == pytest.approx(20 / 3)


def test_a_server_that_died_does_not_answer() -> None:
    clock = Clock()
    gone = looks(poller(closed_port(), clock), clock)
    assert gone.notice == "The server does not answer."
    assert rows(gone) == ()


@pytest.mark.parametrize(
    ("mode", "said"),
    [("nonsense", "check that host and port are the server's"), ("broken", "The server does not answer.")],
)
def test_nonsense_is_told_as_such(script: Script, port: int, mode: str, said: str) -> None:
    clock = Clock()
    poll = poller(port, clock)
    looks(poll, clock, 2)
    script.mode = mode
    now = looks(poll, clock)
    assert said in now.notice
    assert (now.running, now.kv_used_tokens, now.decode_tokens_per_s) == (None, None, None)


def test_a_slow_server_is_told_to_be_slow(script: Script, port: int) -> None:
    ticking = iter(range(0, 10_000, 2))
    poll = Poller(ServerClient(f"http://127.0.0.1:{port}"), clock=lambda: float(next(ticking)), wall=lambda: 0.0)
    poll.read()
    assert "answers slowly: the last look took 2.0 s" in poll.read().notice


def test_a_restart_is_told_and_what_the_server_says_of_itself_is_asked_for_again(script: Script, port: int) -> None:
    clock = Clock()
    poll = poller(port, clock)
    looks(poll, clock, 2)
    assert poll.info is not None
    script.started, script.decoded, script.max_requests = 28.1, 90_000, 3
    now = looks(poll, clock)
    assert "began anew" in now.notice
    assert (now.decode_tokens_per_s, now.ttft_s) == (None, None)
    states = poll.info["internal_states"]
    assert states[0]["effective_max_running_requests_per_dp"] == 3


def test_counters_that_fall_are_a_reset_and_no_negative_rate(script: Script, port: int) -> None:
    clock = Clock()
    poll = poller(port, clock)
    looks(poll, clock, 5)
    script.decoded = 0
    now = looks(poll, clock)
    assert (now.began_anew_s, now.decode_tokens_per_s) == (0, None)
    assert looks(poll, clock).decode_tokens_per_s == 10


def test_without_metrics_the_flag_is_named_and_the_rest_goes_on(script: Script, port: int) -> None:
    script.metrics = False
    clock = Clock()
    now = looks(poller(port, clock), clock, 2)
    assert "--enable-metrics" in now.notice
    assert (now.running, now.queued, now.kv_used_tokens, now.max_running_requests) == (2, 1, 500, 9)


def test_behind_a_key_the_variable_is_named_and_the_open_metrics_go_on(script: Script, port: int) -> None:
    script.key = "secret"
    clock = Clock()
    locked = looks(poller(port, clock), clock, 2)
    assert "THE_KEY" in locked.notice
    assert (locked.decode_tokens_per_s, locked.running) == (10, 2)
    assert looks(poller(port, clock, key="secret"), clock, 2).notice == ""


def test_a_server_that_says_nothing_of_itself_is_asked_again_but_not_each_second(script: Script, port: int) -> None:
    script.key = "secret"
    clock = Clock()
    looks(poller(port, clock), clock, 12)
    assert script.asked["/server_info"] == 3


def test_many_looks_leave_nothing_behind(script: Script, port: int) -> None:
    clock = Clock()
    poll = poller(port, clock)
    process = psutil.Process()
    # The window fills within its minute.
    looks(poll, clock, 80)
    gc.collect()
    before = (process.num_fds(), threading.active_count(), len(gc.get_objects()))
    for number in range(POLLS):
        if number % 25 == 20:
            script.mode = ("fine", "nonsense", "broken")[number // 25 % 3]
        if number % 40 == 39:
            script.decoded = 0
        looks(poll, clock)
    script.mode = "fine"
    looks(poll, clock, 80)
    gc.collect()
    after = (process.num_fds(), threading.active_count(), len(gc.get_objects()))
    # The server's own threads of requests just answered may be on their way out.
    assert after[0] - before[0] <= 4
    assert after[1] - before[1] <= 4
    assert after[2] - before[2] <= 500
    poll.close()
