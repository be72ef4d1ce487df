"""`headway fetch`: a model, once."""

import click

from worker import models


@click.command()
@click.argument("model", default=models.EMBEDDED)
def fetch(model: str) -> None:
    """Fetch MODEL, the embedded one or one named by its hub id, unless it is here already."""
    try:
        models.check(model)
        folder = models.fetch(model)
    except (ValueError, RuntimeError) as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"The model is in {folder}")
