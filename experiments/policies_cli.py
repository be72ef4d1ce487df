"""`headway policies`: the admission policies there are, and what each can be told."""

import inspect
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from experiments.tables import plain_table, setting_words
from router.policies import POLICIES, params


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def policies(as_json: bool) -> None:
    """List the admission policies, with their settings and the defaults of these.

    Use them as --policy NAME or --policy NAME:key=value,...; docs/policies.md says how to write one of your own.
    """
    found = [described(kind) for kind in POLICIES.values()]
    if as_json:
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(policies_table(found))
    console.print("Your own: --policy FILE.py:CLASS[:key=value,...], as docs/policies.md teaches.")


def described(kind: type[Any]) -> dict[str, Any]:
    """A policy's name, what it does in a sentence, and its settings with their defaults."""
    sentence = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].replace("`", "").split())
    return {"name": kind.name, "sentence": sentence, "settings": params(kind())}


def policies_table(found: list[dict[str, Any]]) -> Table:
    """Fits 80 columns."""
    table = plain_table("Admission policies")
    table.add_column("policy", no_wrap=True)
    table.add_column("settings", no_wrap=True)
    table.add_column("what it does")
    for each in found:
        settings = "\n".join(setting_words(each["settings"]))
        table.add_row(each["name"], settings, each["sentence"], end_section=True)
    return table
