"""The customers picture as a file, without a browser: every server at one rate, on one time axis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from experiments.report.page import drawn
from experiments.report.palette import LIGHT, PARTS
from experiments.report.pictures import SMALL, customers, given, styled
from experiments.report.rows import CellRows, Customer
from experiments.report.write import Measured
from experiments.run_folder import SIMULATED
from experiments.settings_words import served
from experiments.statistics import Interval
from experiments.tables import highest, offered

WIDTH, HEIGHT, STEPS, SCALE = 820, 330, (2, 9), 2


def check_rate(measured: Measured, rate: float | None) -> None:
    """Raises ValueError, in one line, for a rate that was not offered, and where there is nothing to draw."""
    if not any(cell.requests for cell in measured.cells.values()):
        raise ValueError("no request was recorded, so there is no picture of customers")
    rates = sorted({cell.rate for cell in measured.summary.cells if cell.rate is not None})
    if rate is not None and rate not in rates:
        known = ", ".join(f"{each:g}" for each in rates) or "none"
        raise ValueError(f"--rate {rate:g} was not offered in this run; offered: {known}")


def write_image(folder: Path, measured: Measured, kind: str, rate: float | None) -> Path:
    """Write customers.png or customers.svg, as `kind` says."""
    path = folder / f"customers.{kind}"
    spec = image_chart(measured, rate).to_dict()
    if kind == "png":
        path.write_bytes(vl_convert.vegalite_to_png(spec, scale=SCALE))
    else:
        path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
    return path


def image_chart(measured: Measured, rate: float | None = None) -> Any:
    """All servers at a rate, the highest if none is named, one below the other; of several seeds the first."""
    rows = shown(measured, rate)
    most = max(len(row.customers) for row in rows)
    step = max(STEPS[0], min(STEPS[1], HEIGHT / most))
    charts = [_titled(row, step) for row in rows]
    since, until = span(rows)
    stacked = alt.vconcat(*charts, spacing=14).resolve_scale(color="shared")
    return styled(stacked.properties(title=_caption(measured)), LIGHT, since, until)


def span(rows: Sequence[CellRows]) -> Interval:
    """The time that the picture shows, in seconds."""
    shown = [row.window or (0.0, row.until) for row in rows]
    return min(begin for begin, _ in shown), max(end for _, end in shown)


def _caption(measured: Measured) -> alt.TitleParams:
    """Below the picture: what served, which run this is, and where it ran."""
    manifest, machine = measured.manifest, measured.manifest.get("machine") or {}
    begun = [f"of {manifest['begun']}"] if manifest.get("begun") else []
    if measured.summary.experiment == SIMULATED:
        words = [" ".join(["simulation", *begun])]
    else:
        words = [" ".join([measured.summary.experiment, *begun])]
        words += [f"{machine['processor']}, {machine['cores']} cores"] if machine else []
    said = "; ".join([*filter(None, [served(manifest)]), *words])
    return alt.TitleParams(said, orient="bottom", offset=10, fontSize=SMALL, fontWeight="normal")


def shown(measured: Measured, rate: float | None) -> list[CellRows]:
    """The cells of the picture; where nothing came at a rate, all of them."""
    wanted = offered(highest(measured.summary.cells)[0]) if rate is None else f"{rate:g}/s"
    found: dict[str, CellRows] = {}
    for row in drawn(measured):
        if row.customers and row.choice.get("rate", wanted) == wanted:
            found.setdefault(row.label if "cell" in row.choice else row.server, row)
    return [*found.values()]


def _titled(row: CellRows, step: float) -> alt.LayerChart:
    chart: alt.LayerChart = customers(given(bars(row)), LIGHT, alt.Step(step)).properties(width=WIDTH, title=row.label)
    return chart


def bars(row: CellRows) -> list[dict[str, Any]]:
    """The rows that the page's own code makes of the same customers."""
    return [bar for customer in row.customers for bar in _bars(customer)]


def _bars(customer: Customer) -> list[dict[str, Any]]:
    spans = [(kind, span) for kind in PARTS if (span := getattr(customer, kind)) is not None]
    made = [
        {"id": customer.id, "kind": kind, "begin": begin, "end": end, "first": place == 0, "cut": None, "words": ""}
        for place, (kind, (begin, end)) in enumerate(spans)
    ]
    if made and customer.end != "completed":
        made[-1]["cut"] = made[-1]["end"]
    return made
