"""One start of a server: what each line of its log means for the facts of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeGuard

from tuner.serverlog.model import BootFacts, DraftFacts, Phase
from tuner.serverlog.patterns import (
    ACCESS,
    EVENTS,
    EXCEPTION,
    HARMLESS,
    LOGGED_REQUEST,
    NOTABLE,
    TRACEBACK,
    TRIGGERS,
)
from tuner.serverlog.rank import Rank, rank_order
from tuner.serverlog.version import VersionGuess

_MAX_NOTABLE = 60
_MAX_RANKS = 512
_NOTABLE_WIDTH = 1_000

_GRAPH_KEYS = {
    "target prefill": "prefill",
    "target decode": "decode",
    "target verify": "target_verify",
    "draft prefill": "draft_prefill",
    "draft decode": "draft_decode",
    "draft extend": "draft_extend",
    "draft verify": "draft_verify",
    "single-CG draft extend": "draft_extend",
    "UNO tree draft": "draft_decode",
    "piecewise": "prefill",
    "draft": "draft_decode",
}
_TIMING = re.compile(r"\b(\w{1,64})=(\d{1,9}(?:\.\d{1,9})?)")
_WITHOUT_DRAFT_MODEL = frozenset({"", "NGRAM", "NONE"})
_ORDER = {phase: i for i, phase in enumerate(Phase)}


class Boot:
    """Takes the lines of one start as they come; memory is bounded."""

    def __init__(self) -> None:
        self.ranks: dict[str, Rank] = {}
        self.shared: dict[str, Any] = {}
        self.arguments: dict[str, str] = {}
        self.timings: dict[str, float] = {}
        self.version = VersionGuess()
        self.reached = Phase.LAUNCHING
        self.fired_up = False
        self.port_open = False
        self.stop_asked = False
        self.stopped = False
        self.dead = False
        self.uncaught = False
        self.in_traceback = False
        self.first_at: str | None = None
        self.ready_at: str | None = None
        self.notable: list[str] = []
        self.notable_seen: set[str] = set()
        #: Kinds of batch lines of which one has come.
        self.batches_seen: set[str] = set()

    def see_time(self, at: str) -> None:
        """A line with a time stamp: a traceback before it is over, and nothing came of it."""
        self.first_at = self.first_at or at
        self.uncaught = self.in_traceback = False

    def see_batch(self, kind: str, text: str) -> None:
        """A batch line; of each kind the first tells of the version."""
        if kind not in self.batches_seen:
            self.batches_seen.add(kind)
            self.version.see(text)

    def see_arguments(self, arguments: dict[str, str], text: str) -> None:
        """The ``server_args=`` line."""
        self.arguments = arguments
        self.version.see(text)

    def see(self, text: str, at: str | None, ranks: str) -> None:
        """Any other line, with its time stamp and the ranks that it names."""
        if not at:
            self._unstamped(text)
        if LOGGED_REQUEST.match(text) or ACCESS.match(text):
            return
        if TRIGGERS.search(text):
            self._dispatch(text, at, ranks)
        self._note(text)

    @property
    def begun(self) -> bool:
        """Whether another ``server_args=`` line would be another start's."""
        return self.reached != Phase.LAUNCHING or self.dead or bool(self.arguments)

    @property
    def facts(self) -> BootFacts:
        """What is known so far."""
        ordered = [self.ranks[name] for name in sorted(self.ranks, key=rank_order)]
        merged: dict[str, Any] = {}
        for rank in ordered:
            for name, value in rank.facts.items():
                merged.setdefault(name, value)
        merged |= self.shared
        draft = next((r.draft for r in ordered if r.draft), None)
        hybrid = merged.pop("hybrid", None)
        if hybrid is None and "max_running_requests" in merged:
            hybrid = "mamba_slots" in merged or "ssm_state_gib" in merged
        return BootFacts(
            **merged,
            hybrid=hybrid,
            version=self.version.version,
            phase=self._phase(),
            reached=self.reached,
            ready=self.fired_up and self.port_open and not self.dead,
            draft=DraftFacts(**draft) if draft else None,
            weights_gib=next((dict(r.weights) for r in ordered if r.weights), {}),
            graphs_gib=next((dict(r.graphs) for r in ordered if r.graphs), {}),
            timings=self._timings_of(ordered),
            server_args=dict(self.arguments),
            stop_asked=self.stop_asked,
            notable=tuple(self.notable),
        )

    def _phase(self) -> Phase:
        if self.dead:
            return Phase.DEAD
        if self.stopped:
            return Phase.STOPPED
        if self.stop_asked:
            return Phase.STOPPING
        if self.uncaught and self.reached != Phase.READY:
            return Phase.DEAD
        return self.reached

    def _timings_of(self, ordered: list[Rank]) -> dict[str, float]:
        timings: dict[str, float] = {}
        seconds = next((r.load_seconds for r in ordered if r.load_seconds is not None), None)
        if seconds is not None:
            timings["load_weight"] = round(seconds, 2)
        for key, value in next((r.graph_seconds for r in ordered if r.graph_seconds), {}).items():
            timings[f"graph_{key}"] = round(value, 2)
        timings |= self.timings
        if self.first_at and self.ready_at:
            since = datetime.fromisoformat(self.ready_at) - datetime.fromisoformat(self.first_at)
            timings["ready"] = max(0.0, since.total_seconds())
        return timings

    def _dispatch(self, text: str, at: str | None, ranks: str) -> None:
        self.version.see(text)
        for name, pattern in EVENTS.items():
            if match := pattern.search(text):
                if name in ("ready", "uvicorn_up") and is_time(at):
                    self.ready_at = at
                _HANDLERS[name](self, match, self._rank(ranks))
                return

    def _unstamped(self, text: str) -> None:
        if TRACEBACK.match(text):
            self.in_traceback = True
        elif self.in_traceback and (match := EXCEPTION.match(text)):
            self.in_traceback = False
            if match["kind"] == "KeyboardInterrupt":
                self.stop_asked = self.stopped = True
            else:
                self.uncaught = True

    def _note(self, text: str) -> None:
        if len(self.notable) >= _MAX_NOTABLE or HARMLESS.search(text):
            return
        if NOTABLE.search(text) or EXCEPTION.match(text):
            clipped = text.strip()[:_NOTABLE_WIDTH]
            key = re.sub(r"\d+", "0", clipped)
            if key not in self.notable_seen:
                self.notable_seen.add(key)
                self.notable.append(clipped)

    def _rank(self, name: str) -> Rank:
        if name not in self.ranks and self.ranks and (not name or len(self.ranks) >= _MAX_RANKS):
            # A line that lost its rank belongs to the ranks there are.
            name = next(iter(self.ranks))
        return self.ranks.setdefault(name, Rank())

    def _advance(self, phase: Phase) -> None:
        if _ORDER[phase] > _ORDER[self.reached]:
            self.reached = phase

    @property
    def _expects_draft(self) -> bool:
        return self.arguments.get("speculative_algorithm", "").upper() not in _WITHOUT_DRAFT_MODEL

    def _load_begin(self, match: re.Match[str], rank: Rank) -> None:
        rank.first("free_before_gib", float(match["avail_gb"]))
        self._advance(Phase.LOADING)

    def _load_end(self, match: re.Match[str], rank: Rank) -> None:
        rank.loads_ended += 1
        usage = float(match["usage_gb"])
        part = "target" if rank.loads_ended == 1 else "draft"
        # Several draft layers load one by one; together they are the draft.
        rank.weights[part] = round(rank.weights.get(part, 0.0) + usage, 2)
        if part == "draft":
            rank.draft["weights_gib"] = rank.weights[part]
            if match["model"]:
                rank.draft.setdefault("model_class", match["model"])
        elif match["model"]:
            rank.first("model_class", match["model"])
        if match["avail_gb"] and not rank.pools_seen:
            rank.facts["free_after_gib"] = float(match["avail_gb"])
        if match["elapsed_s"]:
            rank.load_seconds = (rank.load_seconds or 0.0) + float(match["elapsed_s"])
        self._advance(Phase.LOADING)
        if part == "draft" or not self._expects_draft:
            self._advance(Phase.SIZING)

    def _kv_dtype(self, match: re.Match[str], rank: Rank) -> None:
        rank.first("kv_dtype", match["dtype"].removeprefix("torch."))

    def _mamba(self, match: re.Match[str], rank: Rank) -> None:
        rank.pools_seen = True
        rank.first("mamba_slots", _count(match["slots"]))
        rank.first("conv_state_gib", float(match["conv_gb"]))
        rank.first("ssm_state_gib", float(match["ssm_gb"]))
        rank.first("spec_state_gib", _gib(match["spec_ssm_gb"]))
        rank.first("spec_conv_gib", _gib(match["spec_conv_gb"]))
        self._advance(Phase.SIZING)

    def _kv(self, match: re.Match[str], rank: Rank) -> None:
        rank.pools_seen = True
        self._advance(Phase.SIZING)
        if rank.unified:
            # Views into the unified buffer: their token count and 0.00 GB say nothing of the pools.
            return
        tokens, gib = int(match["tokens"]), _size(match)
        label = (match["label"] or "").strip().lower()
        if "swa" in label:
            return
        if rank.pools_ended:
            rank.draft.setdefault("kv_tokens", tokens)
            if gib is not None:
                rank.draft["kv_gib"] = round(rank.draft.get("kv_gib", 0.0) + gib, 2)
            return
        rank.first("kv_tokens", tokens)
        rank.first("kv_gib", gib)
        if match["dtype"]:
            rank.first("kv_dtype", match["dtype"].removeprefix("torch."))

    def _post_capture(self, match: re.Match[str], rank: Rank) -> None:
        tokens, gib = int(match["tokens"]), float(match["kv_gb"])
        if match["draft"]:
            rank.draft |= {"kv_tokens": tokens, "kv_gib": gib}
        else:
            rank.facts |= {"kv_tokens": tokens, "kv_gib": gib, "kv_dtype": match["dtype"].removeprefix("torch.")}

    def _unified_begin(self, _match: re.Match[str], rank: Rank) -> None:
        rank.unified = True

    def _unified(self, match: re.Match[str], rank: Rank) -> None:
        rank.unified = rank.pools_seen = True
        rank.facts["kv_tokens"] = int(match["tokens"])
        rank.facts["mamba_slots"] = int(match["slots"])

    def _pool_end(self, match: re.Match[str], rank: Rank) -> None:
        rank.pools_seen = True
        rank.pools_ended += 1
        name = "free_after_pools_gib" if rank.pools_ended == 1 else "free_after_draft_pools_gib"
        rank.first(name, float(match["avail_gb"]))
        self._advance(Phase.SIZING)

    def _capped(self, match: re.Match[str], rank: Rank) -> None:
        rank.first("requests_capped_to", int(match["requests"]))
        groups = match.groupdict()
        if groups.get("per_request"):
            rank.first("slots_per_request", int(groups["per_request"]))
            rank.first("mamba_slots", int(groups["slots"]))

    def _capture_begin(self, match: re.Match[str], rank: Rank) -> None:
        rank.first("free_before_graphs_gib", float(match["avail_gb"]))
        self._advance(Phase.CAPTURING)

    def _capture_end(self, match: re.Match[str], rank: Rank) -> None:
        key = _GRAPH_KEYS.get(match["name"] or "")
        if key is None:
            # Up to 0.5.13 the line does not say which graph; with speculation the target verifies.
            key = "target_verify" if self._expects_draft or "spec_state_gib" in rank.facts else "decode"
        if match["usage_gb"]:
            rank.graphs[key] = round(rank.graphs.get(key, 0.0) + float(match["usage_gb"]), 2)
        rank.graph_seconds[key] = rank.graph_seconds.get(key, 0.0) + float(match["elapsed_s"])
        self._advance(Phase.CAPTURING)

    def _tree(self, match: re.Match[str], _rank: Rank) -> None:
        self.shared.setdefault("tree_cache", match["impl"])
        if match["hybrid"]:
            self.shared.setdefault("hybrid", match["hybrid"] == "True")

    def _summary(self, match: re.Match[str], _rank: Rank) -> None:
        shared = self.shared
        for name, value in {
            "kv_tokens": _count(match["tokens"]),
            "chunked_prefill_size": _count(match["chunk"]),
            "max_prefill_tokens": _count(match["prefill"]),
            "max_running_requests": _count(match["requests"]),
            "context_len": _count(match["context"]),
            "available_gib": _gib(match["avail_gb"]),
        }.items():
            if value is not None:
                shared.setdefault(name, value)
        self._advance(Phase.BINDING)

    def _timings(self, match: re.Match[str], _rank: Rank) -> None:
        head, brace, rest = match["fields"].partition("cuda_graph={")
        graphs, _, tail = rest.partition("}") if brace else ("", "", "")
        for name, seconds in _TIMING.findall(f"{head} {tail}"):
            self.timings.setdefault(name, float(seconds))
        for name, seconds in _TIMING.findall(graphs):
            if float(seconds) > 0:
                self.timings.setdefault(f"graph_{name}", float(seconds))

    def _server_process(self, _match: re.Match[str], _rank: Rank) -> None:
        self._advance(Phase.BINDING)

    def _uvicorn_up(self, match: re.Match[str], _rank: Rank) -> None:
        self.shared.setdefault("http_url", match["url"])
        self.port_open = True
        self._advance(Phase.READY if self.fired_up else Phase.WARMING)

    def _ready(self, _match: re.Match[str], _rank: Rank) -> None:
        self.fired_up = True
        if self.port_open:
            self._advance(Phase.READY)

    def _stop_asked(self, _match: re.Match[str], _rank: Rank) -> None:
        if not self.dead:
            self.stop_asked = True

    def _stopped(self, _match: re.Match[str], _rank: Rank) -> None:
        # This line also ends every crash: only after a wanted stop is it one.
        if self.stop_asked:
            self.stopped = True
        else:
            self.dead = True

    def _fatal(self, _match: re.Match[str], _rank: Rank) -> None:
        if not self.stop_asked:
            self.dead = True

    def _usage_error(self, match: re.Match[str], rank: Rank) -> None:
        if self.reached == Phase.LAUNCHING:
            self._fatal(match, rank)


