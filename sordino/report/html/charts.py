"""SVG charts inside a page: no library, no network, colours from the page's style."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Distances between two ticks, up to a power of ten."""


@dataclass(frozen=True)
class Scale:
    """An axis: numbers from `low` to `high` lie between the places `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Position of a number; one beyond the axis lies at its end."""
        low, high, value = (self._moved(one) for one in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round numbers on the axis."""
        if self.logarithmic:
            return _powers(self.low, self.high, wanted)
        span = (self.high - self.low) / wanted
        if span <= 0:
            return [self.low]
        power = 10 ** math.floor(math.log10(span))
        step = next(step * power for step in STEPS if step * power >= span * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [round(place * step, 12) for place in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _moved(self, value: float) -> float:
        return math.log(max(value, math.ulp(0.0))) if self.logarithmic else value


def around(values: Sequence[float], start: float, end: float, logarithmic: bool = False) -> Scale:
    """An axis that holds all of the numbers, with a little air."""
    low, high = min(values), max(values)
    if logarithmic:
        air = (high / low) ** 0.05 if high > low else 1.5
        return Scale(low / air, high * air, start, end, True)
    air = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return Scale(low - air, high + air, start, end)


def spread_out(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions moved apart, in their order, until each is `gap` from the next, within `low` to `high` if they fit."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for before, after in itertools.pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    ceiling = high
    for index in reversed(order):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    shift = max(0.0, low - moved[order[0]]) if order else 0.0
    return [place + shift for place in moved]


def number(value: float) -> str:
    """Format the number at a tick in few characters."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _powers(low: float, high: float, wanted: int) -> list[float]:
    """Powers of ten on a logarithmic axis, with 2 and 5, or 3, between them where there is room."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= wanted + 2:
            return found
    every = math.ceil(len(found) / wanted)
    return found[::every]


WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 48, 10, 36
"""Margins in pixels; the right one holds the last value of each line."""
COLOURS = 8
"""Number of colours of the page's style."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""Lines beyond the colours differ by their dashes too."""

Words = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """A line of a picture."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    """Lower edge of the band around the line; `high` is the upper one."""
    high: Sequence[float] | None = None
    colour: int | None = None
    """Index of one of the page's colours; by default lines take them in turn."""

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]], name: str = "", colour: int | None = None) -> Line:
        """Line through some points."""
        return cls(name, [x for x, _ in points], [y for _, y in points], colour=colour)


def percent(value: float) -> str:
    """Format a share in percent, for an axis."""
    return f"{100 * value:.4g}%"


