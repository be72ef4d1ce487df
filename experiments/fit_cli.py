"""`headway fit`: a cost profile from the steps of earlier runs, and how far it is from them."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from experiments.fit import FitError, Residual, residuals
from experiments.fitted import profile_from
from experiments.run_folder import RunFolderError, write_json
from experiments.tables import plain_table
from worker.profile import as_json

KINDS = {
    "decode": "decoding, {} rows",
    "read": "reading, {} prompts",
    "start": "starting, {} prompts",
    "all": "all steps",
}
MS = 1e3


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("profile.json"),
    show_default=True,
    help="File that the profile is written to.",
)
def fit(runs: tuple[Path, ...], out: Path) -> None:
    """Fit a cost profile from the steps that the runs in these folders recorded.

    What a step costs: decoding by rows at once and by context, reading by chunk, prompts and tokens, and starting to
    decode. Shows how far the profile is from what was measured. Use it with `headway simulate --profile FILE`,
    `--engine paced --profile FILE`, or `headway rush --twin --profile-fit FILE`.
    """
    try:
        profile, steps = profile_from(runs)
        write_json(out, as_json(profile))
    except (FitError, RunFolderError) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}") from None
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(residual_table(residuals(profile, steps)))
    console.print(f"Measured: {profile.range}.", soft_wrap=True)
    read, start = profile.read, profile.start
    console.print(
        f"Reading costs {MS * read.per_chunk_s:.3g} ms a chunk, {MS * read.per_prompt_s:.3g} ms a prompt, "
        f"{MS * read.per_token_s:.3g} ms a token and {MS * read.per_pair_s:.3g} ms a pair of tokens; starting to "
        f"decode {MS * start.per_step_s:.3g} ms a step and {MS * start.per_prompt_s:.3g} ms a prompt.",
        soft_wrap=True,
    )
    console.print(f"Cost profile: {out}", soft_wrap=True)


def residual_table(found: Sequence[Residual]) -> Table:
    """One line for steps alike, and one for all."""
    table = plain_table("How far the profile is from the steps it was fitted from")
    table.add_column("steps of", no_wrap=True)
    for name in ("steps", "measured\n(median)", "fitted\n(median)", "error\nmedian", "error\np95"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        table.add_row(
            KINDS[each.kind].format(each.size),
            f"{each.steps:,}",
            f"{MS * each.measured_s:.2f} ms",
            f"{MS * each.fitted_s:.2f} ms",
            f"{each.median:.1%}",
            f"{each.p95:.1%}",
            end_section=each is found[-2] if len(found) > 1 else False,
        )
    return table
