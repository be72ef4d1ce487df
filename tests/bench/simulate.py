"""How long simulations take, and how much memory: `python -m tests.bench.simulate [REQUESTS]`.

One process a line, as `headway simulate` runs it, records streamed: the study's profile, continuous with 64 seats,
replies of 128 tokens, at a rate that it can serve and at one where the queue only grows; then a trace, if one is there.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRACE = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"
SIMULATE = [sys.executable, "-m", "experiments", "simulate", "--policies", "continuous", "--queue", "1000000000"]


def timed(words: str, *arguments: str) -> None:
    """Print the wall time and the largest memory of any child so far."""
    with tempfile.TemporaryDirectory() as out:
        begin = time.perf_counter()
        subprocess.run([*SIMULATE, *arguments, "--out", out], check=True, stdout=subprocess.DEVNULL)
        took = time.perf_counter() - begin
        size = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"{words}: {took:.1f} s, at most {peak / 1e6:.0f} MB, {size / 1e6:.0f} MB of records", flush=True)


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for rate in ("3", "6"):
        for requests in (most // 4, most):
            timed(f"{requests:,} requests at {rate}/s", "--rates", rate, "--requests", str(requests))
    if TRACE.is_file():
        timed("Azure's conversation trace", "--trace", str(TRACE))


if __name__ == "__main__":
    main()
