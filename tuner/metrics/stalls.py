"""When decode stands still because prefill has the GPU."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

#: Decode below this share of its median is a stall; chunked prefill alone slows it to a third or so.
_SHARE = 0.25
#: Steps with decode that a median needs.
_ENOUGH = 5


class Step(msgspec.Struct, frozen=True):
    """What happened between two looks: seconds, tokens decoded and tokens prefilled in them, and who decodes."""

    seconds: float
    decoded: float
    prefilled: float
    #: Requests in the running batch at the end; those still in prefill are not in it.
    running: float | None

    @property
    def speed(self) -> float:
        """Decoded tokens per second."""
        return self.decoded / self.seconds


def is_stall(step: Step, before: Sequence[Step]) -> bool:
    """Whether ``step`` decodes far below the median of the steps ``before`` in which anything was decoded."""
    speeds = [earlier.speed for earlier in before if earlier.decoded > 0]
    if not step.running or step.prefilled <= 0 or len(speeds) < _ENOUGH:
        return False
    return step.speed < _SHARE * statistics.median(speeds)
