"""The running server in numbers, once a second, redrawn only when they changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from textual.content import Content
from textual.reactive import reactive

from tuner.metrics.binding import Binds, binding
from tuner.metrics.model import GpuReading, Reach, Readings
from tuner.text import clip, plain, width
from tuner.ui.progress import Progress
from tuner.ui.widgets.palette import meter
from tuner.ui.widgets.sheet import Sheet
from tuner.ui.wording import NONE, answers, percent, spread, tokens

if TYPE_CHECKING:
    from tuner.session.watching import Look

_LABEL = "$foreground 60%"
#: Cells of a column: with words, with a bar besides; narrower ones take the short form.
_WORDS, _BARS = 36, 48
#: Cells of the words beside a bar; one more parts them from the next column.
_BESIDE_BAR = 25


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One reading: its name, in words, in short, and as a share of something."""

    title: str
    words: str
    short: str
    part: float | None = None
    whole: float | None = None
    #: Used, but free at need (cached).
    more: float = 0.0


class LiveStrip(Sheet):
    """VRAM, KV use, state slots, requests, TTFT, ITL, speeds, prefix hits, acceptance."""

    figures: reactive[tuple[Figure, ...]] = reactive((), repaint=False)
    #: Signs and sentences below the figures.
    notices: reactive[tuple[tuple[str, str], ...]] = reactive((), repaint=False)

    def show(self, look: Look | None, progress: Progress | None, starter: int | None = None) -> None:
        """Takes one look; nothing is drawn where nothing changed."""
        shown, told = figures(look), notices(look, progress, starter)
        if (shown, told) != (self.figures, self.notices):
            self.figures, self.notices = shown, told
            self.redraw()

    def text(self, cells: int) -> Content:
        """As many columns as there is room for; bars where there is more."""
        rows: list[Content] = []
        if self.figures:
            columns = max(1, cells // _BARS) if cells >= 2 * _BARS else 3 if cells >= 72 else 2
            wide = cells // columns
            rows += [
                Content("").join(_cell(f, wide) for f in self.figures[start : start + columns])
                for start in range(0, len(self.figures), columns)
            ]
        for sign, words in self.notices:
            style = "$warning" if sign else "$foreground 70%"
            rows.append(Content.assemble((sign, f"bold {style}"), (clip(words, cells - len(sign)), style)))
        return Content("\n").join(rows)


def _cell(figure: Figure, cells: int) -> Content:
    if cells < _WORDS:
        text = clip(figure.short, cells - 7)
        return Content.assemble((f"{figure.title:<6}", _LABEL), (text, "bold"), " " * (cells - 6 - width(text)))
    text = clip(figure.words, cells - 10)
    bar = max(0, cells - 10 - _BESIDE_BAR - 1) if cells >= _BARS else 0
    if bar < 8 or figure.whole is None:
        pad = " " * (bar + 1) if bar >= 8 and width(text) + bar + 10 <= cells else ""
        text = clip(text, cells - 10 - len(pad))
        return Content.assemble(
            (f"{figure.title:<9}", _LABEL), pad, (text, "bold"), " " * (cells - 9 - len(pad) - width(text))
        )
    return Content.assemble(
        (f"{figure.title:<9}", _LABEL),
        meter(figure.part, figure.whole, bar, more=figure.more),
        " ",
        (clip(text, _BESIDE_BAR), "bold"),
        " " * (cells - 10 - bar - width(clip(text, _BESIDE_BAR))),
    )


def figures(look: Look | None) -> tuple[Figure, ...]:
    """What one look says of a running server; nothing when none runs."""
    if look is None or look.running is None:
        return ()
    # Of another machine's server the cards are not seen.
    vram = [] if look.url and not look.gpus else [_vram(look.gpus)]
    r = look.readings
    if r is None or not answers(r):
        return tuple(vram)
    shown = [*vram, _kv(r)]
    if r.slots_total:
        shown.append(_slots(r))
    limit = f" of {r.max_running_requests}" if r.max_running_requests is not None else ""
    short_limit = f"/{r.max_running_requests}" if r.max_running_requests is not None else ""
    shown += [
        Figure(
            title="Req",
            words=f"{tokens(r.running)}{limit} running · {tokens(r.queued)} wait",
            short=f"{tokens(r.running)}{short_limit} run · {tokens(r.queued)} wait",
        ),
        Figure(
            title="TTFT",
            words=f"{spread(r.ttft_s, milliseconds=False)} p50/95",
            short=f"{spread(r.ttft_s, milliseconds=False)}".replace(" / ", "/") + " p50/95",
        ),
        Figure(
            title="ITL",
            words=f"{spread(r.itl_s, milliseconds=True)} p50/95",
            short=f"{spread(r.itl_s, milliseconds=True)}".replace(" / ", "/") + " p50/95",
        ),
        Figure(
            title="Speed",
            words=f"{_rate(r.decode_tokens_per_s)} out · {_rate(r.prefill_tokens_per_s)} in tok/s",
            short=f"{_rate(r.decode_tokens_per_s)}+{_rate(r.prefill_tokens_per_s)} tok/s",
        ),
        Figure(
            title="Hits",
            words=f"{_ratio(r.prefix_hit_ratio)}{_accepted(r, ' · accept ')}",
            short=f"{_ratio(r.prefix_hit_ratio)}{_accepted(r, ' · accept ')}",
        ),
    ]
    return tuple(shown)


def notices(look: Look | None, progress: Progress | None, starter: int | None) -> tuple[tuple[str, str], ...]:
    """What the server changed on its own, then what is missing or, when nothing is, what binds now."""
    lines = []
    if look is not None and look.changed:
        titles = " ".join(finding.title for finding in look.changed)
        lines.append(("! ", plain(titles)))
    sentence = _notice(look, progress, starter)
    return (*lines, sentence) if sentence[1] else tuple(lines)


def _notice(look: Look | None, progress: Progress | None, starter: int | None) -> tuple[str, str]:
    """A sign and a sentence."""
    reached = look is not None and look.readings is not None and look.readings.loads is Reach.OK
    if progress is not None and not progress.ended and not reached:
        return "", f"{progress.title}: {progress.current or 'working'}. p shows how far it is."
    if look is None:
        return "", "Looking for a running server …"
    if look.running is None and progress is not None and progress.lost:
        return "! ", f"No server runs: {progress.title}. p shows why, and the way back."
    if look.running is None:
        return "", "No server runs. R starts one with these flags."
    if starter is not None:
        return "", f"Another tuner (process {starter}) is at work here; 2 lists its round."
    if not answers(look.readings):
        return "! ", "The server does not answer." + ("" if look.url else " 4 shows its log.")
    if look.readings is not None and look.readings.notice:
        return "! ", plain(look.readings.notice)
    asked = look.running.handle.recipe.flags.get("max_running_requests")
    bound = binding(look.readings, asked if isinstance(asked, int) else None)
    return ("" if bound.kind in (Binds.NOTHING, Binds.UNKNOWN) else "! "), plain(bound.words)


def _vram(gpus: Sequence[GpuReading]) -> Figure:
    """Of several cards the fullest: it is the one that runs out."""
    told = [gpu for gpu in gpus if gpu.used_mib is not None]
    if not told:
        return Figure(title="VRAM", words=NONE, short=NONE)
    gpu = max(told, key=lambda one: (one.used_mib or 0) / (one.total_mib or 1))
    used = (gpu.used_mib or 0) / 1024
    if gpu.total_mib is None:
        which = f"GPU {gpu.index} " if len(gpus) > 1 else ""
        return Figure(title="VRAM", words=f"{which}{used:.1f} GiB", short=f"{which}{used:.1f} GiB")
    total, share = gpu.total_mib / 1024, percent(gpu.used_mib, gpu.total_mib)
    words, short = f"{used:.1f} of {total:.1f} GiB {share}", f"{used:.1f}/{total:.1f} GiB"
    if len(gpus) > 1:
        # Which one goes first: what is cut is at the end.
        words, short = f"GPU {gpu.index} {used:.1f}/{total:.1f} GiB", f"GPU {gpu.index} {used:.1f}/{total:.1f}"
        words += f" {share}" if width(words) + width(share) < _BESIDE_BAR else ""
    return Figure(title="VRAM", words=words, short=short, part=used, whole=total)


def _kv(r: Readings) -> Figure:
    share = percent(r.kv_used_tokens, r.kv_total_tokens)
    return Figure(
        title="KV",
        words=f"{tokens(r.kv_used_tokens)} of {tokens(r.kv_total_tokens)} {share}".rstrip(),
        short=f"{tokens(r.kv_used_tokens)}/{tokens(r.kv_total_tokens)}",
        part=_float(r.kv_used_tokens),
        whole=_float(r.kv_total_tokens),
        more=_float(r.kv_evictable_tokens) or 0.0,
    )


def _slots(r: Readings) -> Figure:
    cached = f" · {r.slots_evictable} cached" if r.slots_evictable else ""
    # An idle server leaves its last batch in these gauges.
    old = "≈" if "slots_used" in r.stale else ""
    return Figure(
        title="Slots",
        words=f"{old}{tokens(r.slots_used)} of {tokens(r.slots_total)}{cached}",
        short=f"{old}{tokens(r.slots_used)}/{tokens(r.slots_total)}{cached}",
        part=_float(r.slots_used),
        whole=_float(r.slots_total),
        more=_float(r.slots_evictable) or 0.0,
    )


def _rate(rate: float | None) -> str:
    return NONE if rate is None else f"{rate:,.0f}"


def _ratio(ratio: float | None) -> str:
    return NONE if ratio is None else f"{100 * ratio:.0f} %"


def _accepted(r: Readings, words: str) -> str:
    return f"{words}{r.acceptance_length:.2f}" if r.acceptance_length is not None else ""


def _float(number: int | None) -> float | None:
    return None if number is None else float(number)
