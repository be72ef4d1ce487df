"""The pictures of a crowd being served, each a chart that says what is drawn and leaves the drawing to altair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from experiments.analysis import CellSummary
from experiments.objectives import Objective
from experiments.report.palette import DASHES, PARTS, SHAPES, Palette
from experiments.tables import server

QUANTILES = ("p50", "p95")
MARGIN = 44
LOGARITHMIC = alt.Scale(type="log", nice=False, padding=10)
WHOLE_NUMBERS = "datum.value % 1 ? '' : datum.label"
CHOSEN = "datum.id === chosen"
TALL, SMALL, FONT = 260, 11, "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure of the page: `words` stand below it, `described` is for who cannot see it. `wide` ones take the whole
    width."""

    name: str
    title: str
    words: str
    described: str
    chart: Any
    wide: bool = False


def named(name: str) -> alt.NamedData:
    """Rows that the page hands over when a reader chooses."""
    return alt.NamedData(name=name)


def given(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    return alt.InlineData(values=[*rows])


def clock(title: str | None = None) -> dict[str, Any]:
    """The run's clock as an axis, in seconds, from the parameter `since` to the parameter `until`."""
    scale = alt.Scale(domainMin=alt.ExprRef("since"), domainMax=alt.ExprRef("until"), nice=False)
    return {"scale": scale, "axis": alt.Axis(title=title, tickCount=8)}


def tones(kinds: Mapping[str, str]) -> alt.Color:
    """The field `kind`, each with its colour, and the legend."""
    scale = alt.Scale(domain=[*kinds], range=[*kinds.values()])
    return alt.Color("kind:N", scale=scale, legend=alt.Legend(title=None, orient="top", symbolType="square"))


# --- one crowd ---


def customers(data: Any, palette: Palette, height: Any) -> alt.LayerChart:
    """One bar a customer, all `height` high: a thin line while waiting, then reading and writing. A row is one part of
    one life: `id`, `kind`, `begin` and `end` in seconds, `words`; whether it is the `first`, and where it was `cut`."""
    who = alt.Axis(
        title="customer",
        ticks=False,
        domain=False,
        labelOverlap=True,
        labelSeparation=4,
        minExtent=MARGIN,
    )
    scale = alt.Scale(paddingInner=0.15, paddingOuter=0.3)
    whole = alt.Chart(data).encode(y=alt.Y("id:O", sort=None, scale=scale, axis=who), tooltip="words:N")
    row = (
        whole.transform_filter("datum.first")
        .mark_bar(cursor="pointer", height={"band": 1.15}, color=palette.ink)
        .encode(x=alt.value(0), x2=alt.value("width"), opacity=alt.condition(CHOSEN, alt.value(0.16), alt.value(0)))
    )
    colour = tones({part: getattr(palette, part) for part in PARTS})
    spans = whole.encode(x=alt.X("begin:Q", **clock("seconds since the start")), x2="end:Q", color=colour)
    thin = spans.transform_filter("datum.kind === 'waiting'").mark_bar(height={"band": 0.28}, cursor="pointer")
    thick = spans.transform_filter("datum.kind !== 'waiting'").mark_bar(cursor="pointer")
    cross = whole.mark_point(shape="cross", angle=45, size=48, color=palette.ink, filled=True).encode(x="cut:Q")
    return alt.layer(row, thin, thick, cross).properties(width="container", height=height)


def seats(palette: Palette) -> alt.LayerChart:
    """Rows that decode and read, stacked, and who waits as a line; a static server's departures are upright lines with
    how many boarded, the chosen customer's stay is shaded."""
    count = alt.Axis(title="customers", tickCount=5, minExtent=MARGIN, labelExpr=WHOLE_NUMBERS)
    stay = (
        alt.Chart(named("stay"))
        .mark_rect(opacity=0.13, color=palette.ink)
        .encode(x=alt.X("begin:Q", **clock()), x2="end:Q")
    )
    colour = tones({"decoding": palette.writing, "reading": palette.reading, "waiting": palette.ink})
    rows = (
        alt.Chart(named("seats"))
        .mark_area(interpolate="step-after", opacity=0.85, line=False)
        .encode(
            x=alt.X("t:Q", **clock("seconds since the start")),
            y=alt.Y("n:Q", stack="zero", axis=count),
            color=colour,
            order=alt.Order("place:Q"),
        )
    )
    queue = (
        alt.Chart(named("queue"))
        .mark_line(interpolate="step-after", strokeWidth=1.6, strokeDash=[5, 2])
        .encode(x="t:Q", y=alt.Y("n:Q", axis=count), color=colour)
    )
    buses = alt.Chart(named("departures")).encode(x="t:Q")
    lines = buses.mark_rule(color=palette.ink, strokeDash=[2, 3], opacity=0.7)
    boarded = buses.mark_text(dy=-5, fontSize=SMALL, color=palette.ink, baseline="bottom").encode(
        y=alt.value(0), text="words:N"
    )
    return alt.layer(stay, rows, queue, lines, boarded).properties(width="container", height=200)


def distribution(metric: str, title: str, servers: Sequence[str], palette: Palette) -> alt.LayerChart:
    """How a duration is distributed for each server: the share of replies within so many seconds. p50 and p95 are
    points, with a line as long as their interval."""
    x = alt.X("s:Q", scale=LOGARITHMIC, axis=alt.Axis(title=f"{title}, seconds", format="~g", tickCount=6))
    y = alt.Y(
        "share:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(title="share of replies", format=".0%", tickCount=5)
    )
    colour = server_colour(servers, palette)
    lines = (
        alt.Chart(named(f"{metric}-curve"))
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(x=x, y=y, color=colour, strokeDash=server_dash(servers))
    )
    marked = alt.Chart(named(f"{metric}-marks")).encode(y=alt.Y("share:Q"), color=colour)
    sure = marked.mark_rule(strokeWidth=5, opacity=0.35, strokeCap="round").encode(x="low:Q", x2="high:Q")
    points = marked.mark_point(filled=True, size=70, opacity=1).encode(
        x="s:Q", shape=server_shape(servers), tooltip="words:N"
    )
    return alt.layer(lines, sure, points).properties(width="container", height=TALL)


# --- several loads ---


def load(
    metric: str,
    title: str,
    cells: Sequence[CellSummary],
    objectives: Sequence[Objective],
    servers: Sequence[str],
    palette: Palette,
) -> alt.LayerChart:
    """p50 and p95 by offered rate; `cells` are one for each server and rate. An objective is a line across."""
    data = given(load_rows(metric, cells))
    rate = alt.X("rate:O", axis=alt.Axis(title="requests offered a second", labelAngle=0, format="~g"))
    time = alt.Y("s:Q", scale=LOGARITHMIC, axis=alt.Axis(title=f"{title}, seconds", format="~g", tickCount=6))
    colour = server_colour(servers, palette)
    base = alt.Chart(data).encode(x=rate, color=colour)
    which = alt.StrokeDash(
        "q:N",
        scale=alt.Scale(domain=[*QUANTILES], range=[[1, 0], [5, 4]]),
        legend=None,
    )
    lines = base.mark_line(strokeWidth=2).encode(y=time, strokeDash=which, detail="server:N")
    sure = base.mark_rule(strokeWidth=4, opacity=0.3, strokeCap="round").encode(y="low:Q", y2="high:Q")
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        y="s:Q", shape=server_shape(servers), tooltip="words:N"
    )
    promised = [{"s": each.limit_s, "words": each.text} for each in objectives if each.metric == metric]
    across = levels_across(promised, "s", palette) if promised else []
    return alt.layer(sure, lines, points, *across).properties(width="container", height=TALL)


