"""Three themes: dark, light, and one that needs no colours.

Meaning is never in a colour alone: marks (``✓ ✗ ! …``) and words carry it too.
"""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="bridge-dark",
    primary="#7aa2d6",
    secondary="#8f9bb3",
    accent="#d8a657",
    foreground="#d7dae0",
    background="#15181d",
    surface="#1b1f26",
    panel="#242a33",
    success="#8ec07c",
    warning="#e0a84f",
    error="#f2777a",
    dark=True,
    variables={
        "good": "#8ec07c",
        "skip": "#e0a84f",
        "bad": "#f2777a",
        "muted": "#858d9b",
        "bar": "#5b7fae",
        "footer-key-foreground": "#d8a657",
        "block-cursor-background": "#33415a",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-text-style": "none",
    },
)

LIGHT = Theme(
    name="bridge-light",
    primary="#2d5f9e",
    secondary="#5c6675",
    accent="#8a5a00",
    foreground="#20242b",
    background="#fafaf7",
    surface="#f1f1ec",
    panel="#e4e5df",
    success="#2e7031",
    warning="#8a5a00",
    error="#b3261e",
    dark=False,
    variables={
        "good": "#2e7031",
        "skip": "#8a5a00",
        "bad": "#b3261e",
        "muted": "#646b76",
        "bar": "#7f9fc6",
        "footer-key-foreground": "#8a5a00",
        "block-cursor-background": "#cfdcee",
        "block-cursor-foreground": "#10141a",
        "block-cursor-text-style": "none",
    },
)

#: Black, white and grey alone; the cursor is what stands out.
PLAIN = Theme(
    name="bridge-plain",
    primary="#d0d0d0",
    secondary="#b0b0b0",
    accent="#ffffff",
    foreground="#d0d0d0",
    background="#000000",
    surface="#000000",
    panel="#202020",
    success="#d0d0d0",
    warning="#ffffff",
    error="#ffffff",
    dark=True,
    variables={
        "good": "#d0d0d0",
        "skip": "#ffffff",
        "bad": "bold #ffffff",
        "muted": "#9a9a9a",
        "bar": "#808080",
        "footer-key-foreground": "#ffffff",
        "block-cursor-background": "#d0d0d0",
        "block-cursor-foreground": "#000000",
        "block-cursor-text-style": "none",
    },
)

THEMES = (DARK, LIGHT, PLAIN)
#: What the variables above are under any other theme.
DEFAULTS = {
    "good": "$text-success",
    "skip": "$text-warning",
    "bad": "$text-error",
    "muted": "$text-muted",
    "bar": "$primary",
}
