from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.checks.model import CheckResult, Verdict
from tuner.checks.prefix import (
    PrefixContext,
    PrefixSeen,
    judge_prefix,
    prefix_context,
    prefix_prompts,
    too_short,
    worth_a_gain,
)
from tuner.serverlog.model import BootFacts

MEASURED = Path(__file__).parents[2] / "data" / "measured"


def recorded(round_name: str) -> tuple[list[PrefixSeen], PrefixContext]:
    """The three answers of a recording, and the context from the server's own /server_info."""
    record = json.loads((MEASURED / f"{round_name}.json").read_text())
    seen, prompts = [], []
    for answer in record["prefix"]:
        meta = json.loads(answer["last"].removeprefix("data: "))["meta_info"]
        prompts.append(meta["prompt_tokens"])
        seen.append(PrefixSeen(status=answer["status"], cached_tokens=meta["cached_tokens"], ttft_s=answer["ttft_s"]))
    info = json.loads(record["server_info_end"])
    facts = BootFacts(
        kv_tokens=info["max_total_num_tokens"],
        chunked_prefill_size=info["chunked_prefill_size"],
        context_len=262_144,
        hybrid=round_name != "dense-small",
    )
    context = prefix_context(facts, None, info)
    return seen, PrefixContext(
        prefix_tokens=prompts[0] - 3,
        cache_on=context.cache_on,
        hybrid=context.hybrid,
        strategy=context.strategy,
        chunk=context.chunk,
        page=context.page,
    )


def judged(cached: list[int | None], context: PrefixContext, **more: Any) -> CheckResult:
    times = [0.8, 0.7, 0.1]
    seen = [PrefixSeen(cached_tokens=c, ttft_s=t) for c, t in zip(cached, times, strict=False)]
    return judge_prefix(seen, context, **more)


EXTRA = PrefixContext(prefix_tokens=8_000, hybrid=True, strategy="extra_buffer", chunk=4_096)
NO_BUFFER = PrefixContext(prefix_tokens=10_240, hybrid=True, strategy="no_buffer", chunk=8_192)
DENSE = PrefixContext(prefix_tokens=8_000, hybrid=False)


def test_the_recorded_r15_works_and_its_gain_is_not_told_because_shapes_were_cold() -> None:
    result = judge_prefix(*recorded("27b-48g-r15-full"))
    assert result.verdict is Verdict.PASS
    assert result.reason == "works: 8,000 of 8,000 tokens reused; gain not told: shapes were cold."
    assert result.details["cached_tokens"] == [0, 8_000, 8_000]
    assert result.came == "cached tokens 0, 8,000, 8,000; TTFT 0.84 s, 0.76 s, 93 ms"


def test_the_recorded_dense_model_works_although_its_second_request_was_the_slowest() -> None:
    result = judge_prefix(*recorded("dense-small"))
    assert result.verdict is Verdict.PASS
    assert result.reason == "works: 6,000 of 6,000 tokens reused; gain not told: shapes were cold."


def test_the_recorded_cache_that_never_hits_is_called_so_with_strategy_and_chunk_as_the_reason() -> None:
    result = judge_prefix(*recorded("tiny-auto-strategy-never-hits"))
    assert result.verdict is Verdict.FAIL
    assert result.details["outcome"] == "on but never hits"
    assert result.reason.startswith('on but never hits: strategy "auto" gives no extra buffer here')
    assert "this prefix of 6,000 tokens is shorter than one chunk (8,192)" in result.reason
    assert "extra_buffer changes that" in result.reason


