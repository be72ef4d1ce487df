"""`headway report`: a run's report.html, made again from its records, and its picture as a file."""

from pathlib import Path

import click

from experiments.launch import reference_option
from experiments.run_folder import RunFolderError


@click.command(name="report")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False, exists=True))
@reference_option
@click.option("--no-text", is_flag=True, help="Leave prompts and replies out.")
@click.option("--png", is_flag=True, help="Also write customers.png: every server's customers on one time axis.")
@click.option("--svg", is_flag=True, help="The same as customers.svg.")
@click.option("--markdown", is_flag=True, help="Also write summary.md, fit for a pull request.")
@click.option("--csv", is_flag=True, help="Also write requests.csv: one row a request, all stamps and durations.")
@click.option("--rate", type=float, help="The offered rate that the picture shows; else the highest.")
def report(
    run: Path, study: bool, no_text: bool, png: bool, svg: bool, markdown: bool, csv: bool, rate: float | None
) -> None:
    """Write report.html into the folder RUN, from its records: one file that needs no network.

    RUN may also be a folder into which a router, a worker and clients wrote that were started by hand.
    """
    from experiments.exports import write_markdown, write_requests
    from experiments.report.images import check_rate, write_image
    from experiments.report.write import read_run, write_report

    try:
        measured = read_run(run)
        if png or svg:
            check_rate(measured, rate)
        written = [write_report(run, measured, study=study, texts=not no_text)]
        written += [write_image(run, measured, kind, rate) for kind, asked in (("png", png), ("svg", svg)) if asked]
        written += [write_markdown(run, measured.summary, measured.manifest)] if markdown else []
        written += [write_requests(run, measured.cells, texts=not no_text)] if csv else []
    except (RunFolderError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    for path in written:
        click.echo(f"Written: {path}")
