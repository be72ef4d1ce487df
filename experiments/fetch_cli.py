"""`headway fetch`: the embedded model, once."""

import click

from worker import models


@click.command()
def fetch() -> None:
    """Fetch the embedded model into the cache, unless it is there already."""
    try:
        folder = models.fetch(models.EMBEDDED)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"The embedded model is in {folder}")
