"""How long prefill and decode take on the simulated card: the 27B of the recordings, with a little noise."""

from __future__ import annotations

import random

from tuner.sim.flags import Options

#: Attention of a prefill: seconds per new token and context token (88,165 tokens: 28.9 s).
_PREFILL_PER_PAIR_S = 5.2e-9
#: A decode step: the recorded 20 ms with three requests, and what a long context adds.
_STEP_S = 0.018
_STEP_PER_REQUEST_S = 0.0006
_STEP_PER_CONTEXT_S = 6e-8
#: The least a prefill batch takes.
_PREFILL_FLOOR_S = 0.045
#: Compilation on first use (the recorded first chat took 83 s; the first prompt on a cached prefix 0.67 s more).
FIRST_COMPILE_S = 1.5
SHAPE_COMPILE_S = 0.67


class Speed:
    """Recorded seconds of each kind of work; the pace scales them. Draws are the same for the same seed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self._compiled: set[str] = set()
        self._level = max(0.1, self._random.gauss(1.0, options.round_noise)) if options.round_noise else 1.0

    def request_factor(self) -> float:
        """How much slower or faster than usual one request is served, from its first token to its last."""
        noise = self._options.noise
        return self._level * (max(0.1, self._random.gauss(1.0, noise)) if noise else 1.0)

    def compile_s(self, what: str, recorded: float) -> float:
        """Compilation of ``what`` on its first use; nothing on later ones."""
        if what in self._compiled:
            return 0.0
        self._compiled.add(what)
        return recorded * self._options.compile_factor

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float:
        """A prefill batch of ``new_tokens`` behind ``context_tokens``."""
        if self._options.ttft_s is not None:
            return self._options.ttft_s
        seconds = new_tokens / self._options.prefill_rate + new_tokens * context_tokens * _PREFILL_PER_PAIR_S
        return max(_PREFILL_FLOOR_S, seconds)

    def step_s(self, requests: int, context_tokens: int) -> float:
        """One decode step of a batch."""
        if self._options.itl_s is not None:
            return self._options.itl_s
        return _STEP_S + _STEP_PER_REQUEST_S * requests + _STEP_PER_CONTEXT_S * context_tokens

    def accepted(self, drafts: int, acceptance: float) -> int:
        """How many of ``drafts`` in a row are accepted."""
        count = 0
        while count < drafts and self._random.random() < acceptance:
            count += 1
        return count