def levels_across(rows: Sequence[Mapping[str, Any]], field: str, palette: Palette) -> list[alt.Chart]:
    """A dashed line across the picture at each row's `field`, with its `words` above."""
    base = alt.Chart(given(rows)).encode(y=f"{field}:Q")
    lines = base.mark_rule(color=palette.ink, strokeDash=[4, 3], strokeWidth=1.2)
    words = base.mark_text(align="left", dx=4, dy=-6, fontSize=SMALL, color=palette.ink)
    return [lines, words.encode(x=alt.value(0), text="words:N")]


def load_rows(metric: str, cells: Sequence[CellSummary]) -> list[dict[str, Any]]:
    """A row for each server, rate and percentile that was measured; no row for what was not."""
    rows = []
    for cell in cells:
        spread = getattr(cell, metric)
        for q in QUANTILES:
            value, interval = getattr(spread, q), getattr(spread, f"{q}_interval") or (None, None)
            if value and cell.rate is not None:
                words = f"{server(cell)}, {cell.rate:g}/s: {q} {value:.3g} s"
                rows.append(
                    {"rate": cell.rate, "server": server(cell), "q": q, "s": value, "words": words}
                    | dict(zip(("low", "high"), interval, strict=True))
                )
    return rows


# --- several predictors ---


