"""Run folders whose every stamp is known: rushes in virtual time, written by the product's own writer."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from clients.arrivals import poisson
from protocol.records import ClientRecord, RecordWriter, RequestRecord, RouterRecord, StepRecord
from tests.virtual import VirtualRush

SEED = 12
HOSTILE = "Fine.</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"


def write_rush(folder: Path, cells: Mapping[str, tuple[str, float]], requests: int, tokens: int = 128) -> Path:
    """A run of these policies and rates by cell name; every reply is `HOSTILE`."""
    folder.mkdir(parents=True)
    for name, (policy, rate) in cells.items():
        rush = VirtualRush(policy, poisson(requests, rate, SEED), max_tokens=tokens)
        rush.run()
        plan = {"rate": rate, "seed": SEED, "workload": "emails", "max_tokens": tokens}
        label = {"label": f"{policy} at {rate:g}/s", "load": rate}
        write_records(folder, [_told(each, name, plan, label) for each in [*rush.records, *_worker_s_word(rush)]])
    return write_manifest(folder)


def write_manifest(folder: Path, **facts: Any) -> Path:
    manifest = {"experiment": "rush", "complete": True, "reason": None, "settings": {}, "inputs": {}}
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest | facts))
    return folder


def write_records(folder: Path, records: Sequence[Any]) -> None:
    """Each where a run has it: the clients' word is believed before the router's and the worker's."""
    files: dict[str, list[Any]] = defaultdict(list)
    for record in records:
        worker = isinstance(record, StepRecord) or getattr(record, "started", None) is not None
        client = isinstance(record, ClientRecord) or getattr(record, "intended", None) is not None
        files["worker" if worker else f"{record.cell}.{'client-0' if client else 'router'}"].append(record)
    for name, several in files.items():
        writer = RecordWriter(folder / f"{name}.msgpack")
        for record in several:
            writer.write(record)
        writer.close()


def _told(record: Any, cell: str, plan: Mapping[str, Any], labels: Mapping[str, Any]) -> Any:
    changes: dict[str, Any] = {"cell": cell}
    match record:
        case ClientRecord():
            changes["plan"] = plan
        case RouterRecord():
            changes["labels"] = labels
        case RequestRecord(intended=int()):
            changes["text"] = HOSTILE
    return replace(record, **changes)


def _worker_s_word(rush: VirtualRush) -> list[RequestRecord]:
    """In virtual time the wire takes none: a request starts with the first step after it was admitted."""
    begins = [record.begin for record in rush.records if isinstance(record, StepRecord)]
    return [
        RequestRecord(
            request.cell,
            request.id,
            started=begins[bisect_left(begins, request.admitted)],
            first_token=request.first_received,
            last_token=request.last_received,
        )
        for request in rush.cell.requests
        if request.admitted is not None
    ]
