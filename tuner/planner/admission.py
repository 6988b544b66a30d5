"""Which requests truly run together: what SGLang's scheduler asks of the pools before it lets one in.

``PrefillAdder.add_one_req`` (``managers/schedule_policy.py``), ``_get_new_batch_prefill_raw``,
``get_next_batch_to_run`` and ``get_num_allocatable_reqs`` (``managers/scheduler.py``), read in 0.5.9, 0.5.11, 0.5.12,
0.5.17 and 0.5.23. Pure.
"""

from __future__ import annotations

import math

from tuner.planner.versions import Rules

#: ``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION``: more of an answer than this is never reserved.
CLIP_NEW_TOKENS = 4096
#: ``SGLANG_INIT_NEW_TOKEN_RATIO``: the share of the answers to come that is reserved for requests that run, on a
#: server that was idle. It falls to ``NEW_TOKEN_RATIO_FLOOR`` of itself over ``NEW_TOKEN_RATIO_STEPS`` decode steps.
NEW_TOKEN_RATIO = 0.7
NEW_TOKEN_RATIO_FLOOR = 0.14
NEW_TOKEN_RATIO_STEPS = 600


def rows_needed(agents: int, input_tokens: int, chunk: int, *, counted_twice: bool) -> int:
    """``max_running_requests`` that lets ``agents`` inputs of ``input_tokens``, sent at once, run together.

    One more than the agents where a cut request is ``counted_twice`` (see ``counts_twice``), there are at least three
    agents, and those before the last one do not fit into one chunk. While a cut request is prefilled it holds its row
    of the request pool (``ReqToTokenPool.alloc`` of ``mem_cache/memory_pool.py`` reuses it) and stands in
    ``can_run_list`` too, so ``len(can_run_list) >= get_num_allocatable_reqs`` calls the batch full one request early.
    While chunks follow, ``get_next_batch_to_run`` takes the flag back, as the cut request leaves the batch; with the
    last chunk it stays, and ``batch_is_full`` is then taken back only when a request ends. Two agents are spared: an
    empty running batch is replaced together with its flag. ``chunk``: tokens of a prefill batch; not positive where
    chunking is off.
    """
    cut = 0 < chunk < (agents - 1) * input_tokens
    return agents + 1 if counted_twice and cut and agents > 2 else agents


def counts_twice(rules: Rules, *, pipelined: bool, mixed_chunk: bool) -> bool:
    """Whether ``get_num_allocatable_reqs`` leaves the row of a request in chunks out of what is free.

    From 0.5.12 on it asks ``ReqToTokenPool.available_size`` on every server, before only with pipeline stages; 0.5.23
    adds the rows that the batch holds already (``num_held_rows``). With ``mixed_chunk`` the batch of running requests
    is emptied into each chunk's, and its flag goes with it.
    """
    if mixed_chunk:
        return False
    return rules.chunk_holds_row == "counted" or (pipelined and rules.chunk_holds_row == "pipelined")


def tokens_together(agents: int, input_tokens: int, output_tokens: int, page_size: int = 1, ahead: int = 1) -> int:
    """KV tokens of a pool in which ``agents`` such requests run together to their end, none retracted.

    Two conditions, the larger counts. Each request holds its input and answer in whole pages, with ``ahead`` tokens
    for its next step (``get_alloc_reserve_per_decode``: twice the draft tokens with speculation). And the last one is
    let in while the one before it has its last chunk: then the pool must have more than all inputs, the whole answer
    of these two (clipped) with a page each, and ``NEW_TOKEN_RATIO`` of the answers of the others.
    """
    held = agents * _paged(input_tokens + output_tokens + ahead, page_size)
    answer = min(output_tokens, CLIP_NEW_TOKENS)
    # The input of a running request lies in whole pages, and so does that of the one before.
    let_in = (agents - 1) * _paged(input_tokens, page_size) + input_tokens
    if agents > 1:
        let_in += 2 * (answer + page_size) + math.ceil(NEW_TOKEN_RATIO * answer * (agents - 2))
    else:
        let_in += answer + page_size
    # The comparison is strict.
    return max(held, let_in + 1)


def _paged(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size