def gains(rows: Sequence[Mapping[str, Any]], title: str, palette: Palette) -> alt.LayerChart:
    """How much sooner by how often a predictor is wrong. A row is a predictor at one load, its `server`: `wrong` as a
    share, seconds `sooner`, from `low` to `high`, its `name` and `words`. Names stand at the last load alone."""
    loads = list(dict.fromkeys(row["server"] for row in rows))
    worst = max(0.5, *[row["wrong"] for row in rows])
    scale = alt.Scale(domain=[-0.04, worst + 0.04], nice=False)
    axis = alt.Axis(title="pairs guessed in the wrong order", format=".0%", values=[0, 0.25, 0.5, 0.75, 1])
    base = alt.Chart(given(rows)).encode(
        x=alt.X("wrong:Q", scale=scale, axis=axis), color=server_colour(loads, palette)
    )
    sure = base.mark_rule(strokeWidth=4, opacity=0.3, strokeCap="round").encode(y="low:Q", y2="high:Q")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        y=alt.Y("sooner:Q", axis=alt.Axis(title=f"{title}, seconds sooner")),
        shape=server_shape(loads),
        tooltip="words:N",
    )
    names = base.transform_filter(alt.datum.server == loads[-1]).mark_text(dy=-12, fontSize=SMALL)
    named_points = names.encode(y="sooner:Q", text="name:N", color=alt.value(palette.ink))
    level = levels_across([{"at": 0, "words": ""}], "at", palette)
    return alt.layer(*level, sure, points, named_points).properties(width="container", height=TALL)


# --- servers, told apart by colour, by dash and by shape ---


def server_colour(servers: Sequence[str], palette: Palette, symbol: str | None = None) -> alt.Color:
    """`symbol` is for legends of marks without a shape of their own."""
    legend = _legend(servers)
    if symbol is not None:
        legend.symbolType = symbol
    return alt.Color("server:N", scale=_scale(servers, palette.servers), legend=legend)


def server_dash(servers: Sequence[str]) -> alt.StrokeDash:
    return alt.StrokeDash("server:N", scale=_scale(servers, [[*dash] for dash in DASHES]), legend=_legend(servers))


def server_shape(servers: Sequence[str]) -> alt.Shape:
    return alt.Shape("server:N", scale=_scale(servers, SHAPES), legend=_legend(servers))


def _legend(servers: Sequence[str]) -> alt.Legend:
    return alt.Legend(title=None, orient="top", columns=2 if len(servers) > 2 else 3)


def _scale(servers: Sequence[str], marks: Sequence[Any]) -> alt.Scale:
    return alt.Scale(domain=[*servers], range=[marks[place % len(marks)] for place in range(len(servers))])


# --- the style of all ---


def styled(chart: Any, palette: Palette, since: float = 0.0, until: float = 1.0) -> Any:
    """The chart in the product's one style; its parameters are `since` and `until`, the ends of the clock, and
    `chosen`, a customer.

    Screen readers have the tables, which say it all; a thousand unnamed bars would bury them.
    """
    axis = {
        "labelColor": palette.ink, "titleColor": palette.ink, "domainColor": palette.faint, "tickColor": palette.faint,
        "gridColor": palette.faint, "titleFontWeight": "normal", "labelFontSize": SMALL, "titleFontSize": SMALL + 1,
    }  # fmt: skip
    legend = {
        "labelColor": palette.ink,
        "labelFontSize": SMALL + 1,
        "labelLimit": 220,
        "symbolSize": 110,
        "symbolOpacity": 1,
    }
    title = {"color": palette.ink, "anchor": "start", "fontSize": 13}
    values = {"since": since, "until": until, "chosen": None}
    params = [alt.param(name=name, value=value) for name, value in values.items()]
    return chart.add_params(*params).configure(
        aria=False,
        autosize={"type": "fit-x", "contains": "padding"},
        background=palette.ground,
        font=FONT,
        axis=axis,
        legend=legend,
        title=title,
        view={"stroke": None},
    )
