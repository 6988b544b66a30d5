"""The app's own colours: dark, light, and one of the terminal's own sixteen.

Besides Textual's variables a theme has ``$term-NAME`` for each term of the VRAM bar, ``$term-text`` on it, and
``$mark`` with ``$mark-text`` for the mark of a stand-in server.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.theme import Theme

#: Terms of the VRAM bar, and four more for those that have no colour of their own.
_TERMS = ("weights", "draft", "states", "spec", "kv", "graphs", "draft_kv", "context", "runtime", "1", "2", "3", "4")


def _terms(colours: str) -> dict[str, str]:
    """Variables for the terms, from as many words."""
    return {f"term-{name}": colour for name, colour in zip(_TERMS, colours.split(), strict=True)}


_MARK = {"mark": "#f0b429", "mark-text": "#1b1b1b"}

_DARK = Theme(
    name="tuner-dark",
    primary="#74aee0",
    secondary="#4f7ea8",
    accent="#e3b04b",
    warning="#e3b04b",
    error="#ea6a73",
    success="#84c491",
    foreground="#d8dde3",
    background="#13161b",
    surface="#1a1e25",
    panel="#222832",
    dark=True,
    variables={
        "block-cursor-background": "#2c4a66",
        "block-cursor-foreground": "#f2f5f8",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#e3b04b",
        "term-text": "#ffffff",
        **_terms(
            "#41617f #6a5687 #2f7d74 #94672f #2f6fb0 #6b7079 #4f63a8 #7a5a5a #5a7a5f #76688f #7d7350 #8a6b52 #5c7d8a"
        ),
        **_MARK,
    },
)
_LIGHT = Theme(
    name="tuner-light",
    primary="#1f5f99",
    secondary="#5d8fbd",
    accent="#855900",
    warning="#855900",
    error="#a8221b",
    success="#22663f",
    foreground="#10151b",
    background="#f7f8fa",
    surface="#eceff3",
    panel="#e2e7ed",
    dark=False,
    variables={
        "block-cursor-background": "#c3d7ea",
        "block-cursor-foreground": "#1d232a",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#855900",
        "term-text": "#10151b",
        **_terms(
            "#a9c3dc #c9b6e4 #8fd0c6 #ecc48c #86b8ec #c3c8cf #a9b7ee #dcb9b9 #b5d3b9 #cfc3e4 #d9cfa5 #dfc0a8 #b3d2dd"
        ),
        **_MARK,
    },
)
#: Takes foreground and background from the terminal; neighbours in the bar differ.
FEW_COLOURS = Theme(
    name="tuner-16",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_blue",
    accent="ansi_yellow",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    dark=True,
    variables={
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "block-cursor-background": "ansi_blue",
        "block-cursor-foreground": "ansi_bright_white",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "ansi_yellow",
        "input-cursor-background": "ansi_white",
        "input-cursor-foreground": "ansi_black",
        "input-selection-background": "ansi_cyan",
        "input-selection-foreground": "ansi_black",
        "screen-selection-background": "ansi_cyan",
        "screen-selection-foreground": "ansi_black",
        "term-text": "ansi_black",
        **_terms(
            "ansi_white ansi_magenta ansi_green ansi_yellow ansi_cyan ansi_magenta ansi_blue ansi_red ansi_yellow "
            "ansi_magenta ansi_yellow ansi_red ansi_blue"
        ),
        "mark": "ansi_yellow",
        "mark-text": "ansi_black",
    },
)

#: The first is what the app opens with.
THEMES = (_DARK, _LIGHT, FEW_COLOURS)


def few_colours(environ: Mapping[str, str]) -> bool:
    """Whether the terminal has sixteen colours or fewer, by what it says of itself, as Rich takes it."""
    asked = environ.get("TEXTUAL_COLOR_SYSTEM", "auto")
    if asked != "auto":
        return asked == "standard"
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return False
    return environ.get("TERM", "").rsplit("-", 1)[-1] not in ("256color", "kitty")
