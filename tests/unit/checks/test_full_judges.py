from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.checks.answers import ChatSeen
from tuner.checks.breadth import Row, judge_breadth, rows_for
from tuner.checks.hot import judge_hot_tool_call, judge_same_answer
from tuner.checks.long_text import codes
from tuner.checks.longest import judge_longest_input, length_seen, stated_limit
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.prefix import PrefixContext, PrefixSeen, judge_prefix, prefix_seen
from tuner.checks.speculation import Cost, Drafted, judge_speculation, with_answer
from tuner.probes.answers import GenerateAnswer

MEASURED = Path(__file__).parents[2] / "data" / "measured"
PASSED = CheckResult(name="x", verdict=Verdict.PASS, reason="It came.")
FAILED = CheckResult(name="x", verdict=Verdict.FAIL, reason="No call.")


@pytest.mark.parametrize(
    ("cold", "hot", "cached", "verdict"),
    [
        (PASSED, PASSED, 4_096, Verdict.PASS),
        (PASSED, FAILED, 4_096, Verdict.FAIL),
        (PASSED, FAILED, None, Verdict.FAIL),
        (PASSED, FAILED, 0, Verdict.CANNOT_TELL),
        (PASSED, PASSED, None, Verdict.CANNOT_TELL),
        (PASSED, PASSED, 0, Verdict.CANNOT_TELL),
        (FAILED, FAILED, 4_096, Verdict.CANNOT_TELL),
    ],
)
def test_only_a_call_that_came_cold_and_not_hot_is_the_caches_fault(
    cold: CheckResult, hot: CheckResult, cached: int | None, verdict: Verdict
) -> None:
    assert judge_hot_tool_call(cold, hot, cached)[0] is verdict


@pytest.mark.parametrize(
    ("texts", "cached", "verdict", "word"),
    [
        (("4821", "4821", "4821"), 8_000, Verdict.PASS, "8,000 tokens"),
        (("It is 4821.", "4821", "4821"), 8_000, Verdict.FAIL, "again the same one"),
        (("It is 4821.", "4821", "The code: 4821"), 8_000, Verdict.CANNOT_TELL, "not repeatable"),
        (("4821", "I do not know", "Which box?"), 8_000, Verdict.FAIL, "Cold it knew"),
        (("blue", "blue", "blue"), 8_000, Verdict.CANNOT_TELL, "weak model"),
        (("4821", "4821", "4821"), 0, Verdict.CANNOT_TELL, "Nothing came from the cache"),
        (("4821", "4821", "4821"), None, Verdict.CANNOT_TELL, "--enable-cache-report"),
    ],
)
def test_a_hot_answer_is_told_from_a_server_that_never_repeats_itself(
    texts: tuple[str, str, str], cached: int | None, verdict: Verdict, word: str
) -> None:
    found, reason = judge_same_answer([ChatSeen(status=200, text=text) for text in texts], "4821", cached)
    assert found is verdict
    assert word in reason


def test_the_text_with_facts_is_fresh_long_enough_and_holds_what_is_asked() -> None:
    text, box, code = codes("salt", 4_000)
    assert f"The code of box {box} is {code}." in text
    assert 3_600 < text.count(" ") * 12 / 7 < 6_000
    assert codes("other", 4_000)[0][:60] != text[:60]


@pytest.mark.parametrize(
    ("holds", "room", "rows"),
    [(53, 1_000, (45, 66)), (2_700, 10_000, (128, None)), (None, 50, (50, None)), (53, 50, (45, None)), (1, 9, (0, 6))],
)
def test_rows_lie_just_inside_and_just_outside_of_the_slots(
    holds: int | None, room: int, rows: tuple[int, int | None]
) -> None:
    assert rows_for(holds, room) == rows


@pytest.mark.parametrize(
    ("rows", "verdict", "word"),
    [
        ([Row(1, 192), Row(45, 192), Row(66, 0)], Verdict.PASS, "45 conversations stay warm and 66 do not"),
        ([Row(1, 192), Row(45, 192), Row(66, 192)], Verdict.PASS, "At least 66"),
        ([Row(1, 192), Row(45, 0), Row(23, 192), Row(34, 0)], Verdict.FAIL, "Only 23, not 34, conversations"),
        ([Row(1, 0)], Verdict.CANNOT_TELL, "Not even a single conversation"),
        ([Row(1, None)], Verdict.CANNOT_TELL, "do not tell cached tokens"),
        ([Row(1, 192), Row(45, None, "Nothing answers.")], Verdict.FAIL, "Nothing answers."),
    ],
)
def test_how_many_conversations_stay_warm_is_judged_against_the_slots(
    rows: list[Row], verdict: Verdict, word: str
) -> None:
    found, reason = judge_breadth(rows, 53, 45)
    assert found is verdict
    assert word in reason


#: As a real 0.5.17 said it, with a pool of 4,096 tokens: 4,089 were accepted.
REFUSAL = (
    "The server answered 400: Input length (4090 tokens) exceeds the maximum allowed length (4090 tokens). Use a "
    "shorter input or enable --allow-auto-truncate."
)


def length(tokens: int, status: int | None, error: str = "", broken_off: bool = False):  # type: ignore[no-untyped-def]
    return length_seen(tokens, GenerateAnswer(status=status, error=error, total_s=1.0), broken_off=broken_off)


