"""The page: one HTML file with its pictures, its data and the code that draws them, and no address to load from."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from experiments.headline import headline
from experiments.load_state import OVERLOADED
from experiments.predictor_gains import PredictorGains, predictor_gains
from experiments.report.findings_pictures import findings_pictures
from experiments.report.palette import DARK, LIGHT, PAGE, variables
from experiments.report.pictures import Picture, customers, distribution, gains, load, named, seats, styled
from experiments.report.rows import CELLS_BY_LOAD, CellRows, cell_rows, choices, order
from experiments.report.sheet import sheet, verdict_table
from experiments.report.texts import NOTHING, Texts, texts
from experiments.run_folder import Summary, objectives_of
from experiments.seeds import over_seeds
from experiments.sentences import UNKEPT
from experiments.settings_words import ran_on, settings_words
from experiments.tables import LOADS, MISSING
from worker.cache_folder import cache_folder, made_once

if TYPE_CHECKING:
    from experiments.report.write import Measured

METRICS = {"ttft": "first word (TTFT)", "reply": "whole reply"}
DRAWING = "window.embed = vegaEmbed;"
ADDRESS = re.compile(r"https?://(?!www\.w3\.org/)[^\s\"'`)]*")
HEIGHT = 560
FLOOR = ("round trip p50, 200/s", "round trip p99, 200/s")


def page(measured: "Measured", study: bool = False, with_texts: bool = True) -> str:
    """The whole report of a run."""
    summary, manifest = measured.summary, measured.manifest
    rows = drawn(measured)
    said = spoken(measured, rows) if with_texts else NOTHING
    shown = pictures(measured, rows)
    return _template().render(
        summary=summary,
        headline=headline(replace(summary, complete=True)),  # what is missing stands below it
        settings=settings_words(manifest),
        machine=ran_on(manifest),
        verdicts=verdict_table(sorted(summary.cells, key=order)) if summary.cells else None,
        overloaded=LOADS[OVERLOADED] if any(c.load_state == OVERLOADED for c in summary.cells) else None,
        facets=facets(rows),
        pictures=shown,
        crowd=any(row.customers for row in rows),
        unkept=UNKEPT if manifest.get("detailed") is False else None,
        sheet=sheet(summary, manifest.get("settings") or {}, study),
        floor=floor(manifest),
        light=variables(LIGHT),
        dark=variables(DARK),
        drawing=Markup(drawing()),
        data=Markup(data(rows, said, shown)),
        texts=said,
        with_texts=with_texts,
    )


def drawn(measured: "Measured") -> list[CellRows]:
    """The rows of every cell, in the order in which a reader chooses."""
    cells = sorted(zip(measured.names, measured.summary.cells, strict=True), key=lambda named: order(named[1]))
    where = choices(measured.summary.experiment, [cell for _, cell in cells])
    return [
        cell_rows(name, measured.cells[name], cell, choice, len(cells))
        for (name, cell), choice in zip(cells, where, strict=True)
    ]


def spoken(measured: "Measured", rows: Sequence[CellRows]) -> Texts:
    """The prompts and replies of the customers that are drawn."""
    ids = {row.name: [customer.id for customer in row.customers] for row in rows}
    return texts(measured.cells, ids, measured.manifest.get("inputs") or {})


# --- pictures ---


def pictures(measured: "Measured", rows: Sequence[CellRows]) -> dict[str, list[Picture]]:
    """Those of what the experiment is about, of one crowd, of its distributions, and of several loads."""
    summary = measured.summary
    servers = list(dict.fromkeys(row.server for row in rows))
    crowd = any(row.customers for row in rows)
    return {
        "findings": [*findings_pictures(summary.experiment, summary.findings, PAGE), *_gains(summary)],
        "customers": [_customers(), _seats()] if crowd else [],
        "times": _distributions(rows) if crowd else [],
        "loads": _loads(summary, measured.manifest, servers),
    }


def _gains(summary: Summary) -> list[Picture]:
    """What it gains to know how long replies will be, of a run with several predictors."""
    told = predictor_gains(summary)
    rows = {metric: [row for each in told for row in _gain_rows(each, metric)] for metric in METRICS}
    return [
        Picture(
            f"{metric}-gains",
            f"{words[0].upper()}{words[1:]}: what a better guess of the reply's length gains",
            "The mean, against the policy with the same seats that takes all as they come; below 0 it is later. The "
            "broad line is the 95 % interval over the seeds: where it crosses 0, no difference could be shown.",
            "; ".join(row["words"] for row in rows[metric]),
            gains(rows[metric], words, PAGE),
        )
        for metric, words in METRICS.items()
        if rows[metric]
    ]


def _gain_rows(of: PredictorGains, metric: str) -> list[dict[str, Any]]:
    return [
        {"wrong": each.wrong_order, "sooner": gain.sooner, "name": each.name, "server": of.where}
        | {"words": f"{each.name}, {of.where}: {gain.sooner:.3g} s sooner"}
        | dict(zip(("low", "high"), gain.interval or (None, None), strict=True))
        for each in of.predictors
        if (gain := each.gains[f"{metric}.mean"]).sooner is not None and each.wrong_order is not None
    ]


def _customers() -> Picture:
    return Picture(
        "customers",
        "Where each customer's time went",
        "In order of arrival. Waiting is a thin line: from the intended time to the start in the worker. Reading: from "
        "there to the first token. Writing: to the last one. A cross ends what was not completed. Choose a row to see "
        "that customer.",
        "One bar for each customer; the table of customers below has the same figures.",
        customers(named("customers"), PAGE, HEIGHT),
        wide=True,
    )


def _seats() -> Picture:
    return Picture(
        "seats",
        "The queue and the seats over time",
        "Filled: rows that decode and prompts that are read, step by step. Dashed: how long the queue was. Upright "
        "lines: a static batch left, with so many aboard. Shaded: the chosen customer's stay.",
        "How many customers waited, were read and were written to, at any time.",
        seats(PAGE),
        wide=True,
    )


def _distributions(rows: Sequence[CellRows]) -> list[Picture]:
    names = list(dict.fromkeys(_line(row) for row in rows))
    return [
        Picture(
            f"{metric}-distribution",
            f"{words[0].upper()}{words[1:]}",
            "The share of completed requests that took at most so long. Points: p50 and p95 (nearest rank); the broad "
            "line is the 95 % interval of each, where there are enough requests for one.",
            f"The distribution of the {words}; its percentiles are in the tables.",
            distribution(metric, words, names, PAGE),
        )
        for metric, words in METRICS.items()
    ]


def _loads(summary: Summary, manifest: Mapping[str, Any], servers: Sequence[str]) -> list[Picture]:
    cells = [cell for cell in over_seeds(sorted(summary.cells, key=order)) if cell.rate is not None]
    if summary.experiment not in CELLS_BY_LOAD or len({cell.rate for cell in cells}) < 2:
        return []
    return [
        Picture(
            f"{metric}-load",
            f"{words[0].upper()}{words[1:]}, by load",
            "p50 (solid) and p95 (dashed) by offered rate"
            + (": medians over the seeds." if any(cell.seed is None for cell in cells) else ", with their intervals."),
            f"How the {words} grows with the offered rate; the same figures are in the table by offered rate.",
            load(metric, words, cells, objectives_of(manifest), servers, PAGE),
        )
        for metric, words in METRICS.items()
    ]


def _line(row: CellRows) -> str:
    """What a distribution's line is called: a server, or a cell that is found by its label."""
    return row.choice.get("server", row.choice.get("cell", row.server))