def test_a_gain_is_told_from_warm_shapes_only() -> None:
    warm = [PrefixSeen(cached_tokens=0, ttft_s=0.8), PrefixSeen(cached_tokens=8_000, ttft_s=0.09)]
    result = judged([0, 8_000, 8_000], EXTRA, warm=warm)
    assert result.reason == "works: 8,000 of 8,000 tokens reused; gain: TTFT 0.80 s without, 90 ms with."
    assert result.details["gain"] == pytest.approx(8.89)
    missed = [PrefixSeen(cached_tokens=0, ttft_s=0.8), PrefixSeen(cached_tokens=0, ttft_s=0.8)]
    assert "gain not told" in judged([0, 8_000, 8_000], EXTRA, warm=missed).reason
    slower = [PrefixSeen(cached_tokens=0, ttft_s=0.02), PrefixSeen(cached_tokens=8_000, ttft_s=0.03)]
    assert "no gain in TTFT (20 ms without, 30 ms with)" in judged([0, 8_000, 8_000], EXTRA, warm=slower).reason


@pytest.mark.parametrize(
    ("cached", "context", "verdict", "outcome"),
    [
        ([0, 7_936, 7_936], PrefixContext(prefix_tokens=7_980, hybrid=True, strategy="extra_buffer"), "pass", "works"),
        ([0, 8_192, 8_192], NO_BUFFER, "pass", "works at chunk ends only"),
        ([0, 4_032, 4_032], EXTRA, "pass", "works in part"),
        ([0, 0, 8_000], EXTRA, "pass", "works"),
        ([0, 0, 0], EXTRA, "fail", "on but never hits"),
        ([0, 0, 0], NO_BUFFER, "fail", "on but never hits"),
        ([0, 8_000, 0], EXTRA, "fail", "hits and loses"),
        ([0, 8_003, 8_003], EXTRA, "fail", "wrong"),
        ([8_000, 8_000, 8_000], EXTRA, "cannot tell", "cannot tell"),
        ([0, None, None], EXTRA, "cannot tell", "cannot tell"),
        ([0, 8_000], EXTRA, "cannot tell", "cannot tell"),
        ([0, 8_000, 8_000], DENSE, "pass", "works"),
        ([], PrefixContext(prefix_tokens=128, hybrid=True), "cannot tell", "too short to tell"),
        ([], PrefixContext(prefix_tokens=8_000, cache_on=False), "pass", "off"),
    ],
)
def test_every_way_a_cache_behaves_has_its_word(
    cached: list[int | None], context: PrefixContext, verdict: str, outcome: str
) -> None:
    result = judged(cached, context)
    assert (result.verdict, result.details["outcome"]) == (Verdict(verdict), outcome)


def test_never_hits_names_what_the_settings_say() -> None:
    paged = judged(
        [0, 0, 0], PrefixContext(prefix_tokens=8_192, hybrid=True, strategy="no_buffer", chunk=4_096, page=64)
    )
    assert 'strategy "no_buffer"' in paged.reason
    assert "shorter" not in paged.reason
    assert "only whole pages of 64 tokens are reused" in paged.reason
    assert "the settings give no reason" in judged([0, 0, 0], EXTRA).reason
    whole = judged([0, 0, 0], PrefixContext(prefix_tokens=8_000, hybrid=True, strategy="auto", chunk=None))
    assert "shorter than a chunk (prompts are not cut)" in whole.reason


def test_a_server_that_dies_or_refuses_in_the_middle_gives_its_sentence() -> None:
    first = PrefixSeen(cached_tokens=0, ttft_s=0.8)
    dead = judge_prefix([first, PrefixSeen(status=None, error="Nothing answers at http://127.0.0.1:1.")], EXTRA)
    assert (dead.verdict, dead.reason) == (Verdict.FAIL, "Nothing answers at http://127.0.0.1:1.")
    refused = judge_prefix([PrefixSeen(status=400, error="The server answered 400: input too long")], EXTRA)
    assert (refused.verdict, refused.reason) == (Verdict.CANNOT_TELL, "The server answered 400: input too long")