_HANDLERS: dict[str, Callable[[Boot, re.Match[str], Rank], None]] = {
    "load_begin": Boot._load_begin,
    "load_end": Boot._load_end,
    "kv_dtype": Boot._kv_dtype,
    "mamba": Boot._mamba,
    "kv": Boot._kv,
    "post_capture": Boot._post_capture,
    "unified": Boot._unified,
    "unified_begin": Boot._unified_begin,
    "pool_end": Boot._pool_end,
    "capped": Boot._capped,
    "reduced": Boot._capped,
    "capture_begin": Boot._capture_begin,
    "capture_end": Boot._capture_end,
    "tree": Boot._tree,
    "summary": Boot._summary,
    "timings": Boot._timings,
    "server_process": Boot._server_process,
    "uvicorn_up": Boot._uvicorn_up,
    "ready": Boot._ready,
    "stop_asked": Boot._stop_asked,
    "stopped": Boot._stopped,
    "fatal": Boot._fatal,
    "usage_error": Boot._usage_error,
}


def is_time(at: str | None) -> TypeGuard[str]:
    """Whether a time stamp is one that can be counted with."""
    if not at:
        return False
    try:
        datetime.fromisoformat(at)
    except ValueError:
        return False
    return True


def _count(text: str | None) -> int | None:
    return int(text) if text and text != "None" else None


def _gib(text: str | None) -> float | None:
    return float(text) if text else None


def _size(match: re.Match[str]) -> float | None:
    if match["kv_gb"]:
        return float(match["kv_gb"])
    if match["k_gb"]:
        return round(float(match["k_gb"]) + float(match["v_gb"] or 0.0), 2)
    return None
