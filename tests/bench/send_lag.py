"""How late clients send while the model keeps every core busy: 2 clients, 200 requests a second together.

Far more is offered than any laptop serves; a timeout takes the waiting ones away, so that it ends soon after the last
arrival:

    python -m tests.bench.send_lag --seconds 20
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click


@click.command()
@click.option("--seconds", default=20, show_default=True, help="Length of the schedule.")
@click.option("--rate", default=200, show_default=True, help="Requests a second.")
@click.option(
    "--seats", default=64, show_default=True, help="Seats; with few the worker decodes, with many it reads prompts."
)
def main(seconds: int, rate: int, seats: int) -> None:
    """Print the lag between intended and sent times, nearest rank."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            *(
                sys.executable,
                "-m",
                "experiments",
                "rush",
                "--policies",
                "continuous",
                "--seats",
                str(seats),
                "--rates",
                str(rate),
            ),
            *(
                "--requests",
                str(seconds * rate),
                "--max-tokens",
                "64",
                "--timeout",
                "5",
                "--clients",
                "2",
                "--out",
                out,
            ),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (summary,) = Path(out).glob("*/summary.json")
        (cell,) = json.loads(summary.read_text())["cells"]
    lag = {name: f"{cell['send_lag'][name] * 1000:.3f} ms" for name in ("p50", "p95", "p99", "max")}
    click.echo(f"{cell['sent']} sent, {cell['late']} over 1 ms late, {cell['tokens']} tokens written meanwhile: {lag}")


if __name__ == "__main__":
    main()
