"""Which SGLang versions can have printed what was seen: the log itself rarely names one.

Each clue is a spelling with the first and last version that prints it, read from the wheels 0.5.2 to 0.5.23
(0.5.11 not looked at). ``None``: no bound on that side.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_Version = tuple[int, int, int]

_PRINTED = re.compile(
    r"\bsglang(?:[ _]version)?\s*[:=]{1,2}\s*v?(\d+\.\d+\.\d+(?:\.?(?:post|rc|dev)\d+)?)", re.IGNORECASE
)


class Clue(NamedTuple):
    """A spelling and the versions that print it."""

    pattern: re.Pattern[str]
    since: _Version | None
    until: _Version | None


def _clue(pattern: str, since: int | None, until: int | None) -> Clue:
    """``since`` and ``until`` are the last parts of 0.5.x."""
    return Clue(
        re.compile(pattern),
        None if since is None else (0, 5, since),
        None if until is None else (0, 5, until),
    )


CLUES = (
    _clue(r"Init torch distributed ends\. mem usage", None, 8),
    _clue(r"Init torch distributed ends\. elapsed", 9, 20),
    _clue(r"Load weight end\. type=\w+, dtype=", None, 8),
    _clue(r"Load weight end\. elapsed=[\d.]+ s, type=\w+, dtype=", 9, 9),
    _clue(r"Load weight end\. elapsed=[\d.]+ s, type=\w+, (?!dtype)", 10, None),
    _clue(r"Load weight end\. Committed real weights", 18, None),
    _clue(r"Using KV cache dtype: ", 4, 12),
    _clue(r"Mamba Cache is allocated\. conv_state", None, 3),
    _clue(r"Mamba Cache is allocated\. max_mamba_cache_size", 4, None),
    _clue(r"KV Cache is allocated\. #tokens", None, 12),
    _clue(r"KV Cache is allocated\. dtype: ", 13, None),
    _clue(r"KV Cache VA upper bound", 18, None),
    _clue(r"GB of the KV budget for post-sizing multimodal allocations", 18, None),
    _clue(r"\[unified-memory-pool\] ", 15, None),
    _clue(r"is capped to \d+ by the mamba state", 17, None),
    _clue(r"was reduced from the requested \d+ to", 14, None),
    _clue(r"Linear attention kernel backend: .*verify=", 17, None),
    _clue(r"Linear attention kernel backend: (?!.*verify=)", None, 16),
    _clue(r"Capture cuda graph (?:begin|bs|end)\b", None, 13),
    _clue(r"Capture \w+ \w+ CUDA graph begin\.", 14, None),
    _clue(r"CUDA graph begin\..*num_tokens_per_bs=", 14, 15),
    _clue(r"CUDA graph begin\..*num_tokens_per_req=", 16, None),
    _clue(r"CUDA graph begin\..*\bbs=\[", 14, 22),
    _clue(r"CUDA graph end\. bs=\[", 18, None),
    _clue(r"Disable piecewise CUDA graph because", None, 13),
    _clue(r"Disable prefill CUDA graph because", 14, None),
    _clue(r"Post-capture KV sizing: max_total_num_tokens=", 16, 16),
    _clue(r"Post-capture KV sizing: KV cache allocated", 17, None),
    _clue(r"Tree cache initialized: source=", 13, None),
    _clue(r"Tree cache initialized: .*hierarchical=", 13, 22),
    _clue(r"Tree cache initialized: .*hicache_attached=", 18, None),
    _clue(r"Init Unified Radix Cache\. Components", 18, None),
    _clue(r"Engine startup timings \(s\)", 13, None),
    _clue(r"kill_process_tree called: parent_pid", 13, None),
    _clue(r"Allocating kv hierarchical KV host pool", 17, None),
    _clue(r"host memory for hierarchical KV cache\.", None, 16),
    _clue(r"server_args=ServerArgs\(", None, 22),
    _clue(r"server_args=\{", 18, None),
    _clue(r"\A(?>.*?server_args=).*\bmamba_scheduler_strategy['\"]?[=:]", 7, 19),
    _clue(r"\A(?>.*?server_args=).*\bmamba_radix_cache_strategy['\"]?[=:]", 14, None),
    _clue(r"\A(?>.*?server_args=).*\bmamba_max_states_per_path['\"]?[=:]", 17, None),
    _clue(r"Prefill batch\. ", None, 2),
    _clue(r"(?:Prefill|Decode) batch(?: \[\d+\])?, ", 4, None),
    _clue(r"#pending-token: ", 12, None),
)


class VersionGuess:
    """Narrows the range of versions line by line."""

    def __init__(self) -> None:
        self._printed: str | None = None
        self._since: _Version | None = None
        self._until: _Version | None = None
        self._open = list(CLUES)

    def see(self, text: str) -> None:
        """Take the clues of one record into account."""
        if self._printed is None and (match := _PRINTED.search(text)):
            self._printed = match[1]
        met = [clue for clue in self._open if clue.pattern.search(text)]
        for clue in met:
            self._open.remove(clue)
            if clue.since and (self._since is None or clue.since > self._since):
                self._since = clue.since
            if clue.until and (self._until is None or clue.until < self._until):
                self._until = clue.until

    @property
    def version(self) -> str | None:
        """ "0.5.17" when printed or the only one possible, "0.5.17-0.5.20", ">=0.5.17", "<=0.5.8", or None.

        None also when the clues contradict each other (a patched build).
        """
        if self._printed:
            return self._printed
        since, until = _dotted(self._since), _dotted(self._until)
        if self._since and self._until:
            if self._since > self._until:
                return None
            return since if since == until else f"{since}-{until}"
        if since:
            return f">={since}"
        return f"<={until}" if until else None


def _dotted(version: _Version | None) -> str:
    return ".".join(map(str, version)) if version else ""
