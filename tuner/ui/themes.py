"""The app's own colours, dark and light."""

from __future__ import annotations

from textual.theme import Theme

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
    },
)
_LIGHT = Theme(
    name="tuner-light",
    primary="#1f5f99",
    secondary="#5d8fbd",
    accent="#9a6700",
    warning="#9a6700",
    error="#b3261e",
    success="#2e7d4f",
    foreground="#1d232a",
    background="#f7f8fa",
    surface="#eceff3",
    panel="#dfe4ea",
    dark=False,
    variables={
        "block-cursor-background": "#c3d7ea",
        "block-cursor-foreground": "#1d232a",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#9a6700",
    },
)

#: The first is what the app opens with.
THEMES = (_DARK, _LIGHT)