def test_without_an_extra_buffer_the_probe_reaches_beyond_a_chunk() -> None:
    facts = BootFacts(kv_tokens=9_525_880, context_len=262_144, chunked_prefill_size=8_192, mamba_slots=2_725)
    context = prefix_context(facts, None, {"mamba_radix_cache_strategy": "auto"})
    assert context.prefix_tokens > 8_192
    assert context.prefix_tokens % 64 == 0
    assert prefix_context(facts, None, {"mamba_radix_cache_strategy": "extra_buffer"}).prefix_tokens == 8_000


def test_the_probe_stays_small_in_a_small_pool_and_inside_the_context() -> None:
    small = BootFacts(kv_tokens=10_000, context_len=262_144, mamba_slots=4)
    assert prefix_context(small, None, {}).prefix_tokens == 2_496
    short = BootFacts(kv_tokens=1_000_000, context_len=2_048, hybrid=False)
    assert prefix_context(short, None, {}).prefix_tokens <= 2_048 - 128
    tiny = prefix_context(BootFacts(kv_tokens=400, context_len=2_048, mamba_slots=4), None, {})
    assert too_short(tiny)


def test_a_cache_turned_off_is_known_from_the_flag_or_the_log() -> None:
    assert not prefix_context(None, None, {"disable_radix_cache": True}).cache_on
    assert not prefix_context(BootFacts(tree_cache="ChunkCache"), None, {}).cache_on
    assert prefix_context(BootFacts(tree_cache="UnifiedRadixCache"), None, {}).cache_on


def test_prompts_share_the_prefix_alone_and_differ_from_run_to_run() -> None:
    context = PrefixContext(prefix_tokens=512)
    prompts = prefix_prompts(context, salt=1)
    first, second, third = next(prompts), next(prompts), next(prompts)
    assert first[:512] == second[:512] == third[:512]
    assert len({p[512] for p in (first, second, third)}) == 3
    assert len(first) == 515
    other = next(prefix_prompts(context, salt=2))
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 20


@settings(max_examples=60)
@given(vocab=st.one_of(st.none(), st.integers(2, 300_000)), salt=st.integers(0, 1 << 48))
def test_ids_are_inside_the_vocabulary(vocab: int | None, salt: int) -> None:
    prompt = next(prefix_prompts(PrefixContext(prefix_tokens=256), salt, vocab))
    assert min(prompt) >= 0
    assert max(prompt) < (vocab if vocab is not None else 8_000)


def test_a_slow_card_is_not_asked_for_another_cold_prefill() -> None:
    hits = [PrefixSeen(cached_tokens=8_000, ttft_s=0.1)] * 2
    assert worth_a_gain([PrefixSeen(cached_tokens=0, ttft_s=0.8), *hits])
    assert not worth_a_gain([PrefixSeen(cached_tokens=0, ttft_s=25.0), *hits])
    assert not worth_a_gain([PrefixSeen(cached_tokens=0, ttft_s=0.8), PrefixSeen(cached_tokens=0, ttft_s=0.8)])


@settings(max_examples=200)
@given(
    cached=st.lists(st.one_of(st.none(), st.integers(0, 20_000)), max_size=4),
    prefix=st.integers(0, 20_000),
    hybrid=st.one_of(st.none(), st.booleans()),
    strategy=st.sampled_from([None, "auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"]),
    chunk=st.one_of(st.none(), st.integers(1, 16_384)),
    page=st.sampled_from([1, 16, 64, 128]),
)
def test_any_answers_get_a_verdict_and_nothing_reused_never_passes(
    cached: list[int | None],
    prefix: int,
    hybrid: bool | None,
    strategy: str | None,
    chunk: int | None,
    page: int,
) -> None:
    context = PrefixContext(prefix_tokens=prefix, hybrid=hybrid, strategy=strategy, chunk=chunk, page=page)
    result = judge_prefix([PrefixSeen(cached_tokens=c, ttft_s=0.1) for c in cached], context)
    assert result.reason.endswith(".")
    if not any(cached):
        assert result.verdict is not Verdict.PASS
    if result.verdict is Verdict.PASS:
        assert cached[2]