def test_the_recorded_limit_is_reported_in_tokens_with_the_servers_sentence() -> None:
    verdict, reason = judge_longest_input(length(4_089, 200), length(4_090, 400, REFUSAL))
    assert verdict is Verdict.PASS
    assert reason == f"4,089 tokens are answered, 4,090 are refused: {REFUSAL}"


@pytest.mark.parametrize(
    ("inside", "outside", "verdict", "word"),
    [
        (length(4_089, 400, REFUSAL), length(4_090, 400, REFUSAL), Verdict.FAIL, "should be accepted and are refused"),
        (length(4_089, 200), length(4_090, 200), Verdict.FAIL, "the predicted limit is too low"),
        (length(4_089, None, "Nothing answers."), length(4_090, 400, REFUSAL), Verdict.FAIL, "got no answer"),
        (length(4_089, 500, "Out of memory."), length(4_090, 400, REFUSAL), Verdict.FAIL, "Out of memory."),
        (length(4_089, None, "x", broken_off=True), length(4_090, 400, REFUSAL), Verdict.PASS, "broken off after"),
        # In a stream a refusal comes with status 200.
        (length(4_089, 200), length(4_090, 200, REFUSAL), Verdict.PASS, "are refused"),
    ],
)
def test_the_longest_input_is_judged_on_both_sides(inside, outside, verdict: Verdict, word: str) -> None:  # type: ignore[no-untyped-def]
    found, reason = judge_longest_input(inside, outside)
    assert found is verdict
    assert word in reason


def test_the_servers_own_limit_is_read_from_its_sentences() -> None:
    assert stated_limit(REFUSAL) == 4_090
    other = "The input (262145 tokens) is longer than the model's context length (262144 tokens)."
    assert stated_limit(other) == 262_144
    assert stated_limit("no") is None


def test_acceptance_is_added_up_over_answers_of_old_and_new_servers() -> None:
    new = {"spec_verify_ct": 50, "spec_num_correct_drafts": 75, "spec_num_proposed_drafts": 150}
    old = {"spec_verify_ct": 50, "spec_accepted_drafts": 25, "spec_proposed_drafts": 150, "completion_tokens": 75}
    total = Drafted()
    for meta in (new, old):
        total = with_answer(total, GenerateAnswer(status=200, meta=meta))
    assert total.acceptance_length == 2.0
    assert total.acceptance_rate == pytest.approx(1 / 3)
    bare = with_answer(Drafted(), GenerateAnswer(meta={"spec_verify_ct": 50, "completion_tokens": 150}))
    assert bare.acceptance_length == 3.0


@pytest.mark.parametrize(
    ("drafted", "verdict", "word"),
    [
        (Drafted(steps=100, accepted=0, proposed=300), Verdict.FAIL, "No draft is accepted"),
        (Drafted(steps=100, accepted=80, proposed=100), Verdict.PASS, "Acceptance length 1.80, 80% of the drafts"),
        (Drafted(tokens=100), Verdict.CANNOT_TELL, "tell nothing of drafts"),
    ],
)
def test_speculation_is_judged_by_what_is_accepted_and_told_with_its_cost(
    drafted: Drafted, verdict: Verdict, word: str
) -> None:
    found, reason = judge_speculation(drafted, Cost(gib=1.5, kv_tokens=49_152))
    assert found is verdict
    assert word in reason
    if verdict is not Verdict.CANNOT_TELL:
        assert "it takes 1.50 GiB, room for 49,152 KV tokens" in reason


CONTEXT = PrefixContext(prefix_tokens=8_000, hybrid=True, strategy="extra_buffer")


def test_the_counter_stands_in_where_answers_do_not_tell_cached_tokens() -> None:
    seen = [prefix_seen(GenerateAnswer(status=200, ttft_s=0.1), counted) for counted in (0, 8_000, 8_000)]
    assert judge_prefix(seen, CONTEXT).reason.startswith("works: 8,000 of 8,000 tokens reused")


def test_a_counter_that_disagrees_is_mentioned() -> None:
    seen = [PrefixSeen(cached_tokens=c, ttft_s=0.1, counted=0) for c in (0, 8_000, 8_000)]
    assert "went up by 0, not 16,000" in judge_prefix(seen, CONTEXT).reason


def test_the_recorded_random_weights_accept_no_draft_whatever_the_servers_own_length_says() -> None:
    record = json.loads((MEASURED / "27b-48g-r15-full.json").read_text())
    meta = json.loads(record["long"][0]["body"])["meta_info"]
    # It counts the prefill's token: four tokens in three verifications.
    assert meta["spec_accept_length"] == pytest.approx(4 / 3)
    drafted = with_answer(Drafted(), GenerateAnswer(status=200, meta=meta))
    assert (drafted.acceptance_length, drafted.acceptance_rate) == (1.0, 0.0)
    assert judge_speculation(drafted, Cost())[0] is Verdict.FAIL


def test_the_recorded_refusal_of_an_input_beyond_the_context_names_its_limit() -> None:
    record = json.loads((MEASURED / "27b-48g-r15-full.json").read_text())
    refused = record["long"][1]
    said = json.loads(refused["body"])["error"]["message"]
    seen = length(refused["n"], refused["status"], f"The server answered {refused['status']}: {said}")
    assert (seen.refused, stated_limit(seen.said)) == (True, 262_144)