def lines(
    given: Sequence[Line],
    title: str,
    x_title: str,
    y_words: Words = number,
    end_words: Words | None = None,
    logarithmic: bool = False,
    across_logarithmic: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Draw lines over a common axis, each with its last value at its end; `marks` are level lines with a word."""
    shown = [line for line in given if len(line.x)]
    if not shown:
        return Markup("")
    heights = [value for line in shown for part in (line.y, line.low or (), line.high or ()) for value in part]
    heights += [height for height, _ in marks]
    logarithmic = logarithmic and min(heights) > 0
    y = around(heights, HEIGHT - BOTTOM, TOP, logarithmic)
    across = [value for line in shown for value in line.x]
    x = Scale(min(across), max(across), LEFT, WIDTH - RIGHT, across_logarithmic)
    drawn = [_frame(x, y, x_title, y_words)]
    for height, word in marks:
        drawn.append(_level(y(height), word))
    ends = spread_out([y(line.y[-1]) for line in shown], 11, TOP + 4, HEIGHT - BOTTOM)
    for place, (line, end) in enumerate(zip(shown, ends, strict=True)):
        drawn.append(_line(line, place if line.colour is None else line.colour, x, y, end, end_words or y_words))
    names = [(line.name, place if line.colour is None else line.colour) for place, line in enumerate(shown)]
    return _figure(title, "".join(drawn), HEIGHT, names if len(names) > 1 or names[0][0] else [])


def strip(given: Mapping[str, Sequence[tuple[str, float]]], title: str, x_title: str) -> Markup:
    """Draw a row for each group, with a mark for each of its members, (name, share between 0 and 1); a triangle is the
    mean. Members of nearly the same share are stacked."""
    row, top = 46, 4
    height = top + row * len(given) + 32
    low = min((value for members in given.values() for _, value in members), default=0.0)
    x = Scale(math.floor(10 * low) / 10 if low < 1 else 0.0, 1.0, 14, WIDTH - 18)
    drawn = []
    for tick in x.ticks():
        at = f"{x(tick):.1f}"
        drawn.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{top}" y2="{height - 30}"/>')
        drawn.append(_text(x(tick), height - 18, percent(tick), "tick"))
    for place, (name, members) in enumerate(given.items()):
        ground = top + row * (place + 1) - 2
        drawn.append(_text(14, ground - row + 14, name, "name", "start"))
        drawn += _stack(members, x, ground, f"s{place % COLOURS}")
        if members:
            mean = x(float(np.mean([value for _, value in members])))
            drawn.append(f'<path class="mean" d="M{mean:.1f} {ground - 27}l-4 -6h8z"/>')
    drawn.append(_text(WIDTH / 2, height - 4, x_title, "axis"))
    return _figure(title, "".join(drawn), height, [])


def _stack(members: Sequence[tuple[str, float]], x: Scale, ground: float, colour: str) -> list[str]:
    """Marks of a row; those at nearly the same position stand above each other."""
    piles: dict[int, list[tuple[str, float]]] = {}
    for who, value in members:
        piles.setdefault(round(x(value) / 5), []).append((who, value))
    step = min(7.0, 27 / max(map(len, piles.values()), default=1))
    drawn = []
    for pile in piles.values():
        for level, (who, value) in enumerate(pile):
            size = f'width="4" height="{0.85 * step:.2f}"'
            drawn.append(
                f'<rect class="mark {colour}" x="{x(value) - 2:.1f}" y="{ground - step * (level + 1):.1f}" {size}>'
                f"<title>{escape(who)}: {percent(value)}</title></rect>"
            )
    return drawn


MOST_BARS = 40
"""Most members whose bars are drawn one below the other, with their names."""


def gains(given: Sequence[tuple[str, float]], title: str, x_title: str) -> Markup:
    """Draw a bar for each member, in order: to the right or up where its difference is positive, to the left or down
    where it is negative. Few members stand below each other, by name."""
    if not given:
        return Markup("")
    members = sorted(given, key=lambda one: one[1])
    reach = max(0.05, *(abs(value) for _, value in members))
    if len(members) <= MOST_BARS:
        return _named_gains(list(reversed(members)), reach, title)
    y = Scale(-reach, reach, HEIGHT - BOTTOM, TOP)
    x = Scale(0, len(members), LEFT, WIDTH - 8)
    drawn = [_heights(y, _points, WIDTH - 8)]
    width = (WIDTH - 8 - LEFT) / len(members)
    for place, (who, value) in enumerate(members):
        top, bottom = sorted((y(value), y(0)))
        sign = "gain" if value > 0 else "loss"
        drawn.append(
            f'<rect class="{sign}" x="{x(place):.2f}" y="{top:.1f}" width="{max(0.4, 0.85 * width):.2f}" '
            f'height="{max(0.6, bottom - top):.1f}"><title>{escape(who)}: {100 * value:+.1f} points</title></rect>'
        )
    drawn.append(f'<line class="zero" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>')
    drawn.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, x_title, "axis"))
    return _figure(title, "".join(drawn), HEIGHT, [])


def _named_gains(members: Sequence[tuple[str, float]], reach: float, title: str) -> Markup:
    """Draw bars to both sides of zero, each with its member's name before it and its points behind it."""
    left, row, top = 12 + 6.2 * min(18, max(len(who) for who, _ in members)), 17, 6
    height = top + row * len(members) + 30
    x = Scale(-reach, reach, left + 34, WIDTH - 40)
    drawn = [_across(x, top, height - 28, _points)]
    for place, (who, value) in enumerate(members):
        at = top + row * place
        start, end = sorted((x(value), x(0)))
        sign = "gain" if value > 0 else "loss"
        short = who if len(who) <= 18 else f"{who[:17]}…"
        drawn.append(
            f'<rect class="{sign}" x="{start:.1f}" y="{at + 2}" width="{max(0.6, end - start):.1f}" height="{row - 5}">'
            f"<title>{escape(who)}: {100 * value:+.1f} points</title></rect>"
        )
        drawn.append(_text(left, at + 12, short, "name", "end"))
        beside = (end + 4, "start") if value >= 0 else (start - 4, "end")
        drawn.append(_text(beside[0], at + 12, f"{100 * value:+.1f}", "tick", beside[1]))
    drawn.append(f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{top}" y2="{height - 28}"/>')
    drawn.append(_text((x.start + x.end) / 2, height - 3, "points of accuracy", "axis"))
    return _figure(title, "".join(drawn), height, [])


def _points(value: float) -> str:
    return f"{100 * value:+.4g}" if value else "0"


def _across(x: Scale, top: float, bottom: float, words: Words) -> str:
    """Level ticks of an axis below rows."""
    drawn = ""
    for tick in x.ticks(4):
        drawn += f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{bottom}"/>'
        drawn += _text(x(tick), bottom + 13, words(tick), "tick")
    return drawn


@dataclass(frozen=True)
class Interval:
    """A difference with its interval, in shares of one."""

    name: str
    note: str
    """Words beside the name."""
    mean: float
    low: float | None
    """Lower end of the interval; None where there is none."""
    high: float | None
    words: str | None = None
    """Words in the place of the figures."""


def forest(given: Sequence[Interval], title: str) -> Markup:
    """Draw differences below each other, each a point within its interval, beside a line at zero."""
    if not given:
        return Markup("")
    ends = [0.0, *(end for one in given for end in (one.mean, one.low, one.high) if end is not None)]
    row, top = 36, 4
    height = top + row * len(given) + 30
    x = around(ends, 10, WIDTH - 10)
    drawn = [_across(x, top, height - 28, _points)]
    drawn.append(f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{top}" y2="{height - 28}"/>')
    for place, one in enumerate(given):
        at = top + row * place
        low, high = (one.mean if end is None else end for end in (one.low, one.high))
        kind = "gain" if one.low is not None and low > 0 else "loss" if one.high is not None and high < 0 else "open"
        figures = one.words or f"{100 * one.mean:+.1f}"
        if one.low is not None and one.words is None:
            figures += f" ({100 * low:+.1f} to {100 * high:+.1f})"
        long = max(10, 58 - len(figures) - len(one.note))
        short = one.name if len(one.name) <= long else f"{one.name[: long - 1]}…"
        drawn.append(
            f'<text class="name" x="4" y="{at + 13}"><title>{escape(one.name)}</title>{escape(short)} '
            f'<tspan class="note">{escape(one.note)}</tspan></text>'
        )
        drawn.append(_text(WIDTH - 4, at + 13, figures, "tick", "end"))
        drawn.append(f'<line class="{kind} reach" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{at + 24}" y2="{at + 24}"/>')
        drawn.append(f'<circle class="{kind}" cx="{x(one.mean):.1f}" cy="{at + 24}" r="4"/>')
    drawn.append(_text(WIDTH / 2, height - 3, "points of accuracy", "axis"))
    return _figure(title, "".join(drawn), height, [], " forest")


def cells(counts: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str, x_title: str) -> Markup:
    """Draw a heat map: the larger the count of a row's label at a column's client, the darker the square."""
    left, side = 12 + 6 * min(14, max(len(name) for name in rows)), 14
    height = TOP + side * len(rows) + 26
    width = (WIDTH - left - 8) / len(columns)
    most = max(1, int(counts.max()))
    drawn = []
    for row, name in enumerate(rows):
        short = name if len(name) <= 14 else f"{name[:13]}…"
        drawn.append(_text(left - 5, TOP + side * row + 11, short, "tick", "end"))
        for column, who in enumerate(columns):
            count = int(counts[column, row])
            if count:
                drawn.append(
                    f'<rect class="cell" x="{left + width * column:.2f}" y="{TOP + side * row}" '
                    f'width="{width * 0.96:.2f}" height="{side - 1}" fill-opacity="{0.15 + 0.85 * count / most:.2f}">'
                    f"<title>{escape(who)}: {count:,} × {escape(name)}</title></rect>"
                )
    drawn.append(_text((left + WIDTH) / 2, height - 6, x_title, "axis"))
    return _figure(title, "".join(drawn), height, [])


def budget(
    spent: float | None, limit: float | None, title: str, limit_words: str = "limit", over: bool | None = None
) -> Markup:
    """Draw the epsilon that is spent, None where it is infinite, as a bar up to its limit. Without a limit the bar lies
    on an axis that ends at a power of two.

    Args:
        spent: Length of the bar.
        limit: End of the axis.
        title: Title of the picture.
        limit_words: Words behind the limit.
        over: Whether too much is spent; by default where the limit is reached.
    """
    end = limit or 2.0 ** max(3, math.ceil(math.log2(spent))) if spent else limit or 8.0
    share = 1.0 if spent is None else min(1.0, spent / end)
    over = (spent is None or (limit is not None and share >= 1)) if over is None else over
    kind = "loss" if over else "near" if limit and share > 0.8 else "spent"
    height, width = 34, WIDTH - 8
    ticks = [("0", 4.0, "start"), (f"{end:.4g}" + (f" ({limit_words})" if limit else ""), 4.0 + width - 8, "end")]
    drawn = f'<rect class="track" x="4" y="2" width="{width - 8}" height="14" rx="3"/>'
    drawn += f'<rect class="{kind}" x="4" y="2" width="{max(1.0, share * (width - 8)):.1f}" height="14" rx="3"/>'
    drawn += "".join(_text(x, height - 5, words, "tick", anchor) for words, x, anchor in ticks)
    return _figure(title, drawn, height, [])


def histogram(edges: Sequence[float], counts: Mapping[str, Sequence[float]], title: str, x_title: str) -> Markup:
    """Draw histograms of several groups over each other: counts of numbers between edges."""
    y = Scale(0, 1.05 * max(1.0, *(max(one, default=0) for one in counts.values())), HEIGHT - BOTTOM, TOP)
    x = Scale(edges[0], edges[-1], LEFT, WIDTH - 8)
    drawn = [_frame(x, y, x_title, number, WIDTH - 8)]
    for place, heights in enumerate(counts.values()):
        steps = "".join(f"H{x(edges[i]):.1f}V{y(h):.1f}H{x(edges[i + 1]):.1f}" for i, h in enumerate(heights))
        path = f"M{x(edges[0]):.1f} {y(0):.1f}{steps}V{y(0):.1f}z"
        drawn.append(f'<path class="band s{place}" d="{path}"/><path class="line s{place}" d="{path}"/>')
    return _figure(title, "".join(drawn), HEIGHT, [(name, place) for place, name in enumerate(counts)])


def _line(line: Line, place: int, x: Scale, y: Scale, end: float, words: Words) -> str:
    colour, dash = f"s{place % COLOURS}", DASHES[place // COLOURS % len(DASHES)]
    points = [(x(a), y(b)) for a, b in zip(line.x, line.y, strict=True)]
    drawn = ""
    if line.low is not None and line.high is not None and line.low != line.high:
        upper = [f"{x(a):.1f} {y(b):.1f}" for a, b in zip(line.x, line.high, strict=True)]
        lower = [f"{x(a):.1f} {y(b):.1f}" for a, b in zip(line.x, line.low, strict=True)]
        drawn += f'<path class="band {colour}" d="M{"L".join([*upper, *reversed(lower)])}z"/>'
    if len(points) == 1:
        drawn += f'<circle class="dot {colour}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3"/>'
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    named = f"<title>{escape(line.name)}</title>"
    drawn += f'<path class="line {colour}" stroke-dasharray="{dash}" d="M{path}">{named}</path>'
    last = escape(words(line.y[-1]))
    return f'{drawn}<text class="value {colour}" x="{points[-1][0] + 4:.1f}" y="{end + 4:.1f}">{last}</text>'


def _frame(x: Scale, y: Scale, x_title: str, y_words: Words, right: float = WIDTH - RIGHT) -> str:
    drawn = _heights(y, y_words, right)
    for tick in x.ticks():
        drawn += _text(x(tick), HEIGHT - BOTTOM + 14, number(tick), "tick")
    return drawn + _text((LEFT + right) / 2, HEIGHT - 6, x_title, "axis")


def _heights(y: Scale, words: Words, right: float) -> str:
    drawn = ""
    for tick in y.ticks():
        drawn += f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        drawn += _text(LEFT - 5, y(tick) + 4, words(tick), "tick", "end")
    return drawn


def _level(height: float, word: str) -> str:
    line = f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
    return line + _text(LEFT + 4, height - 4, word, "tick", "start")


def _text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _figure(title: str, drawn: str, height: float, names: Sequence[tuple[str, int]], kind: str = "") -> Markup:
    legend = "".join(f'<li><i class="s{place % COLOURS}"></i>{escape(name)}</li>' for name, place in names)
    listed = f'<ul class="legend">{legend}</ul>' if legend else ""
    box, told = f'class="chart{kind}" viewBox="0 0 {WIDTH} {height:g}"', f'role="img" aria-label="{escape(title)}"'
    svg = f"<svg {box} {told}>{drawn}</svg>"
    return Markup(f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{svg}{listed}</figure>')
