"""The two lines on top of every screen: where one is, and what runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget

from tuner.text import clip, plain, width
from tuner.ui.progress import Progress
from tuner.ui.wording import answers

if TYPE_CHECKING:
    from tuner.session.watching import Look

#: (mode, key, title) of the screens in order.
PLACES = (
    ("tune", "1", "Tune"),
    ("rounds", "2", "Rounds"),
    ("compare", "3", "Compare"),
    ("log", "4", "Log"),
    ("doctor", "5", "Doctor"),
    ("presets", "6", "Presets"),
    ("live", "7", "Live"),
)

SIMULATED = " SIMULATED — not a real SGLang "


class NavBar(Widget):
    """The screens, by key and by click."""

    here: reactive[str] = reactive("")

    def __init__(self, here: str) -> None:
        super().__init__()
        self.set_reactive(NavBar.here, here)

    def render(self) -> Content:
        """The screen one is on stands out by brackets as well as by colour."""
        parts: list[Content] = [Content.assemble((" tuner ", "bold $primary"), " ")]
        for mode, key, title in PLACES:
            click = Style.from_meta({"@click": f"app.go('{mode}')"})
            text = f"[{key} {title}]" if mode == self.here else f" {key} {title} "
            style = (
                "bold $block-cursor-foreground on $block-cursor-background" if mode == self.here else "$foreground 80%"
            )
            shown = Content.assemble((text, style))
            # A link has a colour of its own, which is none on the mark of where one is.
            parts.append(shown if mode == self.here else shown.stylize(click))
        right = Content.assemble(" ? help ").stylize(Style.from_meta({"@click": "app.help"}))
        words = " ^p commands " if self.size.width >= 100 else " ^p "
        palette = Content.assemble(words).stylize(Style.from_meta({"@click": "app.command_palette"}))
        left = Content("").join(parts)
        if left.cell_length + right.cell_length + palette.cell_length > self.size.width:
            # The name of the program goes first: where one is matters more.
            left = Content("").join([Content(" "), *parts[1:]])
        gap = self.size.width - left.cell_length - right.cell_length - palette.cell_length
        return Content("").join([left, Content(" " * max(0, gap)), palette, right])


class StatusLine(Widget):
    """What runs, or what is being done; at the right the mark of a stand-in server."""

    status: reactive[tuple[str, str, str]] = reactive(("○", "$foreground 60%", "looking …"))
    simulated: reactive[bool] = reactive(False)

    def show(
        self, look: Look | None, progress: Progress | None, *, problem: str, simulated: bool, starter: int | None = None
    ) -> None:
        """Takes the newest of both; drawn only when the words change."""
        self.status = ("✗", "bold $error", plain(problem)) if problem else _status(look, progress, starter)
        self.simulated = simulated

    def render(self) -> Content:
        """The mark never gives way to the words."""
        sign, style, words = self.status
        badge = SIMULATED if self.simulated else ""
        room = self.size.width - width(badge) - 4
        shown = clip(words, max(0, room))
        gap = self.size.width - 3 - width(shown) - width(badge)
        return Content.assemble(
            (f" {sign} ", style), (shown, ""), " " * max(0, gap), (badge, "bold $mark-text on $mark" if badge else "")
        )


def _status(look: Look | None, progress: Progress | None, starter: int | None) -> tuple[str, str, str]:
    if progress is not None and not progress.ended:
        stalled = " · no news for long, see the log" if progress.stalled else ""
        return "◐", "bold $primary", f"{progress.title} · {progress.current or 'working'}{stalled} · p shows it"
    if look is None:
        return "○", "$foreground 60%", "looking for a running server …"
    if look.running is None:
        gpu = look.gpus[0] if look.gpus else None
        free = ""
        if gpu is not None and gpu.free_mib is not None:
            free = f" · {gpu.free_mib / 1024:.1f} GiB free on {plain(gpu.name or 'the GPU')}"
        if progress is not None and progress.lost:
            return "✗", "bold $error", f"no server runs · {progress.title}, p shows why{free}"
        return "○", "$foreground 60%", f"no server runs{free}"
    handle = look.running.handle
    name = handle.round_name or "server"
    if look.url:
        return _attached(look)
    if starter is not None:
        return "◐", "bold $primary", f"another tuner ({starter}) is starting {name}"
    if not answers(look.readings):
        return "✗", "bold $error", f"{name} on port {handle.port} does not answer"
    version = look.running.round.sglang_version if look.running.round else None
    words = [f"{name} runs on port {handle.port}", _up(time.time() - handle.started_at)]
    model = str(handle.recipe.flags.get("served_model_name") or handle.recipe.model_path.rstrip("/").rsplit("/", 1)[-1])
    words.append(plain(model))
    if version:
        words.append(f"SGLang {version}")
    return "●", "bold $success", " · ".join(words)


def _attached(look: Look) -> tuple[str, str, str]:
    """A server that is only looked at: since when it is up is not told."""
    if look.running is None or not answers(look.readings):
        return "✗", "bold $error", f"attached to {plain(look.url)}, which does not answer"
    recipe = look.running.handle.recipe
    words = [f"attached to {plain(look.url)}, read-only", plain(str(recipe.flags.get("served_model_name") or ""))]
    if recipe.tuner.sglang_version:
        words.append(f"SGLang {plain(recipe.tuner.sglang_version)}")
    return "●", "bold $success", " · ".join(word for word in words if word)


def _up(seconds: float) -> str:
    """In whole minutes: a clock of seconds would redraw the line every second."""
    minutes = max(0, int(seconds // 60))
    if minutes < 1:
        return "just up"
    return f"up {minutes} min" if minutes < 60 else f"up {minutes // 60} h {minutes % 60:02d} min"
