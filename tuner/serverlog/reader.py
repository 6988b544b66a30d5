"""A server's output, read as it comes, into the facts of its start."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tuner.serverlog.arguments import is_echo, read_arguments
from tuner.serverlog.batch import batch_line, read_batch
from tuner.serverlog.model import BatchLine, BootFacts, DraftFacts, Phase, Record
from tuner.serverlog.patterns import EVENTS, EXCEPTION, HARMLESS, NOTABLE, PROGRESS, TRACEBACK, TRIGGERS
from tuner.serverlog.quiet import BATCH_MARK, FIRST_OF, FIRST_STAMP, RUN
from tuner.serverlog.records import LineCutter, line_records
from tuner.serverlog.version import VersionGuess

_MAX_BATCH_LINES = 10_000
_MAX_NOTABLE = 60
_MAX_TAIL = 200
_MAX_RANKS = 512
_NOTABLE_WIDTH = 1_000
_TAIL_WIDTH = 4_000
#: Of a record, the characters that events are looked for in: the longest real one has 450 (recordings of 0.5.17).
_EVENT_WIDTH = 4_000
#: The same of the ``server_args=`` line, which has 14,500.
_ECHO_WIDTH = 32_000

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


class _Unread(str):
    """A line as it stands in the log, in which there is one record."""

    __slots__ = ()


class _Rank:
    """What one rank says of its weights and pools. Every rank prints these lines; the facts are those of the first."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.weights: dict[str, float] = {}
        self.draft: dict[str, Any] = {}
        self.graphs: dict[str, float] = {}
        self.graph_seconds: dict[str, float] = {}
        self.load_seconds: float | None = None
        self.loads_ended = 0
        self.pools_ended = 0
        self.pools_seen = False
        self.unified = False

    def first(self, name: str, value: Any) -> None:
        if value is not None:
            self.facts.setdefault(name, value)


class _Boot:
    """Everything known of the start being read."""

    def __init__(self) -> None:
        self.ranks: dict[str, _Rank] = {}
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
        self.batches_seen: set[str] = set()

    def rank(self, name: str) -> _Rank:
        if name not in self.ranks and self.ranks and (not name or len(self.ranks) >= _MAX_RANKS):
            # A line that lost its rank belongs to the ranks there are.
            name = next(iter(self.ranks))
        return self.ranks.setdefault(name, _Rank())

    def advance(self, phase: Phase) -> None:
        if _ORDER[phase] > _ORDER[self.reached]:
            self.reached = phase

    @property
    def expects_draft(self) -> bool:
        return self.arguments.get("speculative_algorithm", "").upper() not in _WITHOUT_DRAFT_MODEL


_ORDER = {phase: i for i, phase in enumerate(Phase)}


