"""What bounds a server, and what it refuses for that."""

from __future__ import annotations

import msgspec


class Refusal(Exception):
    """A request that is answered with an error; ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds this server. ``limit_shift``: tokens by which the limit in force is off the one that is told."""

    max_running: int
    chunk: int
    policy: str
    context_len: int
    draft_tokens: int
    acceptance: float
    decode_graphs: bool
    prefill_graphs: bool
    max_queued: int | None
    warmed_up: bool
    conservativeness: float = 1.0
    limit_shift: int = 0

    def longest_request(self, kv_tokens: int) -> int:
        """``max_req_input_len``: an input this long or longer is refused by the scheduler."""
        return min(self.context_len - 1, kv_tokens - 1) - 5

    def check_length(self, prompt_tokens: int, max_new_tokens: int, kv_tokens: int) -> None:
        """Refuses what is too long, with the sentences of the tokenizer and of the scheduler (0.5.17)."""
        shown = prompt_tokens + self.draft_tokens
        if shown >= self.context_len:
            raise Refusal(
                f"The input ({shown} tokens) is longer than the model's context length ({self.context_len} tokens)."
            )
        total = prompt_tokens + max_new_tokens
        if total > self.context_len:
            raise Refusal(
                f"Requested token count exceeds the model's maximum context length of {self.context_len} tokens. "
                f"You requested a total of {total} tokens: {prompt_tokens} tokens from the input messages and "
                f"{max_new_tokens} tokens for the completion. Please reduce the number of tokens in the input "
                "messages or the completion to fit within the limit."
            )
        longest = self.longest_request(kv_tokens)
        if prompt_tokens >= longest + self.limit_shift:
            raise Refusal(
                f"Input length ({prompt_tokens} tokens) exceeds the maximum allowed length ({longest} tokens). "
                "Use a shorter input or enable --allow-auto-truncate."
            )
