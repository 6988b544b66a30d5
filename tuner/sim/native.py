"""SGLang's own ``/generate`` format."""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.sim.answers import Piece, babble
from tuner.sim.chat import BadRequest
from tuner.sim.faults import Fault, Faults
from tuner.sim.requests import Request
from tuner.sim.tokens import pieces, token_ids

#: New tokens when a request does not say how many.
DEFAULT_NEW_TOKENS = 128


class GenerateBody(msgspec.Struct, kw_only=True):
    """The fields of a ``/generate`` body that the stand-in looks at."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Any] | None = None
    stream: bool = False
    rid: str | None = None


def read_generate(raw: bytes) -> GenerateBody:
    """Bytes to a body. Raises BadRequest."""
    try:
        body = msgspec.json.decode(raw, type=GenerateBody)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is no generate request: {error}") from None
    if (body.text is None) == (body.input_ids is None):
        raise BadRequest("Either text, input_ids or input_embeds should be provided.")
    if body.input_ids is not None and any(not 0 <= token < 2**32 for token in body.input_ids):
        raise BadRequest("input_ids hold a token that no vocabulary has.")
    if body.text == "" or body.input_ids == []:
        raise BadRequest("The input is empty.")
    return body


def new_tokens(body: GenerateBody) -> int:
    """``max_new_tokens`` as asked. Raises BadRequest."""
    asked = (body.sampling_params or {}).get("max_new_tokens", DEFAULT_NEW_TOKENS)
    if not isinstance(asked, int) or asked < 0:
        raise BadRequest(f"max_new_tokens must be at least 0, got {asked}.")
    return max(1, asked)


def prompt_ids(body: GenerateBody, vocabulary: int) -> list[int]:
    """Token ids of the prompt."""
    if body.input_ids is not None:
        return body.input_ids
    return token_ids(pieces(body.text or ""), vocabulary)


def planned(prompt: bytes, count: int, faults: Faults, cached_tokens: int) -> list[Piece]:
    """The tokens of an answer: the same for the same prompt, hot or cold, unless a fault says otherwise."""
    spoilt = cached_tokens and faults.has(Fault.HOT_ANSWER_DIFFERS)
    return babble(prompt[-4096:] + (b"hot" if spoilt else b""), count)


def answer(request: Request, *, speculative: bool) -> dict[str, Any]:
    """The answer so far, with ``meta_info`` as recorded."""
    output = len(request.output)
    finished = request.finished
    reason: dict[str, Any] | None = None
    if finished:
        reason = {"type": request.finish_reason}
        if request.finish_reason == "length":
            reason["length"] = output
        if request.finish_reason == "abort":
            reason |= {"message": request.abort_message, "status_code": 503, "err_type": "InternalServerError"}
    cached = request.cached_tokens
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": reason,
        "prompt_tokens": request.prompt_tokens,
        "weight_version": "default",
        "num_retractions": request.retractions,
        "forward_entry_time": request.forward_at,
        "prefill_finished_time": request.prefilled_at,
        "queue_time": (request.forward_at or request.received_at) - request.received_at,
        "reasoning_tokens": 0,
        "completion_tokens": output,
        "cached_tokens": cached,
        "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
        "dp_rank": None,
        "request_received_ts": request.received_at,
        "response_sent_to_client_ts": request.prefilled_at,
    }
    if finished and request.finished_at is not None:
        meta["e2e_latency"] = request.finished_at - request.received_at
        meta["request_finished_ts"] = request.finished_at
        if speculative:
            steps = max(1, request.verify_steps)
            meta |= {
                "spec_accept_rate": request.accepted_drafts / max(1, request.proposed_drafts),
                "spec_accept_length": output / steps,
                "spec_num_correct_drafts": request.accepted_drafts,
                "spec_num_proposed_drafts": request.proposed_drafts,
                "spec_verify_ct": request.verify_steps,
                "spec_accepted_drafts": request.accepted_drafts,
                "spec_proposed_drafts": request.proposed_drafts,
            }
    return {
        "text": "".join(piece.text for piece in request.output),
        "output_ids": list(request.output_ids),
        "meta_info": meta,
    }
