"""The card's memory by named terms, over the time of a start.

Order of a start (0.5.14 to 0.5.23; recordings of 0.5.17): context, weights, draft weights, the target's pools, the
draft's pool, back comes the draft's own embedding and head, graphs, warm-up. Up to 0.5.13 the draft is loaded after
the target's graphs. Sizes in GiB per rank.
"""

from __future__ import annotations

import msgspec

from tuner.planner.model import GIB, Source, Term

#: What a process takes at ready beside weights, pools and graphs: workspaces and compiled kernels, and per token the
#: lists of free cells (seven 64-bit entries). Fitted on nine recordings of 0.5.17, within 0.15 GiB.
RUNTIME_BASE_GIB = 0.165
RUNTIME_BYTES_PER_TOKEN = 56


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """What a start allocates, GiB. ``pre`` is the free memory that the sizing rule starts from."""

    pre: float
    context: float
    context_source: Source = Source.ESTIMATE
    weights: float
    weights_source: Source
    draft: float
    draft_source: Source
    draft_returned: float
    sizing_loss: float
    states: float
    checkpoints: float
    spec_buffer: float
    kv: float
    draft_kv: float
    graphs: float
    graphs_source: Source
    runtime: float
    runtime_source: Source
    draft_before_pools: bool
    startup_loss: float
    #: Held more than in the end while graphs are captured.
    capture_more: float = 0.0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Terms in drawing order with free memory last, and the course of free memory over the start."""

    terms: tuple[Term, ...]
    ready_free: float
    lowest_free: float
    #: (what has just happened, free GiB)
    course: tuple[tuple[str, float], ...]


def runtime_gib(tokens: int, base: float | None = None) -> float:
    """GiB of a process beside weights, pools and graphs. ``base``: the part that a boot log has told, or None."""
    return (RUNTIME_BASE_GIB if base is None else base) + tokens * RUNTIME_BYTES_PER_TOKEN / GIB


def lay_out(pieces: Pieces) -> Budget:
    """Named terms, free memory at ready, and its lowest point."""
    course: list[tuple[str, float]] = []
    free = pieces.pre - pieces.startup_loss
    course.append(("context", free))
    free -= pieces.weights + pieces.sizing_loss
    course.append(("weights", free))
    if pieces.draft_before_pools:
        free -= pieces.draft
        course.append(("draft weights", free))
    free -= pieces.states + pieces.spec_buffer + pieces.kv + pieces.checkpoints
    course.append(("pools", free))
    if not pieces.draft_before_pools:
        free -= pieces.draft
        course.append(("draft weights", free))
    free -= pieces.draft_kv
    course.append(("draft pool", free))
    free += pieces.draft_returned
    course.append(("draft shared", free))
    free -= pieces.graphs
    if pieces.capture_more > 0:
        course.append(("capture", free - pieces.capture_more))
    course.append(("graphs", free))
    free -= pieces.runtime
    course.append(("ready", free))
    terms = [
        _term("context", "context", pieces.context + pieces.startup_loss, pieces.context_source),
        _term("weights", "weights", pieces.weights, pieces.weights_source),
        _term("draft", "draft", pieces.draft - pieces.draft_returned, pieces.draft_source),
        _term("states", "states", pieces.states, Source.FORMULA),
        _term("checkpoints", "int8 states", pieces.checkpoints, Source.FORMULA),
        _term("spec_buffer", "draft states", pieces.spec_buffer, Source.FORMULA),
        _term("kv", "KV", pieces.kv, Source.FORMULA),
        _term("draft_kv", "draft KV", pieces.draft_kv, Source.FORMULA),
        _term("graphs", "graphs", pieces.graphs, pieces.graphs_source),
        _term("runtime", "runtime", pieces.runtime + pieces.sizing_loss, pieces.runtime_source),
    ]
    kept = tuple(term for term in terms if term.gib > 0)
    free_term = _term("free", "free", max(0.0, free), Source.FORMULA)
    return Budget(
        terms=(*kept, free_term),
        ready_free=free,
        lowest_free=min(value for _, value in course),
        course=tuple(course),
    )


def _term(name: str, label: str, gib: float, source: Source) -> Term:
    return Term(name=name, label=label, gib=gib, source=source)
