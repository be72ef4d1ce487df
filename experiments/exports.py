"""What `headway report` writes beside the report: the summary in Markdown, and every request as CSV."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.analysis import CellRecords
from experiments.csv_export import write_csv
from experiments.markdown import markdown
from experiments.run_folder import Summary

MARKDOWN, REQUESTS = "summary.md", "requests.csv"


def write_markdown(folder: Path, summary: Summary, manifest: Mapping[str, Any]) -> Path:
    """The summary as summary.md. Raises OSError."""
    path = folder / MARKDOWN
    path.write_text(markdown(summary, manifest), encoding="utf-8")
    return path


def write_requests(folder: Path, cells: Mapping[str, CellRecords], texts: bool = True) -> Path:
    """All requests as requests.csv, their replies only with `texts`. Raises OSError."""
    path = folder / REQUESTS
    with path.open("w", encoding="utf-8", newline="") as file:
        write_csv(file, cells, texts)
    return path
