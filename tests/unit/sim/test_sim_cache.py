"""The prefix cache of the stand-in behaves like the recorded ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.sim.cache import CacheShape, Keeping, Match, NoRoom, PrefixCache, pack


class _Request:
    """Runs one prompt through the cache as the scheduler does."""

    def __init__(self, cache: PrefixCache, prompt: list[int], chunk: int = 4096) -> None:
        self.cache, self.prompt, self.chunk = cache, prompt, chunk
        self.match: Match = cache.match(pack(prompt))
        self.cached = self.match.tokens
        cache.lock(self.match)
        self.in_tree = self.kept = self.match.tokens
        self.held = len(prompt) - self.match.tokens
        try:
            cache.hold(self.held, cache.shape.working_slots)
        except NoRoom:
            cache.unlock(self.match)
            raise

    def prefill(self) -> None:
        start = self.match.tokens
        while start < len(self.prompt):
            end = min(len(self.prompt), start + self.chunk)
            self._keep(self.prompt, max(start, self.kept), end, decoding=False)
            start = end

    def finish(self, output: list[int]) -> None:
        self.cache.hold(len(output))
        self.held += len(output)
        tokens = [*self.prompt, *output]
        self._keep(tokens, self.kept, len(tokens) - 1, decoding=True)
        self.cache.unlock(self.match)
        self.cache.release(self.held, self.cache.shape.working_slots)

    def _keep(self, tokens: list[int], start: int, end: int, *, decoding: bool) -> None:
        place = self.cache.keep_places(start, end, decoding=decoding)
        if place is None or place <= self.in_tree:
            return
        match, moved = self.cache.insert(pack(tokens[:place]), place - self.in_tree)
        if match.tokens != place:
            return
        self.cache.lock(match)
        self.cache.unlock(self.match)
        self.match, self.in_tree, self.kept = match, place, place
        self.held -= moved


def _run(cache: PrefixCache, prompt: list[int], output: int = 8, chunk: int = 4096) -> int:
    request = _Request(cache, prompt, chunk)
    request.prefill()
    request.finish([900_000 + n for n in range(output)])
    return request.cached


def _cache(keeping: Keeping, *, slots: int = 57, kv_tokens: int = 262_294, page_size: int = 1) -> PrefixCache:
    return PrefixCache(CacheShape(keeping=keeping, kv_tokens=kv_tokens, slots=slots, page_size=page_size))


PREFIX = list(range(10_000, 18_000))


def test_three_tails_with_an_extra_buffer_reuse_the_prefix_from_the_second_on() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER)
    assert [_run(cache, [*PREFIX, tail, 1, 2]) for tail in (1, 2, 3)] == [0, 8000, 8000]


def test_the_reused_length_lies_on_the_grid_of_64_tokens() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER)
    prefix = PREFIX[:6000]
    assert [_run(cache, [*prefix, tail, 1, 2], chunk=8192) for tail in (1, 2, 3)] == [0, 5952, 5952]


def test_a_larger_page_makes_the_grid_coarser() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER, page_size=256)
    prefix = PREFIX[:6000]
    assert [_run(cache, [*prefix, *range(tail, tail + 30)], chunk=8192) for tail in (1, 500)] == [0, 5888]


def test_a_prefix_that_ends_between_chunk_places_is_reused_up_to_the_last_place_before_it() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER)
    _run(cache, [*PREFIX[:6000], *range(1, 3000)])
    assert _run(cache, [*PREFIX[:6000], *range(5000, 8000)]) == 4096


def test_without_an_extra_buffer_a_prefix_inside_one_chunk_is_never_reused() -> None:
    cache = _cache(Keeping.NO_BUFFER, slots=2725, kv_tokens=9_525_880)
    assert [_run(cache, [*PREFIX[:6000], tail, 1, 2], chunk=8192) for tail in (1, 2, 3)] == [0, 0, 0]


def test_without_an_extra_buffer_a_long_prefix_is_reused_up_to_a_chunk_end() -> None:
    cache = _cache(Keeping.NO_BUFFER)
    assert [_run(cache, [*PREFIX, tail, 1, 2], chunk=2048) for tail in (1, 2)] == [0, 6144]


def test_without_an_extra_buffer_a_conversation_that_goes_on_is_reused() -> None:
    cache = _cache(Keeping.NO_BUFFER)
    prompt = PREFIX[:100]
    _run(cache, prompt, output=8)
    answered = [*prompt, *(900_000 + n for n in range(7))]
    assert _run(cache, [*answered, 5, 6, 7]) == 107


def test_a_plain_model_reuses_any_common_prefix() -> None:
    cache = _cache(Keeping.PLAIN, slots=0)
    assert [_run(cache, [*PREFIX[:6000], tail, 1, 2]) for tail in (1, 2, 3)] == [0, 6000, 6000]


def test_the_last_token_of_a_repeated_prompt_is_computed_again() -> None:
    cache = _cache(Keeping.PLAIN, slots=0)
    _run(cache, PREFIX)
    assert _run(cache, PREFIX) == len(PREFIX) - 1


def test_a_cache_that_is_off_never_hits() -> None:
    cache = _cache(Keeping.OFF, slots=3)
    assert [_run(cache, PREFIX) for _ in range(2)] == [0, 0]


def test_a_short_prompt_leaves_no_state_behind() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER)
    _run(cache, PREFIX[:25])
    assert cache.evictable_slots == 0


def test_running_requests_hold_as_many_slots_as_recorded() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER)
    requests = [_Request(cache, list(range(n * 1000, n * 1000 + 512))) for n in range(1, 4)]
    for request in requests:
        request.prefill()
    assert cache.used_slots == 12
    short = _Request(_cache(Keeping.EXTRA_BUFFER), PREFIX[:25])
    short.prefill()
    assert short.cache.used_slots == 3


def test_the_recorded_round_leaves_the_recorded_pools() -> None:
    """r15: three tails, 24 prompts of 512 tokens, a chat of 110 tokens, then one of 88,165 in its last chunk."""
    cache = _cache(Keeping.EXTRA_BUFFER)
    _run(cache, list(range(1, 111)), output=64)
    for tail in (1, 2, 3):
        _run(cache, [*PREFIX, tail, 1, 2])
    for n in range(24):
        _run(cache, [100_000 + n * 1000 + i for i in range(512)], output=96)
    long = _Request(cache, [500_000 + i for i in range(88_165)])
    long.prefill()
    assert (cache.used_slots, cache.evictable_slots, cache.free_slots) == (4, 48, 5)
    assert cache.used_tokens == 88_165
    assert cache.evictable_tokens == 8000 + 24 * 512 + 64


def test_states_of_the_oldest_conversations_go_first_when_slots_run_out() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER, slots=10)
    prompts = [[n * 10_000 + i for i in range(200)] for n in range(1, 9)]
    for prompt in prompts:
        _run(cache, prompt)
    hits = [_run(cache, [*prompt, 7]) for prompt in reversed(prompts)]
    assert hits[:6] == [192] * 6
    assert hits[-1] == 0
    assert cache.evicted_states > 0


def test_kv_of_the_oldest_conversations_goes_first_when_tokens_run_out() -> None:
    cache = _cache(Keeping.PLAIN, slots=0, kv_tokens=1000)
    _run(cache, list(range(400)), output=2)
    _run(cache, list(range(5000, 5400)), output=2)
    _run(cache, list(range(9000, 9400)), output=2)
    assert _run(cache, [*range(400), 1], output=2) == 0
    assert cache.evicted_tokens >= 400


def test_a_running_prefix_is_not_evicted() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER, slots=8, kv_tokens=2000)
    running = _Request(cache, list(range(640)))
    running.prefill()
    for n in range(1, 6):
        _run(cache, [n * 10_000 + i for i in range(500)])
    assert cache.match(pack([*range(640), 1])).tokens == 640


def test_flush_empties_an_idle_cache_and_refuses_a_busy_one() -> None:
    cache = _cache(Keeping.EXTRA_BUFFER)
    _run(cache, PREFIX)
    running = _Request(cache, PREFIX)
    assert not cache.flush()
    running.prefill()
    running.finish([1])
    assert cache.flush()
    assert cache.free_tokens == cache.shape.kv_tokens
    assert _run(cache, PREFIX) == 0


_prompts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 400), st.integers(0, 3), st.integers(0, 200), st.integers(0, 40)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(
    prompts=_prompts,
    keeping=st.sampled_from(list(Keeping)),
    page=st.sampled_from([1, 16, 64]),
    slots=st.integers(4, 20),
    chunk=st.sampled_from([64, 100, 512]),
)
def test_no_token_and_no_slot_is_ever_lost(
    prompts: list[tuple[int, int, int, int, int]], keeping: Keeping, page: int, slots: int, chunk: int
) -> None:
    plain = keeping is Keeping.PLAIN
    cache = _cache(keeping, slots=0 if plain else slots, kv_tokens=1500, page_size=page)
    for family, shared, tail, length, output in prompts:
        prompt = [family * 10_000 + i for i in range(shared)] + [tail * 1_000_000 + i + 1 for i in range(length)]
        try:
            cached = _run(cache, prompt, output=output, chunk=chunk)
        except NoRoom:
            break
        assert 0 <= cached < len(prompt)
        assert cache.used_tokens == 0
        assert cache.used_slots == 0
        assert cache.free_tokens >= 0
        assert cache.free_slots >= 0
        assert cache.free_tokens + cache.evictable_tokens == 1500
        assert cache.free_slots + cache.evictable_slots == cache.shape.slots
