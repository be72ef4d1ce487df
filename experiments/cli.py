"""`headway`: the command that all others hang under; each is imported only when it is asked for."""

import importlib

import click

COMMANDS = {
    "rush": ("experiments.rush_cli", "rush", "Replay one seeded crowd under several admission policies."),
    "fit": ("experiments.fit_cli", "fit", "A cost profile from the steps of earlier runs, and how far it is off."),
    "policies": ("experiments.policies_cli", "policies", "List the admission policies and their settings."),
    "simulate": ("experiments.simulate_cli", "simulate", "The rush in virtual time, on a cost profile."),
    "capacity": ("experiments.capacity.cli", "capacity", "The highest rate that meets objectives, by policy."),
    "sweep": ("experiments.sweep_cli", "sweep", "Start N replies together, for growing N: what batching gains."),
    "prefix": ("experiments.prefix_cli", "prefix", "Sort emails without and with the cache of what prompts share."),
    "kv-quant": ("experiments.kv_quant_cli", "kv_quant", "Find a name in a long pile, with a KV cache of fewer bits."),
    "repeat": ("experiments.repeat_cli", "repeat", "Ask the same again, alone and in batches: are answers the same?"),
    "selftest": ("experiments.selftest_cli", "selftest", "Measure the instrument itself on this machine."),
    "explain-verdict": ("experiments.explain_cli", "explain", "Show every check of a run's cells, with its number."),
    "report": ("experiments.report_cli", "report", "Write a run's report.html again, and its picture as PNG or SVG."),
    "runs": ("experiments.runs_cli", "runs", "List the run folders, newest first, and what each found."),
    "compare": ("experiments.compare_cli", "compare_command", "Two runs side by side; fails where a gate does."),
    "analyse": ("experiments.analyse_cli", "analyse_command", "Rebuild a run's summary.json from its records."),
    "fetch": ("experiments.fetch_cli", "fetch", "Fetch a model, once; the embedded one by default."),
    "kv-size": ("experiments.kv_size_cli", "kv_size", "What a model's KV cache takes, from its configuration alone."),
    "router": ("router.cli", "router", "One role alone: the queue and the policy."),
    "worker": ("worker.cli", "worker", "One role alone: the model and the batching loop."),
    "clients": ("clients.cli", "clients", "One role alone: a client that sends requests."),
}


class LazyGroup(click.Group):
    """Knows its commands by name; loads one when it runs, so that a router never pays for a model."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, _, sentence) in COMMANDS.items()])


@click.group(cls=LazyGroup)
@click.version_option(package_name="headway", prog_name="headway")
def main() -> None:
    """Measures how a language model serves a crowd, and shows where each customer's time went."""
