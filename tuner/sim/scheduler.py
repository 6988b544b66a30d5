"""The scheduler: admits, prefills in chunks, decodes, retracts; keeps both pools and the counters.

Pure of time and I/O: each ``prefill``/``decode`` says how long it took on the card and what it logs, and
``engine`` plays that in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from tuner.sim.batch_lines import DecodeCount, decode_line, prefill_line
from tuner.sim.cache import NoRoom, PrefixCache
from tuner.sim.faults import Fault, Faults
from tuner.sim.limits import Limits, Refusal
from tuner.sim.requests import Request, RequestKind
from tuner.sim.speed import FIRST_COMPILE_S, SHAPE_COMPILE_S, Speed
from tuner.sim.stats import Stats
from tuner.sim.token_ratio import NewTokenRatio
from tuner.sim.tokens import token_ids


class Work(msgspec.Struct, kw_only=True):
    """A piece of work on the card: recorded seconds, and what follows."""

    seconds: float
    done: Callable[[], str | None]
    new_tokens: int = 0
    #: Longest prompt in the batch.
    prompt_tokens: int = 0


def _mean_factor(requests: Sequence[Request]) -> float:
    return sum(r.factor for r in requests) / len(requests)


class Scheduler:
    """Requests, pools and counters of one server."""

    def __init__(
        self, cache: PrefixCache, limits: Limits, speed: Speed, stats: Stats, faults: Faults, vocabulary: int
    ) -> None:
        self.cache = cache
        self.vocabulary = vocabulary
        self.limits = limits
        self.stats = stats
        self._speed = speed
        self._faults = faults
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._chunked: Request | None = None
        self._prefilling: list[Request] = []
        self._count = DecodeCount()
        self._evicted_before = 0
        #: ``batch_is_full``: nothing more is let in until a request ends.
        self._full = False
        self._reserved = NewTokenRatio(limits.conservativeness)
        #: Lines to log beside those of the batches.
        self.notes: list[str] = []

    # --- entry -----------------------------------------------------------------------------------------------------

    def check_length(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Raises Refusal for what cannot be served."""
        self.limits.check_length(prompt_tokens, max_new_tokens, self.cache.shape.kv_tokens)
        if self.limits.max_queued is not None and len(self.waiting) >= self.limits.max_queued:
            raise Refusal("The request queue is full.", 503)

    def submit(self, request: Request) -> None:
        """Puts a request into the queue."""
        request.factor = self._speed.request_factor()
        self.waiting.append(request)

    def abort(self, request: Request, message: str = "") -> None:
        """Ends a request wherever it is, and gives its room back."""
        if request.finished:
            return
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self._leave(request)
        request.finish("abort", message)
        self.stats.aborted += 1

    @property
    def in_flight(self) -> list[Request]:
        """Requests that run or wait."""
        chunked = [self._chunked] if self._chunked is not None else []
        return [*self.running, *self._prefilling, *chunked, *self.waiting]

    # --- work ------------------------------------------------------------------------------------------------------

    def next_work(self) -> Work | None:
        """What the card does next: prefill goes before decode. None: nothing to do."""
        return self._prefill() or self._decode()

    def _admit(self, room: int) -> list[tuple[Request, int]]:
        """Requests for the next prefill batch with the tokens each computes in it (see ``planner.admission``)."""
        batch: list[tuple[Request, int]] = []
        if self._full and self._chunked is None:
            return batch
        rows = self.limits.max_running - len(self.running) - (1 if self._chunked is not None else 0)
        if self._chunked is not None:
            share = min(room, self._chunked.pending_tokens)
            batch.append((self._chunked, share))
            room -= share
        if self.limits.policy == "lpm" and len(self.waiting) > 1:
            self.waiting.sort(key=lambda r: -self.cache.match(r.packed).tokens)
        while self.waiting:
            # A request in chunks holds a row and is counted in the batch as well.
            if len(batch) >= rows:
                self._full = True
                break
            request = self.waiting[0]
            if room <= 0 or not self._take_room(request, batch):
                break
            self.waiting.pop(0)
            share = min(room, request.pending_tokens)
            batch.append((request, share))
            room -= share
        return batch

    def _take_room(self, request: Request, batch: Sequence[tuple[Request, int]]) -> bool:
        """Gives a request its prompt's KV and its slots; False when there is not enough."""
        cache = self.cache
        match = cache.match(b"" if self._faults.has(Fault.CACHE_OFF) else request.packed)
        cache.lock(match)
        new = len(request.prompt) - match.tokens
        slots = cache.shape.working_slots
        keeps = 1 if cache.hybrid and slots else 0
        if not self._lets_in(request, new, batch) or not cache.can_hold(new, slots + keeps):
            cache.unlock(match)
            return False
        cache.hold(new, slots)
        request.match, request.in_tree = match, match.tokens
        request.computed = request.kept_at = match.tokens
        request.held = new
        if not request.retractions:
            request.cached_tokens = match.tokens
        request.forward_at = request.forward_at or time.time()
        return True

    def _lets_in(self, request: Request, new: int, batch: Sequence[tuple[Request, int]]) -> bool:
        """Whether the KV pool has what ``PrefillAdder.add_one_req`` asks; if not, the batch is full."""
        cache, page = self.cache, self.cache.shape.page_size
        left: float = cache.free_tokens + cache.evictable_tokens
        left -= sum(r.to_come for r in self.running) * self._reserved.now
        # What is prefilled in this pass has its prompt already; the answer counts with the last chunk.
        left -= sum((r.to_come if share == r.pending_tokens else 0) + page for r, share in batch)
        alone = not self.running and not batch
        if alone:
            # The answer is cut to the pool (``max_req_len``), so a request alone always fits.
            return new < left
        if new + request.to_come + page >= left:
            self._full = True
            return False
        return True

    def _prefill(self) -> Work | None:
        queued_before = len(self.waiting)
        batch = self._admit(self.limits.chunk)
        if not batch:
            return None
        new = sum(share for _, share in batch)
        firsts = [r for r, _ in batch if r is not self._chunked]
        cached = sum(r.in_tree for r in firsts)
        context = max(r.computed for r, _ in batch)
        seconds = self._speed.prefill_s(new, context) * _mean_factor([r for r, _ in batch])
        client = any(r.kind is RequestKind.CLIENT for r, _ in batch)
        if client or not self.limits.warmed_up:
            seconds += self._speed.compile_s("first", FIRST_COMPILE_S)
        if client and cached > 0:
            seconds += self._speed.compile_s("prefix", SHAPE_COMPILE_S)
        running_before = len(self.running)
        self._chunked = None
        self._prefilling = [r for r, _ in batch]
        self._evicted()

        def done() -> str | None:
            return self._prefilled(batch, new, cached, seconds, running_before, min(queued_before, len(self.waiting)))

        return Work(seconds=seconds, done=done, new_tokens=new, prompt_tokens=max(len(r.prompt) for r, _ in batch))

    def _prefilled(
        self, batch: list[tuple[Request, int]], new: int, cached: int, seconds: float, running_before: int, queued: int
    ) -> str | None:
        stats, now = self.stats, time.time()
        self._prefilling = []
        alive = [(request, share) for request, share in batch if not request.finished]
        if not self.running or len(alive) < len(batch):
            # An empty running batch is replaced, and a batch that shrank has room again.
            self._full = False
        for request, share in alive:
            start = request.computed
            request.computed += share
            self._keep(request, start, request.computed)
            if request.pending_tokens:
                self._chunked = request
                self._full = False
                stats.stage("chunked_prefill", seconds)
            else:
                request.prefilled_at = now
                stats.stage("prefill_forward", seconds)
                if request.kind is not RequestKind.HEALTH:
                    stats.stage("request_process", 3e-5)
                stats.queue_time.observe((request.forward_at or now) - request.received_at)
                self.running.append(request)
        health = all(r.kind is RequestKind.HEALTH for r, _ in batch)
        graph = self.limits.prefill_graphs and not health
        stats.passes["prefill_cuda_graph" if graph else "prefill_none"] += 1
        stats.realtime_tokens["prefill_compute"] += new
        if cached:
            stats.realtime_tokens["prefill_cache"] += cached
        stats.uncached_prefilled += new
        stats.prefill_busy_us += int(seconds * 1e6)
        self.refresh()
        pending = sum(len(r.prompt) for r in self.waiting) + (self._chunked.pending_tokens if self._chunked else 0)
        line = prefill_line(
            stats.gauges,
            self.cache.shape,
            requests=len(batch),
            new=new,
            cached=cached,
            seconds=seconds,
            running=running_before,
            queued=queued,
            pending=pending,
            graph=graph,
        )
        for request, _ in alive:
            if request in self.running:
                self._give_tokens(request, 1)
        return line

    def _decode(self) -> Work | None:
        if not self.running:
            return None
        context = sum(r.sequence_tokens for r in self.running)
        seconds = self._speed.step_s(len(self.running), context) * _mean_factor(self.running)
        return Work(seconds=seconds, done=self._decoded)

    def _decoded(self) -> str | None:
        limits, stats = self.limits, self.stats
        drafts = max(0, limits.draft_tokens - 1)
        for request in list(self.running):
            if request not in self.running:
                # retracted for the sake of one before it
                continue
            accepted = self._speed.accepted(drafts, limits.acceptance) if drafts else 0
            if drafts:
                request.verify_steps += 1
                request.accepted_drafts += accepted
                request.proposed_drafts += drafts
                stats.verify_calls += 1
            if not self._grow(request, 1 + accepted):
                continue
            self._count.row(self._give_tokens(request, 1 + accepted), accepted)
        stats.passes["decode_cuda_graph" if limits.decode_graphs else "decode_none"] += 1
        self._evicted()
        self._reserved.step()
        if not self._count.step():
            return None
        self._count.told(stats.gauges, drafts)
        self.refresh()
        return decode_line(
            stats.gauges,
            self.cache.shape,
            drafts=drafts,
            running=len(self.running),
            queued=len(self.waiting),
            graph=limits.decode_graphs,
        )

    def _give_tokens(self, request: Request, count: int) -> int:
        now = time.time()
        gap = request.gap(now)
        made = request.emit(count, self.token_of)
        if made:
            self.stats.realtime_tokens["decode"] += made
            if gap is not None and request.kind is RequestKind.CLIENT:
                self.stats.itl.observe(gap / made, made)
        if request.finished:
            self._complete(request)
        return made

    def token_of(self, text: str) -> int:
        """The id of a token that was made."""
        return token_ids([text], self.vocabulary)[0]

    # --- room ------------------------------------------------------------------------------------------------------

    def _grow(self, request: Request, tokens: int) -> bool:
        """Room for tokens to come; retracts the latest requests when there is none. False: it was ``request``."""
        while True:
            try:
                self.cache.hold(tokens)
            except NoRoom:
                last = self.running[-1]
                if last is request and len(self.running) == 1:
                    self._leave(request)
                    self.notes.append(f"retract_decode: aborted last request {request.rid} due to OOM")
                    request.finish("abort", "Out of memory even after retracting all other requests.")
                    self.stats.aborted += 1
                    return False
                self._retract(last)
                if last is request:
                    return False
            else:
                request.held += tokens
                return True

    def _retract(self, request: Request) -> None:
        held = request.held
        self._leave(request)
        before = self._reserved.now
        self._reserved.retracted(self.running)
        self.notes.append(
            f"KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: {held}, "
            f"#new_token_ratio: {before:.4f} -> {self._reserved.now:.4f}"
        )
        self.stats.retracted_requests += 1
        self.stats.retracted_input_tokens += request.prompt_tokens
        self.stats.retracted_output_tokens += len(request.output)
        request.restart()
        self.waiting.insert(0, request)

    def _keep(self, request: Request, start: int, end: int, *, decoding: bool = False) -> None:
        """Puts what is computed into the tree, as far as a state is kept, and runs on from there."""
        if request.kind is RequestKind.HEALTH:
            return
        place = self.cache.keep_places(max(start, request.kept_at), end, decoding=decoding)
        if place is None or place <= request.in_tree:
            return
        match, moved = self.cache.insert(request.prefix(place), place - request.in_tree)
        if match.tokens != place:
            return
        self.cache.lock(match)
        if request.match is not None:
            self.cache.unlock(request.match)
        request.match, request.in_tree, request.kept_at = match, place, place
        request.held -= moved

    def _complete(self, request: Request) -> None:
        end = request.sequence_tokens - 1
        self._keep(request, request.kept_at, end, decoding=True)
        self._leave(request)
        if request.kind is not RequestKind.HEALTH:
            first = request.prefilled_at or request.received_at
            self.stats.finished(
                streaming=request.streaming,
                prompt=request.prompt_tokens,
                cached=request.cached_tokens,
                output=len(request.output),
                ttft_s=first - request.received_at,
                e2e_s=(request.finished_at or first) - request.received_at,
            )

    def _leave(self, request: Request) -> None:
        """Takes a request out of the batch and gives back what it holds."""
        if request in self.running:
            self.running.remove(request)
            self._full = False
        if request is self._chunked:
            self._chunked = None
        if request in self._prefilling:
            self._prefilling.remove(request)
        if request.match is not None:
            self.cache.unlock(request.match)
            self.cache.release(request.held, self.cache.shape.working_slots)
            request.match = None
            request.held = 0

    def _evicted(self) -> None:
        evicted = self.cache.evicted_tokens - self._evicted_before
        if evicted:
            self._evicted_before = self.cache.evicted_tokens
            self.stats.evicted_tokens += evicted
            self.stats.evictions.observe(0.00015)

    # --- views -----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Brings the gauges up to date; SGLang does it at each prefill, decode line, and now and then when idle."""
        gauges = self.stats.gauges
        gauges.running = len(self.running)
        gauges.queued = len(self.waiting)
        gauges.see_pools(self.cache)
        gauges.sequence_tokens = sum(r.sequence_tokens for r in self.running)

    def idle(self) -> None:
        """Nothing runs: counts of requests and the throughput fall to 0, the pools stay as last seen."""
        gauges = self.stats.gauges
        gauges.running = gauges.queued = 0
        gauges.throughput = 0.0
        self._reserved.idle()
