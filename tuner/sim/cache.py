"""The hybrid prefix cache of SGLang 0.5.17 as a pure model: which prefix a request can reuse, and what is evicted.

It behaves like ``mem_cache/unified_radix_cache.py`` as recorded: KV is shared token by token, but on a hybrid model a
prefix counts only up to a place where the state was kept. With an extra buffer these places lie on a grid of
``max(64, page size)`` tokens inside each prefill chunk; without one they are the ends of chunks, prompts and requests.
A plain Transformer has no states, and any common prefix counts (on the grid of the page size).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

#: Tokens between two places where an extra buffer may keep a state (FLA chunk; ``mamba_cache_chunk_size``).
STATE_GRID = 64
_TOKEN_BYTES = 4


class Keeping(StrEnum):
    """Where states are kept."""

    PLAIN = "plain"
    EXTRA_BUFFER = "extra_buffer"
    NO_BUFFER = "no_buffer"
    OFF = "off"


class CacheShape(msgspec.Struct, frozen=True, kw_only=True):
    """Pool sizes in tokens and slots. ``slots`` is 0 for a plain Transformer."""

    keeping: Keeping
    kv_tokens: int
    slots: int = 0
    page_size: int = 1
    track_interval: int = 256

    @property
    def grid(self) -> int:
        """Tokens between two places where a state may be kept with an extra buffer."""
        return max(STATE_GRID, self.page_size)

    @property
    def working_slots(self) -> int:
        """Slots a running request holds beside the state in the tree: its own, and two to write snapshots into."""
        if self.keeping is Keeping.PLAIN or not self.slots:
            return 0
        return 3 if self.keeping is Keeping.EXTRA_BUFFER else 1


class _Node:
    """A run of tokens; ``state`` says whether the state at its end is kept."""

    __slots__ = ("children", "key", "kv_locks", "last_use", "parent", "state", "state_locks")

    def __init__(self, key: bytes, parent: _Node | None) -> None:
        self.key = key
        self.parent = parent
        self.children: dict[bytes, _Node] = {}
        self.state = False
        self.kv_locks = 0
        self.state_locks = 0
        self.last_use = 0

    @property
    def tokens(self) -> int:
        return len(self.key) // _TOKEN_BYTES


class Match(msgspec.Struct, frozen=True):
    """The prefix a request reuses: its length in tokens, and the place in the tree it holds."""

    tokens: int
    node: object


class NoRoom(Exception):
    """Neither free nor evictable room is left in one of the pools."""


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as bytes of four each, which compare at memory speed."""
    return array("I", tokens).tobytes()