def facets(rows: Sequence[CellRows]) -> list[tuple[str, list[str], str]]:
    """What a reader chooses by: each name with its values and the one that is chosen first, that of the highest
    rate. Only what has several values is worth a choice, but one choice there always is."""
    if not rows:
        return []
    first = max(rows, key=lambda row: row.until if "cell" in row.choice else 0.0)
    if "rate" in first.choice:
        first = next(row for row in rows if row.choice["rate"] == rows[-1].choice["rate"])
    return [
        (name, list(dict.fromkeys(row.choice[name] for row in rows)), chosen) for name, chosen in first.choice.items()
    ]


# --- data ---


def data(rows: Sequence[CellRows], said: Texts, shown: Mapping[str, Sequence[Picture]]) -> str:
    """Strict JSON that can stand inside a page: all that is drawn, and how."""
    specs = {each.name: specification(each) for several in shown.values() for each in several}
    cells = [asdict(row) | {"line": _line(row)} for row in rows]
    made = orjson.dumps({"cells": cells, "texts": asdict(said), "specs": specs}).decode()
    return made.replace("<", "\\u003c")


def drawing() -> str:
    """The library that draws, as one script, which takes a second to make."""
    made = made_once(cache_folder() / f"drawing-{version('vl-convert-python')}.js", _write_drawing)
    return made.read_text(encoding="utf-8")


def _write_drawing(path: Path) -> None:
    """Its help texts name addresses, which a page that loads nothing does without. Made in a process of its own, since
    that takes a hundred megabytes."""
    code = f"import vl_convert; print(vl_convert.javascript_bundle({DRAWING!r}))"
    made = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout.decode()
    path.write_text(ADDRESS.sub("", made), encoding="utf-8")


def specification(picture: Picture) -> dict[str, Any]:
    """A picture as the drawing library takes it. Its schema is named by an address, which a page may not have."""
    sized = picture.chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = styled(sized, PAGE).to_dict()
    return {name: value for name, value in spec.items() if name != "$schema"}


def floor(manifest: Mapping[str, Any]) -> str:
    """What the instrument itself takes, from the last self-test before the run."""
    tested = manifest.get("selftest") or {}
    found = [(name, (tested.get("properties") or {}).get(name)) for name in FLOOR]
    told = ", ".join(f"{name}: {MISSING if value is None else f'{value:.2g} ms'}" for name, value in found)
    return f"{told} (self-test of {tested['begun']})" if tested.get("begun") else MISSING


def _template() -> Template:
    loader = PackageLoader("experiments", "report")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return found.get_template("page.html.j2")
