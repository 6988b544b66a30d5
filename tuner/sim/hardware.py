"""The hidden truth of the simulated machine and model: what a start really takes, which no planner is told."""

from __future__ import annotations

import msgspec

from tuner.modelcard import ModelShape
from tuner.planner.model import CONTEXT_GIB, GIB, usual_startup_loss

#: Graph memory of the recordings as a straight line over hidden size x largest size: 27B at 4096 tokens 1.68 GiB,
#: hybrid-tiny at 8192 tokens 0.85 GiB.
_PREFILL_BASE_GIB = 0.296
_PREFILL_PER_CELL_GIB = 0.066e-6
#: 27B, three sizes: 0.10 (verify); hybrid-tiny, four sizes: 0.05 (decode). A draft's graphs take 0.08.
_DECODE_BASE_GIB = 0.039
_DECODE_PER_CELL_GIB = 4e-6
_DRAFT_SHARE = 0.82
#: Free memory that prefill graphs ask for when nobody asked for them (0.5.16, 0.5.17).
PREFILL_GRAPHS_WANT_GIB = 4.0
#: Buffers of the attention back end, between the pools and the graphs (27B: 6.58 to 6.47 GiB free).
BACKEND_GIB = 0.11
#: Activations that stay after the first long prompt (27B: 140,558 to 141,166 MiB).
ACTIVATIONS_GIB = 0.59


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in GiB. ``None``: as the shape estimates."""

    context_gib: float = CONTEXT_GIB
    startup_loss_gib: float | None = None
    weights_gib: float | None = None
    draft_weights_gib: float | None = None
    draft_returned_gib: float | None = None
    #: Lost after sizing for no reason that any flag shows.
    loss_gib: float = 0.0
    graphs_factor: float = 1.0

    def startup_loss(self, shape: ModelShape) -> float:
        """What is lost between the reading that sizes the pools and the line that prints it, GiB."""
        return self.startup_loss_gib if self.startup_loss_gib is not None else usual_startup_loss(shape)

    def target_weights(self, shape: ModelShape) -> float:
        """Weights of the target, GiB."""
        return self.weights_gib if self.weights_gib is not None else shape.weights_bytes / GIB

    def draft_weights(self, shape: ModelShape) -> float:
        """Weights of the draft while its embedding and head are still its own, GiB."""
        return self.draft_weights_gib if self.draft_weights_gib is not None else shape.draft_weights_bytes / GIB

    def draft_returned(self, shape: ModelShape) -> float:
        """What the draft gives back after sizing, GiB; never more than it took."""
        returned = shape.draft_shared_bytes / GIB if self.draft_returned_gib is None else self.draft_returned_gib
        return min(returned, self.draft_weights(shape))

    def prefill_graphs(self, shape: ModelShape, largest_tokens: int) -> float:
        """Prefill graphs up to ``largest_tokens``, GiB."""
        return self.graphs_factor * (_PREFILL_BASE_GIB + _PREFILL_PER_CELL_GIB * shape.hidden_size * largest_tokens)

    def decode_graphs(self, shape: ModelShape, sizes: int) -> float:
        """Decode or verify graphs of ``sizes`` batch sizes, GiB."""
        return self.graphs_factor * (_DECODE_BASE_GIB + _DECODE_PER_CELL_GIB * shape.hidden_size * sizes)

    def draft_graphs(self, shape: ModelShape, sizes: int) -> float:
        """Graphs of the draft, GiB."""
        return self.decode_graphs(shape, sizes) * _DRAFT_SHARE
