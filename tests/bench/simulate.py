"""How long simulations take, and how much memory: `python -m tests.bench.simulate [REQUESTS]`.

One process a line, as `headway simulate` runs it, records streamed: the study's profile, continuous with 64 seats,
replies of 128 tokens, at a rate that it can serve and at one where the queue only grows; then a trace, if one is there.
A request must take as long in a large simulation as in one of half the size.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson

TRACE = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"
SIMULATE = [sys.executable, "-m", "experiments", "simulate", "--policies", "continuous", "--queue", "1000000000"]


def timed(words: str, *arguments: str) -> None:
    """Print the size of a simulation, its wall time and its largest memory. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as out:
        begin = time.perf_counter()
        process = subprocess.Popen([*SIMULATE, *arguments, "--out", out], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        took = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        (cell,) = orjson.loads(next(Path(out).glob("*/summary.json")).read_bytes())["cells"]
        written = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    size = f"{cell['completed']:,} replies, {cell['tokens']:,} tokens, {written / 1e6:.0f} MB written"
    each = f"{took / cell['completed'] * 1e6:.1f} us a reply"
    print(f"{words}: {took:.1f} s, {each}, at most {peak / 1e6:.0f} MB ({size})", flush=True)


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for rate in ("3", "6"):
        for requests in (most // 2, most):
            timed(f"{rate}/s", "--rates", rate, "--requests", str(requests))
    if TRACE.is_file():
        timed("Azure's conversation trace", "--trace", str(TRACE))


if __name__ == "__main__":
    main()
