"""The colours of pictures: told apart by colour-blind eyes, by their lightness alone, and on both grounds."""

from dataclasses import dataclass

PARTS = ("waiting", "reading", "writing")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (4, 1), (1, 3), (12, 3), (6, 2, 2, 2))


@dataclass(frozen=True, slots=True)
class Palette:
    """`ink` writes, `faint` draws grids; the rest are of the three parts of a life and of the servers, in order."""

    ground: str
    ink: str
    faint: str
    waiting: str
    reading: str
    writing: str
    servers: tuple[str, ...]

    def parts(self) -> list[str]:
        return [getattr(self, part) for part in PARTS]


# The hues are Okabe and Ito's (https://jfly.uni-koeln.de/color/), lighter where the ground is dark.
LIGHT = Palette(
    "#ffffff", "#1d2530", "#d9dee5", "#8a94a3", "#d98300", "#0067a8",
    ("#b0402a", "#0067a8", "#007a58", "#9a4d86", "#8a6d00", "#3f4a5a", "#5b4bb5", "#a3195b"),
)  # fmt: skip
DARK = Palette(
    "#12161c", "#e6eaf0", "#2f3742", "#8793a5", "#f0a52e", "#58b4ec",
    ("#ff8a70", "#58b4ec", "#35c99d", "#dd94c8", "#e0c040", "#b3bdca", "#a99cff", "#ff7fb4"),
)  # fmt: skip
# In the page a picture names its colours, and the style sheet says what they are: so it follows the reader's choice.
PAGE = Palette(
    "transparent", "var(--ink)", "var(--faint)", "var(--waiting)", "var(--reading)", "var(--writing)",
    tuple(f"var(--server-{number})" for number in range(len(LIGHT.servers))),
)  # fmt: skip


def variables(palette: Palette) -> dict[str, str]:
    """A palette as the style sheet's variables."""
    named = {name: getattr(palette, name) for name in ("ground", "ink", "faint", *PARTS)}
    return named | {f"server-{number}": colour for number, colour in enumerate(palette.servers)}
