"""The card's memory over a round: each number with one meaning, wherever it is shown. Pure."""

from __future__ import annotations

from tuner.planner import accuracy
from tuner.rounds.model import Round
from tuner.serverlog.model import BootFacts


def free_at_ready_gib(round_: Round) -> float | None:
    """The card's free memory once the server was ready, GiB; see ``planner.accuracy.free_at_ready_gib``."""
    return accuracy.free_at_ready_gib(
        round_.boot.available_gib if round_.boot is not None else None,
        card_gib=round_.plan.card_gib if round_.plan is not None else None,
        ready_mib=round_.vram_mib.get("ready"),
    )


def by_the_card_gib(round_: Round) -> float | None:
    """``free_at_ready_gib`` where the card was read at ready; None where only the log may tell."""
    return free_at_ready_gib(round_) if "ready" in round_.vram_mib else None


def peak_mib(seen_mib: int | None, total_mib: int | None, facts: BootFacts) -> int | None:
    """Highest VRAM in use during a start, MiB: ``seen_mib``, the highest sample, or more where the log tells of more.

    Samples come four times a second; a draft model holds a second embedding and head for a shorter time than that,
    between the lines of its pool and of the first graphs. "avail mem" in the log is CUDA's free memory of the same
    card, others' use counted in (0.5.17, ``utils.common.get_available_gpu_memory``), so at its lowest all the rest of
    ``total_mib`` was in use. ``total_mib`` is None where a server uses several cards: the log's one number may be that
    of another card than the one sampled.
    """
    told = (
        facts.free_before_gib,
        facts.free_after_gib,
        facts.free_after_pools_gib,
        facts.free_after_draft_pools_gib,
        facts.free_before_graphs_gib,
        facts.available_gib,
    )
    lowest_gib = min((gib for gib in told if gib is not None), default=None)
    if total_mib is None or lowest_gib is None:
        return seen_mib
    return max(seen_mib or 0, total_mib - round(lowest_gib * 1024))
