"""Progress bars as tqdm draws them: frames that begin with a carriage return and end without an end of line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉"
_WIDTH = 10


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


def _blocks(done: int, total: int) -> str:
    filled = _WIDTH * done / total
    whole = int(filled)
    part = _EIGHTHS[int((filled - whole) * 8)] if whole < _WIDTH else ""
    return ("█" * whole + part.strip()).ljust(_WIDTH)


def frame(name: str, done: int, total: int, elapsed_s: float) -> str:
    """One frame of a bar; ``name`` may be empty, as in the first frame of a capture."""
    head = f"{name}: " if name else ""
    percent = f"{100 * done // total:3d}%"
    if not done:
        return f"\r{head}{percent}|{' ' * _WIDTH}| 0/{total} [00:00<?, ?it/s]"
    rate = done / elapsed_s if elapsed_s > 0 else 999.0
    speed = f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"
    left = _clock((total - done) / rate)
    return f"\r{head}{percent}|{_blocks(done, total)}| {done}/{total} [{_clock(elapsed_s)}<{left}, {speed}]"


def capture_frames(label: str, sizes: Sequence[int], free_gib: Sequence[float], seconds: float) -> Iterator[str]:
    """What a capture loop prints, one text per size and one before them.

    ``free_gib`` is the free memory shown with each size. Largest sizes come first, the last frame twice.
    """
    order = sorted(sizes, reverse=True)
    total = len(order)
    names = [f"Capturing {label}={n} avail_mem={free:.2f} GB)" for n, free in zip(order, free_gib, strict=True)]
    yield frame("", 0, total, 0.0) + frame(names[0], 0, total, 0.0)
    for done in range(1, total + 1):
        at = seconds * done / total
        text = frame(names[done - 1], done, total, at)
        yield text + (frame(names[done], done, total, at) if done < total else text + "\n")
