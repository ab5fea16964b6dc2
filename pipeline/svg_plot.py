"""Plots as SVG text: axes, lines, points and bars. Colours are those of the classes ``s0`` ... in the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH = 360.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 14.0, 8.0, 40.0
COLOURS = 6
_MARKER = 3.4

Point = tuple[float, float]


def element(name: str, text: str = "", **attributes: object) -> str:
    """One element around escaped text; ``class_`` is the attribute class, other underscores are hyphens."""
    return container(name, escape(text), **attributes)


def container(name: str, inner: str, **attributes: object) -> str:
    """One element around others."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(f"{value:.2f}" if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{words}>{inner}</{name}>"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, about ``count`` of them, within low and high."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """At most five signs of a round number below 10**13, where the name of an axis stands beside it."""
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * factor:
            return f"{value / factor:g}{prefix}"
    return f"{value:g}"


class Plot:
    """A plot that grows by what is drawn into it.

    Attributes:
        title: for readers that do not see it.
        height: of the area between the axes.
        marks: the elements so far.
    """

    def __init__(self, title: str, x: tuple[float, float], y: tuple[float, float], height: float = 180.0) -> None:
        """``x`` and ``y`` are the ranges of the axes; an empty one is widened."""
        self.title = title
        self.height = height
        self._x, self._y = _widened(*x), _widened(*y)
        self.marks: list[str] = []
        self._below = 2.0

    def axes(self, x_label: str, y_label: str | None) -> None:
        """Grid, numbers and names; no numbers at the side where ``y_label`` is None."""
        bottom, right = TOP + self.height, WIDTH - RIGHT
        self._below = BOTTOM
        if y_label is not None:
            for tick in ticks(*self._y):
                at = self.y(tick)
                self.marks.append(element("line", class_="grid", x1=LEFT, x2=right, y1=at, y2=at))
                self.marks.append(element("text", tick_text(tick), x=LEFT - 6, y=at + 4, text_anchor="end"))
            middle = TOP + self.height / 2
            turned = f"rotate(-90 12 {middle:.0f})"
            self.marks.append(
                element("text", y_label, class_="name", x=12, y=middle, text_anchor="middle", transform=turned)
            )
        for tick in ticks(*self._x):
            at = self.x(tick)
            if y_label is None:
                self.marks.append(element("line", class_="grid", x1=at, x2=at, y1=TOP, y2=bottom))
            self.marks.append(element("text", tick_text(tick), x=at, y=bottom + 16, text_anchor="middle"))
        self.marks.append(element("line", class_="axis", x1=LEFT, x2=right, y1=bottom, y2=bottom))
        middle = (LEFT + right) / 2
        self.marks.append(element("text", x_label, class_="name", x=middle, y=bottom + 34, text_anchor="middle"))

    def line(self, points: Sequence[Point], kind: str) -> None:
        """A line through points of the plot's units; ``kind`` is its class."""
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.marks.append(element("polyline", class_=f"line {kind}", points=places))

    def points(self, points: Sequence[Point], series: int, kind: str = "mark") -> None:
        """A mark of the series' colour and form at each point."""
        form = _FORMS[series % len(_FORMS)]
        for x, y in points:
            path = form(self.x(x), self.y(y))
            self.marks.append(element("path", class_=f"{kind} s{series % COLOURS}", d=path))

    def rectangle(self, x: tuple[float, float], y: float, thickness: float, kind: str) -> None:
        """From one x to another, around the middle ``y``; ``thickness`` in the page's units."""
        left, right = self.x(x[0]), self.x(x[1])
        self.marks.append(
            element(
                "rect",
                class_=kind,
                x=left,
                y=self.y(y) - thickness / 2,
                width=max(right - left, 0.5),
                height=thickness,
                rx=1.5,
            )
        )

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "note") -> None:
        """Text at a place of the page's units."""
        self.marks.append(element("text", text, class_=kind, x=x, y=y, text_anchor=anchor))

    def x(self, value: float) -> float:
        """Where a value stands, from the left."""
        low, high = self._x
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        """Where a value stands, from the top."""
        low, high = self._y
        return TOP + self.height * (high - value) / (high - low)

    def svg(self) -> str:
        """The whole plot."""
        height = TOP + self.height + self._below
        title = element("title", self.title)
        box = f"0 0 {WIDTH:.0f} {height:.0f}"
        return container("svg", title + "".join(self.marks), viewBox=box, role="img", aria_label=self.title)


def marker(series: int) -> str:
    """The mark of a series alone, for a legend."""
    path = element("path", class_=f"mark s{series % COLOURS}", d=_FORMS[series % len(_FORMS)](7, 7))
    return container("svg", path, class_="marker", viewBox="0 0 14 14", aria_hidden="true")


def _widened(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _polygon(*corners: Point) -> Callable[[float, float], str]:
    """A path around a place, its corners in units of a marker."""
    return lambda x, y: "M" + "L".join(f"{x + _MARKER * dx:.1f} {y + _MARKER * dy:.1f}" for dx, dy in corners) + "Z"


def _circle(x: float, y: float) -> str:
    arc = f"a{_MARKER} {_MARKER} 0 1 0"
    return f"M{x - _MARKER:.1f} {y:.1f}{arc} {2 * _MARKER} 0{arc} {-2 * _MARKER} 0Z"


# In the order of series, so that they can be told apart without their colour.
_FORMS: tuple[Callable[[float, float], str], ...] = (
    _circle,
    _polygon((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    _polygon((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
    _polygon((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    _polygon((0, 1.2), (1.1, -0.9), (-1.1, -0.9)),
)