def _common(a: bytes, b: bytes) -> int:
    """Length of the common prefix in tokens."""
    end = min(len(a), len(b)) // _TOKEN_BYTES
    if a[: end * _TOKEN_BYTES] == b[: end * _TOKEN_BYTES]:
        return end
    low, high = 0, end
    while low + 1 < high:
        middle = (low + high) // 2
        if a[low * _TOKEN_BYTES : middle * _TOKEN_BYTES] == b[low * _TOKEN_BYTES : middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle
    return low


class PrefixCache:
    """Both pools and the tree over them. Every token and slot is free, in the tree, or held by a running request."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self._root = _Node(b"", None)
        self._clock = 0
        self._tree_tokens = 0
        self._tree_states = 0
        self._held_tokens = 0
        self._held_slots = 0
        self.evicted_tokens = 0
        self.evicted_states = 0

    @property
    def hybrid(self) -> bool:
        """Whether states decide what can be reused."""
        return self.shape.slots > 0

    @property
    def free_tokens(self) -> int:
        """KV tokens neither in the tree nor held by a request."""
        return self.shape.kv_tokens - self._tree_tokens - self._held_tokens

    @property
    def evictable_tokens(self) -> int:
        """KV tokens of the tree that no running request uses."""
        return sum(n.tokens for n in self._nodes() if not n.kv_locks)

    @property
    def used_tokens(self) -> int:
        """KV tokens of running requests, shared ones counted once."""
        return self.shape.kv_tokens - self.free_tokens - self.evictable_tokens

    @property
    def free_slots(self) -> int:
        """State slots neither in the tree nor held by a request."""
        return self.shape.slots - self._tree_states - self._held_slots

    @property
    def evictable_slots(self) -> int:
        """State slots of the tree that no running request uses."""
        return sum(1 for n in self._nodes() if n.state and not n.state_locks)

    @property
    def used_slots(self) -> int:
        """State slots of running requests."""
        return self.shape.slots - self.free_slots - self.evictable_slots

    def _nodes(self) -> Iterator[_Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _first(self, rest: bytes) -> bytes:
        return rest[: _TOKEN_BYTES * self.shape.page_size]

    def _touch(self, node: _Node | None) -> None:
        self._clock += 1
        while node is not None and node is not self._root:
            node.last_use = self._clock
            node = node.parent

    def match(self, tokens: bytes) -> Match:
        """The longest prefix of ``tokens`` that can be reused; the last token is always computed."""
        if self.shape.keeping is Keeping.OFF:
            return Match(0, self._root)
        limit = len(tokens) // _TOKEN_BYTES - 1
        limit -= limit % self.shape.page_size
        node, reached = self._root, 0
        best, best_tokens = self._root, 0
        while reached < limit:
            rest = tokens[reached * _TOKEN_BYTES : limit * _TOKEN_BYTES]
            child = node.children.get(self._first(rest))
            if child is None:
                break
            common = _common(child.key, rest)
            common -= common % self.shape.page_size
            if common < child.tokens:
                if not self.hybrid and common:
                    child = self._split(child, common)
                    best, best_tokens = child, reached + common
                break
            node, reached = child, reached + common
            if not self.hybrid or node.state:
                best, best_tokens = node, reached
        self._touch(best)
        return Match(best_tokens, best)

    def _split(self, node: _Node, at: int) -> _Node:
        """Cuts ``node`` after ``at`` tokens; the new upper part has no state, and the locks of the lower one."""
        assert node.parent is not None
        upper = _Node(node.key[: at * _TOKEN_BYTES], node.parent)
        upper.last_use = node.last_use
        upper.kv_locks = node.kv_locks
        node.parent.children[self._first(node.key)] = upper
        node.key = node.key[at * _TOKEN_BYTES :]
        node.parent = upper
        upper.children[self._first(node.key)] = node
        return upper

    def lock(self, match: Match) -> None:
        """Keeps the prefix (all its KV, the state at its end) while a request runs on it."""
        node = match.node
        assert isinstance(node, _Node)
        if node is not self._root:
            node.state_locks += 1
        self._lock_path(node, +1)

    def unlock(self, match: Match) -> None:
        """Gives a locked prefix back to eviction."""
        node = match.node
        assert isinstance(node, _Node)
        if node is not self._root:
            node.state_locks -= 1
        self._lock_path(node, -1)

    def _lock_path(self, node: _Node | None, change: int) -> None:
        while node is not None and node is not self._root:
            node.kv_locks += change
            node = node.parent

    def hold(self, tokens: int, slots: int = 0) -> None:
        """Takes room for a running request, evicting what is needed. Raises NoRoom and takes nothing."""
        if tokens > self.free_tokens:
            self._evict_tokens(tokens - self.free_tokens)
        if slots > self.free_slots:
            self._evict_states(slots - self.free_slots)
        if tokens > self.free_tokens or slots > self.free_slots:
            raise NoRoom
        self._held_tokens += tokens
        self._held_slots += slots

    def release(self, tokens: int, slots: int = 0) -> None:
        """Gives room of a request back."""
        self._held_tokens -= tokens
        self._held_slots -= slots

    def can_hold(self, tokens: int, slots: int = 0) -> bool:
        """Whether ``hold`` would find the room."""
        return tokens <= self.free_tokens + self.evictable_tokens and slots <= self.free_slots + self.evictable_slots

    def keep_places(self, start: int, end: int, *, decoding: bool = False) -> int | None:
        """Where a state is kept after computing tokens ``start`` to ``end`` of a sequence; None: nowhere.

        ``decoding`` says that ``end`` is the end of a request rather than of a prefill chunk.
        """
        keeping = self.shape.keeping
        if keeping is Keeping.OFF:
            return None
        if keeping is Keeping.EXTRA_BUFFER and self.hybrid:
            grid = self.shape.track_interval if decoding else self.shape.grid
            place = end - end % grid
            return place if place > start else None
        place = end - end % self.shape.page_size
        return place if place > 0 else None

    def insert(self, tokens: bytes, held: int) -> tuple[Match, int]:
        """Puts a computed sequence into the tree, with the state at its end on a hybrid.

        ``held`` tokens of it are held by the request; they become the tree's where the tree lacked them, and free
        where it had them. Returns the place, and how many tokens the request does not hold any more. When no slot
        can be had for the state nothing is inserted (the match has 0 tokens).
        """
        node, reached = self._root, 0
        total = len(tokens) // _TOKEN_BYTES
        while reached < total:
            rest = tokens[reached * _TOKEN_BYTES :]
            child = node.children.get(self._first(rest))
            if child is None:
                break
            common = _common(child.key, rest)
            common -= common % self.shape.page_size
            if common == 0:
                break
            if common < child.tokens:
                child = self._split(child, common)
            node, reached = child, reached + common
        new_state = self.hybrid and (reached < total or not node.state)
        if new_state and self.free_slots < 1:
            self._lock_path(node, +1)
            self._evict_states(1)
            self._lock_path(node, -1)
            if self.free_slots < 1:
                return Match(0, self._root), 0
        if reached < total:
            leaf = _Node(tokens[reached * _TOKEN_BYTES :], node)
            node.children[self._first(leaf.key)] = leaf
            node = leaf
            self._tree_tokens += leaf.tokens
        if new_state:
            node.state = True
            self._tree_states += 1
        self._held_tokens -= held
        self._touch(node)
        return Match(total, node), held

    def _evict_tokens(self, wanted: int) -> None:
        """Drops leaves, least recently used first, with their states."""
        freed = 0
        while freed < wanted:
            leaves = [n for n in self._nodes() if not n.children and not n.kv_locks]
            if not leaves:
                return
            freed += self._drop(min(leaves, key=lambda n: n.last_use))

    def _evict_states(self, wanted: int) -> None:
        """Drops states, least recently used first; a leaf without its state is of no use and goes with its KV."""
        for _ in range(wanted):
            kept = [n for n in self._nodes() if n.state and not n.state_locks and (n.children or not n.kv_locks)]
            if not kept:
                return
            node = min(kept, key=lambda n: n.last_use)
            if node.children:
                node.state = False
                self._tree_states -= 1
                self.evicted_states += 1
            else:
                self._drop(node)

    def _drop(self, node: _Node) -> int:
        """Removes a leaf, and parents that become leaves without a state. Returns the tokens freed."""
        freed = 0
        while node is not self._root and not node.children and not node.kv_locks:
            parent = node.parent
            assert parent is not None
            del parent.children[self._first(node.key)]
            freed += node.tokens
            self._tree_tokens -= node.tokens
            self.evicted_tokens += node.tokens
            if node.state:
                self._tree_states -= 1
                self.evicted_states += 1
            node = parent
            if node.state or not self.hybrid:
                break
        return freed

    def flush(self) -> bool:
        """Empties the tree; False (and nothing done) while requests run."""
        if self._held_tokens or self._held_slots:
            return False
        self._root = _Node(b"", None)
        self._tree_tokens = self._tree_states = 0
        return True