class BootReader:
    """Reads a server's output in pieces cut anywhere; memory is bounded.

    When a log holds several starts, the facts are those of the last. ``close`` takes the last line into account when
    nothing more will come; until then a line without an end is not read, for it may be cut inside a number.
    """

    def __init__(self) -> None:
        self._cutter = LineCutter()
        self._boot = _Boot()
        #: Records, and lines of runs as they stand in the log: few of them are ever asked for.
        self._tail: deque[str | _Unread] = deque(maxlen=_MAX_TAIL)
        self._batch_lines: deque[BatchLine | _Unread] = deque(maxlen=_MAX_BATCH_LINES)
        self._handlers: dict[str, Callable[[re.Match[str], _Rank], None]] = {
            "load_begin": self._load_begin,
            "load_end": self._load_end,
            "kv_dtype": self._kv_dtype,
            "mamba": self._mamba,
            "kv": self._kv,
            "post_capture": self._post_capture,
            "unified": self._unified,
            "unified_begin": self._unified_begin,
            "pool_end": self._pool_end,
            "capped": self._capped,
            "reduced": self._capped,
            "capture_begin": self._capture_begin,
            "capture_end": self._capture_end,
            "tree": self._tree,
            "summary": self._summary,
            "timings": self._timings,
            "server_process": self._server_process,
            "uvicorn_up": self._uvicorn_up,
            "ready": self._ready,
            "stop_asked": self._stop_asked,
            "stopped": self._stopped,
            "fatal": self._fatal,
            "usage_error": self._usage_error,
        }

    def feed(self, text: str) -> None:
        """Read more of the output."""
        at = text.find("\n") + 1 if self._cutter.within_line else 0
        self._feed_lines(text[:at])
        if self._cutter.within_line:
            self._feed_lines(text[at:])
            return
        for run in RUN.finditer(text, at):
            self._feed_lines(text[at : run.start()])
            self._feed_run(run[0])
            at = run.end()
        self._feed_lines(text[at:])

    def _feed_lines(self, text: str) -> None:
        for line in self._cutter.feed(text):
            self._read(line)

    def _feed_run(self, run: str) -> None:
        """What reading the lines one by one would change, and nothing for each of them."""
        boot = self._boot
        stamp = FIRST_STAMP.search(run)
        if stamp is not None and _is_time(stamp["at"]):
            boot.first_at = boot.first_at or stamp["at"]
            boot.uncaught = boot.in_traceback = False
        for kind, pattern in FIRST_OF.items():
            if kind not in boot.batches_seen and (first := pattern.search(run)):
                boot.batches_seen.add(kind)
                boot.version.see(first[0].rstrip())
        lines = run.splitlines()
        self._batch_lines.extend(_Unread(line) for line in lines[-_MAX_BATCH_LINES:] if BATCH_MARK in line)
        self._tail.extend(_Unread(line) for line in lines[-_MAX_TAIL:])

    def close(self) -> None:
        """Read the last line too, though it has no end."""
        if line := self._cutter.close():
            self._read(line)

    @property
    def last_line(self) -> str:
        """The last record, without time stamp, escape sequences and secrets."""
        return _record_text(self._tail[-1]) if self._tail else ""

    @property
    def tail(self) -> list[str]:
        """The last 200 records, as ``last_line``, oldest first."""
        return [_record_text(line) for line in self._tail]

    @property
    def batch_lines(self) -> list[BatchLine]:
        """Batch lines not yet drained, oldest first; at most the last 10,000."""
        read = (batch_line(line) if isinstance(line, _Unread) else line for line in self._batch_lines)
        return [line for line in read if line is not None]

    def drain(self) -> list[BatchLine]:
        """``batch_lines``, which are then forgotten."""
        lines = self.batch_lines
        self._batch_lines.clear()
        return lines

    @property
    def facts(self) -> BootFacts:
        """What is known so far."""
        boot = self._boot
        ordered = [boot.ranks[name] for name in sorted(boot.ranks, key=_rank_order)]
        merged: dict[str, Any] = {}
        for rank in ordered:
            for name, value in rank.facts.items():
                merged.setdefault(name, value)
        merged |= boot.shared
        draft = next((r.draft for r in ordered if r.draft), None)
        hybrid = merged.pop("hybrid", None)
        if hybrid is None and "max_running_requests" in merged:
            hybrid = "mamba_slots" in merged or "ssm_state_gib" in merged
        return BootFacts(
            **merged,
            hybrid=hybrid,
            version=boot.version.version,
            phase=self._phase(),
            reached=boot.reached,
            ready=boot.fired_up and boot.port_open and not boot.dead,
            draft=DraftFacts(**draft) if draft else None,
            weights_gib=next((dict(r.weights) for r in ordered if r.weights), {}),
            graphs_gib=next((dict(r.graphs) for r in ordered if r.graphs), {}),
            timings=self._all_timings(ordered),
            server_args=dict(boot.arguments),
            stop_asked=boot.stop_asked,
            notable=tuple(boot.notable),
        )

    def _phase(self) -> Phase:
        boot = self._boot
        if boot.dead:
            return Phase.DEAD
        if boot.stopped:
            return Phase.STOPPED
        if boot.stop_asked:
            return Phase.STOPPING
        if boot.uncaught and boot.reached != Phase.READY:
            return Phase.DEAD
        return boot.reached

    def _all_timings(self, ordered: list[_Rank]) -> dict[str, float]:
        boot = self._boot
        timings: dict[str, float] = {}
        seconds = next((r.load_seconds for r in ordered if r.load_seconds is not None), None)
        if seconds is not None:
            timings["load_weight"] = round(seconds, 2)
        for key, value in next((r.graph_seconds for r in ordered if r.graph_seconds), {}).items():
            timings[f"graph_{key}"] = round(value, 2)
        timings |= boot.timings
        if boot.first_at and boot.ready_at:
            since = datetime.fromisoformat(boot.ready_at) - datetime.fromisoformat(boot.first_at)
            timings["ready"] = max(0.0, since.total_seconds())
        return timings

    def _read(self, line: str) -> None:
        for record in line_records(line):
            self._tail.append(record.text[:_TAIL_WIDTH])
            self._read_record(record)

    def _read_record(self, record: Record) -> None:
        boot, text = self._boot, record.text
        if record.at and _is_time(record.at):
            boot.first_at = boot.first_at or record.at
            boot.uncaught = boot.in_traceback = False
        if batch := read_batch(text, record.at):
            self._batch_lines.append(batch)
            if batch.kind not in boot.batches_seen:
                boot.batches_seen.add(batch.kind)
                boot.version.see(text)
            return
        if echo := is_echo(text):
            self._server_args(echo, record)
            return
        text = text[:_EVENT_WIDTH]
        if PROGRESS.match(text):
            return
        if not record.at:
            self._unstamped(text)
        if TRIGGERS.search(text):
            self._dispatch(text, record)
        self._note(text)

    def _dispatch(self, text: str, record: Record) -> None:
        boot = self._boot
        boot.version.see(text)
        for name, pattern in EVENTS.items():
            if match := pattern.search(text):
                if name == "ready" or name == "uvicorn_up":
                    boot.ready_at = record.at if record.at and _is_time(record.at) else boot.ready_at
                self._handlers[name](match, boot.rank(record.ranks))
                return

    def _unstamped(self, text: str) -> None:
        boot = self._boot
        if TRACEBACK.match(text):
            boot.in_traceback = True
        elif boot.in_traceback and (match := EXCEPTION.match(text)):
            boot.in_traceback = False
            if match["kind"] == "KeyboardInterrupt":
                boot.stop_asked = boot.stopped = True
            else:
                boot.uncaught = True

    def _note(self, text: str) -> None:
        boot = self._boot
        if len(boot.notable) >= _MAX_NOTABLE or HARMLESS.search(text):
            return
        if NOTABLE.search(text) or EXCEPTION.match(text):
            clipped = text.strip()[:_NOTABLE_WIDTH]
            key = re.sub(r"\d+", "0", clipped)
            if key not in boot.notable_seen:
                boot.notable_seen.add(key)
                boot.notable.append(clipped)

    def _server_args(self, echo: re.Match[str], record: Record) -> None:
        if self._boot.reached != Phase.LAUNCHING or self._boot.dead or self._boot.arguments:
            self._boot = _Boot()
            if record.at and _is_time(record.at):
                self._boot.first_at = record.at
        self._boot.arguments = read_arguments(echo["fields"])
        self._boot.version.see(record.text[:_ECHO_WIDTH])

    def _load_begin(self, match: re.Match[str], rank: _Rank) -> None:
        rank.first("free_before_gib", float(match["avail_gb"]))
        self._boot.advance(Phase.LOADING)

    def _load_end(self, match: re.Match[str], rank: _Rank) -> None:
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
        self._boot.advance(Phase.LOADING)
        if part == "draft" or not self._boot.expects_draft:
            self._boot.advance(Phase.SIZING)

    def _kv_dtype(self, match: re.Match[str], rank: _Rank) -> None:
        rank.first("kv_dtype", match["dtype"].removeprefix("torch."))

    def _mamba(self, match: re.Match[str], rank: _Rank) -> None:
        rank.pools_seen = True
        rank.first("mamba_slots", _count(match["slots"]))
        rank.first("conv_state_gib", float(match["conv_gb"]))
        rank.first("ssm_state_gib", float(match["ssm_gb"]))
        rank.first("spec_state_gib", _gib(match["spec_ssm_gb"]))
        rank.first("spec_conv_gib", _gib(match["spec_conv_gb"]))
        self._boot.advance(Phase.SIZING)

    def _kv(self, match: re.Match[str], rank: _Rank) -> None:
        rank.pools_seen = True
        self._boot.advance(Phase.SIZING)
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

    def _post_capture(self, match: re.Match[str], rank: _Rank) -> None:
        tokens, gib = int(match["tokens"]), float(match["kv_gb"])
        if match["draft"]:
            rank.draft |= {"kv_tokens": tokens, "kv_gib": gib}
        else:
            rank.facts |= {"kv_tokens": tokens, "kv_gib": gib, "kv_dtype": match["dtype"].removeprefix("torch.")}

    def _unified_begin(self, _match: re.Match[str], rank: _Rank) -> None:
        rank.unified = True

    def _unified(self, match: re.Match[str], rank: _Rank) -> None:
        rank.unified = rank.pools_seen = True
        rank.facts["kv_tokens"] = int(match["tokens"])
        rank.facts["mamba_slots"] = int(match["slots"])

    def _pool_end(self, match: re.Match[str], rank: _Rank) -> None:
        rank.pools_seen = True
        rank.pools_ended += 1
        name = "free_after_pools_gib" if rank.pools_ended == 1 else "free_after_draft_pools_gib"
        rank.first(name, float(match["avail_gb"]))
        self._boot.advance(Phase.SIZING)

    def _capped(self, match: re.Match[str], rank: _Rank) -> None:
        rank.first("requests_capped_to", int(match["requests"]))
        groups = match.groupdict()
        if groups.get("per_request"):
            rank.first("slots_per_request", int(groups["per_request"]))
            rank.first("mamba_slots", int(groups["slots"]))

    def _capture_begin(self, match: re.Match[str], rank: _Rank) -> None:
        rank.first("free_before_graphs_gib", float(match["avail_gb"]))
        self._boot.advance(Phase.CAPTURING)

    def _capture_end(self, match: re.Match[str], rank: _Rank) -> None:
        key = _GRAPH_KEYS.get(match["name"] or "")
        if key is None:
            # Up to 0.5.13 the line does not say which graph; with speculation the target verifies.
            key = "target_verify" if self._boot.expects_draft or "spec_state_gib" in rank.facts else "decode"
        if match["usage_gb"]:
            rank.graphs[key] = round(rank.graphs.get(key, 0.0) + float(match["usage_gb"]), 2)
        rank.graph_seconds[key] = rank.graph_seconds.get(key, 0.0) + float(match["elapsed_s"])
        self._boot.advance(Phase.CAPTURING)

    def _tree(self, match: re.Match[str], _rank: _Rank) -> None:
        self._boot.shared.setdefault("tree_cache", match["impl"])
        if match["hybrid"]:
            self._boot.shared.setdefault("hybrid", match["hybrid"] == "True")

    def _summary(self, match: re.Match[str], _rank: _Rank) -> None:
        shared = self._boot.shared
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
        self._boot.advance(Phase.BINDING)

    def _timings(self, match: re.Match[str], _rank: _Rank) -> None:
        head, brace, rest = match["fields"].partition("cuda_graph={")
        graphs, _, tail = rest.partition("}") if brace else ("", "", "")
        for name, seconds in _TIMING.findall(f"{head} {tail}"):
            self._boot.timings.setdefault(name, float(seconds))
        for name, seconds in _TIMING.findall(graphs):
            if float(seconds) > 0:
                self._boot.timings.setdefault(f"graph_{name}", float(seconds))

    def _server_process(self, _match: re.Match[str], _rank: _Rank) -> None:
        self._boot.advance(Phase.BINDING)

    def _uvicorn_up(self, match: re.Match[str], _rank: _Rank) -> None:
        self._boot.shared.setdefault("http_url", match["url"])
        self._boot.port_open = True
        self._boot.advance(Phase.READY if self._boot.fired_up else Phase.WARMING)

    def _ready(self, _match: re.Match[str], _rank: _Rank) -> None:
        self._boot.fired_up = True
        if self._boot.port_open:
            self._boot.advance(Phase.READY)

    def _stop_asked(self, _match: re.Match[str], _rank: _Rank) -> None:
        if not self._boot.dead:
            self._boot.stop_asked = True

    def _stopped(self, _match: re.Match[str], _rank: _Rank) -> None:
        # This line also ends every crash: only after a wanted stop is it one.
        if self._boot.stop_asked:
            self._boot.stopped = True
        else:
            self._boot.dead = True

    def _fatal(self, _match: re.Match[str], _rank: _Rank) -> None:
        if not self._boot.stop_asked:
            self._boot.dead = True

    def _usage_error(self, match: re.Match[str], rank: _Rank) -> None:
        if self._boot.reached == Phase.LAUNCHING:
            self._fatal(match, rank)


def _record_text(line: str | _Unread) -> str:
    if not isinstance(line, _Unread):
        return line
    return next(record.text for record in line_records(line))[:_TAIL_WIDTH]


def read_boot(text: str) -> BootFacts:
    """The facts of a whole log (of its last start)."""
    reader = BootReader()
    reader.feed(text)
    reader.close()
    return reader.facts


def _rank_order(name: str) -> tuple[list[int], str]:
    return [int(n) for n in re.findall(r"\d{1,9}", name)], name


def _is_time(at: str) -> bool:
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
