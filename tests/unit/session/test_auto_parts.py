"""Answers, log lines, physics and GPUs as auto reads them."""

from __future__ import annotations

import json

import pytest

from tuner.measure.events import Exchange
from tuner.planner.need import Need
from tuner.recipe.model import Recipe, RecipeError
from tuner.session.auto.exchange import Answered, answered, overlap, told
from tuner.session.auto.fleet import recipes_for
from tuner.session.auto.proof import physics_words

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def event(tokens: int, reason: object = None) -> bytes:
    meta = {"completion_tokens": tokens, "finish_reason": reason}
    return b"data: " + json.dumps({"text": "x", "meta_info": meta}).encode() + b"\n\n"


def streamed(*pieces: tuple[float, bytes], sent: float = 1.0) -> Exchange:
    return Exchange(sent_at_s=sent, seconds=9.0, pieces=((0.1, HEAD), *pieces, (9.0, b"data: [DONE]\n\n")))


def test_an_answer_has_its_first_and_last_token_in_time() -> None:
    read = answered(streamed((2.0, event(1)), (2.5, event(3)), (3.0, event(5, {"type": "length"}))), 5)
    assert read == Answered(first_s=3.0, last_s=4.0, ttft_s=2.0, itl_s=0.25)


@pytest.mark.parametrize(
    ("exchange", "error"),
    [
        (streamed((2.0, event(1)), (3.0, event(2, {"type": "abort", "message": "Out of memory"}))), "Out of memory"),
        (streamed((2.0, b'data: {"error": {"message": "too long"}}\n\n')), "too long"),
        (streamed((2.0, event(3))), "An answer ended after 3 of 5 tokens."),
        (streamed((2.0, b"data: nonsense\n\n")), "An event of the answer is no answer of SGLang."),
        (Exchange(sent_at_s=0, seconds=1, failure="Nothing answers."), "Nothing answers."),
        (
            Exchange(sent_at_s=0, seconds=1, pieces=((0.1, b"HTTP/1.1 400 Bad\r\ncontent-length: 18\r\n\r\n"),
                                                     (0.2, b'{"message": "long"'))),
            "The server answered 400",
        ),
    ],
)  # fmt: skip
def test_what_was_not_served_says_why(exchange: Exchange, error: str) -> None:
    assert error in answered(exchange, 5).error


def test_an_error_without_words_is_no_served_request() -> None:
    assert answered(streamed((2.0, event(1)), (2.5, b'data: {"error": {"code": 500}}\n\n')), 5).error


def test_requests_together_are_those_between_their_first_and_last_token_at_once() -> None:
    one, two = Answered(first_s=1, last_s=5), Answered(first_s=4, last_s=6)
    assert overlap([one, two, Answered(first_s=5.5, last_s=7), Answered(error="no")]) == 2
    assert overlap([]) == 0


def test_the_log_tells_who_ran_together_and_who_was_retracted() -> None:
    prefill = (
        "[2026-11-29 15:52:22] Prefill batch, #new-seq: 1, #new-token: 4096, #cached-token: 0, "
        "full token usage: 0.33, mamba usage: 0.10, #running-req: 2, #queue-req: 0, #pending-token: 0, cuda graph: True"
    )
    retract = "[2026-11-29 15:52:22] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 9"
    seen = told([prefill, retract, "something else"])
    assert (seen.together, seen.retracted) == (3, 2)


@pytest.mark.parametrize(
    ("alone", "wanted", "words"),
    [
        (None, 1.0, "Too few lengths"),
        (6.0, 5.0, "physics, not a flag. Shorter inputs"),
        (6.0, 10.0, "3 at once wait for each other"),
        (6.0, 19.0, "queueing or a setting"),
    ],
)
def test_a_missed_ttft_is_told_apart(alone: float | None, wanted: float, words: str) -> None:
    assert words in physics_words(alone, wanted, 20.0, Need(input_tokens=90_000, agents=3))


def test_each_gpu_has_a_server_of_its_own() -> None:
    recipe = Recipe(flags={"port": 31250, "model_path": "m"}, environment={"CUDA_VISIBLE_DEVICES": "3", "A": "b"})
    one, two = recipes_for(recipe, ("0", "1"))
    assert (one.port, two.port) == (31250, 31251)
    assert two.environment == {"CUDA_VISIBLE_DEVICES": "1", "A": "b"}
    with pytest.raises(RecipeError, match="GPU 0 is named twice"):
        recipes_for(recipe, ("0", "0"))
    with pytest.raises(RecipeError, match="not 2 ports from 65535"):
        recipes_for(Recipe(flags={"port": 65535}), ("0", "1"))
