"""What binds now, in words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.metrics.binding import Binds, binding
from tuner.metrics.model import Readings


def readings(**told: object) -> Readings:
    calm = {
        "kv_used_tokens": 10_000, "kv_total_tokens": 100_000, "slots_used": 8, "slots_total": 40, "slots_evictable": 4,
        "running": 2, "queued": 0, "max_running_requests": 8, "decode_tokens_per_s": 80.0, "prefill_tokens_per_s": 0.0,
    }  # fmt: skip
    return Readings(at=1.0, **{**calm, **told})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "asked", "kind", "said"),
    [
        ({}, None, Binds.NOTHING, "2 requests run, none waits; requests are nearest their limit, 25 % in use"),
        ({"running": 0}, None, Binds.NOTHING, "the server is idle"),
        ({"kv_used_tokens": 60_000}, None, Binds.NOTHING, "KV tokens are nearest their limit, 60 % in use"),
        ({"evicted_tokens_per_s": 300.0}, None, Binds.NOTHING, "the cache is evicted"),
        ({"running": 8, "queued": 1}, None, Binds.REQUESTS, "8 of 8 admitted run; 1 request waits"),
        ({"running": 8, "queued": 3}, 8, Binds.REQUESTS, "3 requests wait"),
        ({"running": 8, "queued": 3}, 32, Binds.SLOTS, "40 admit 8 of 32 asked"),
        ({"running": 8, "queued": 3, "slots_total": None, "slots_used": None}, 32, Binds.KV, "they admit 8 of 32"),
        # One has just ended, and the next is not in yet: still the limit, not the prefill of that one.
        ({"running": 7, "queued": 9, "prefill_tokens_per_s": 50.0}, None, Binds.REQUESTS, "7 of 8 admitted run"),
        ({"slots_used": 38, "queued": 1}, None, Binds.SLOTS, "38 of 40 are in use by running requests"),
        # Slots that only the cache holds are given up for a request.
        ({"slots_used": 8, "slots_evictable": 32, "queued": 1, "prefill_tokens_per_s": 9.0}, None, Binds.PREFILL, "9"),
        ({"kv_used_tokens": 95_000, "queued": 2}, None, Binds.KV, "95 % are in use by running requests"),
        ({"queued": 2, "prefill_tokens_per_s": 2500.0}, None, Binds.PREFILL, "2 requests wait for it, 2,500 tokens/s"),
        ({"stalled": True}, None, Binds.PREFILL, "decode stand still"),
        ({"queued": 2}, None, Binds.UNKNOWN, "though the pools have room"),
        ({"queued": 2, "prefill_tokens_per_s": None}, None, Binds.UNKNOWN, "why is not told"),
        ({"running": None}, None, Binds.UNKNOWN, "does not tell its requests"),
    ],
)
def test_what_binds_is_told_with_its_numbers(
    told: dict[str, object], asked: int | None, kind: Binds, said: str
) -> None:
    found = binding(readings(**told), asked)
    assert (found.kind, said in found.words) == (kind, True), found
    assert found.words.endswith(".")


def test_slots_of_the_last_batch_bind_nobody() -> None:
    idle = readings(slots_used=40, queued=1, prefill_tokens_per_s=5.0, stale=("slots_used",))
    assert binding(idle).kind is Binds.PREFILL


def test_of_a_server_that_does_not_answer_nothing_is_claimed() -> None:
    assert binding(None).kind is Binds.UNKNOWN
    assert binding(Readings(at=1.0)).kind is Binds.UNKNOWN


COUNT = st.none() | st.integers(0, 10**7)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        dict.fromkeys(
            ("kv_used_tokens", "kv_total_tokens", "slots_used", "slots_total", "slots_evictable", "running", "queued",
             "max_running_requests", "prefill_tokens_per_s"),
            COUNT,
        )
    ),
    COUNT,
)  # fmt: skip
def test_any_readings_give_one_sentence(told: dict[str, int | None], asked: int | None) -> None:
    found = binding(readings(**told), asked)
    assert found.words.endswith(".")
    if not told["queued"] and found.kind is not Binds.UNKNOWN:
        assert found.kind is Binds.NOTHING
