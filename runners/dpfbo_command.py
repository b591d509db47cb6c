"""dpfbo COMMAND: the programs of `runners` and `analysis` under one name."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dpfbo.checks import nearest
from dpfbo.extras import MissingPackage, needing


@dataclass(frozen=True)
class Command:
    """A command of `dpfbo`. module: the module with its `main`. purpose: its description in --help."""

    module: str
    purpose: str


COMMANDS = {
    "run": Command("runners.run", "one experiment, or several with -m"),
    "sweep": Command("runners.sweep.command", "many settings times many seeds, side by side"),
    "status": Command("runners.status", "progress of the trials of experiments"),
    "board": Command("runners.board.command", "one page that shows experiments while they run"),
    "study": Command("runners.study", "one site or the server of a study, with JSON and files in and out"),
    "deploy": Command("runners.deploy.command", "sites on their own machines and a server, over Flower"),
    "best": Command("runners.best", "the best configuration that every agent found"),
    "privacy": Command("runners.privacy.command", "epsilon of runs, before or after they are made"),
    "audit": Command("runners.audit.command", "attacks on a setting's server, and checks of its claim"),
    "theory": Command("runners.theory.command", "terms of the regret bound for finished runs"),
    "headroom": Command("runners.headroom", "how much the agents of problems have in common"),
    "fetch": Command("runners.fetch.command", "download data files"),
    "wandb": Command("runners.wandb.command", "Weights & Biases: upload, log from files, save a dashboard, sweep"),
    "tables": Command("analysis.tables", "regret and epsilon of each setting"),
    "figures": Command("analysis.figures", "pictures of experiments, and the numbers behind them"),
    "agents": Command("analysis.agents", "spread of the metric over the agents of a run, also while it goes on"),
    "claims": Command("analysis.claims", "a verdict on every published claim"),
    "report": Command("analysis.report", "figures, tables and verdicts in one HTML file"),
    "completion": Command("runners.completion", "completion of commands and settings in a shell"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; return its exit code, or 2 if there is no such command."""
    name, *rest = (sys.argv[1:] if argv is None else list(argv)) or [""]
    if name in ("", "-h", "--help"):
        print(_help())
        return 2 if not name else 0
    if name not in COMMANDS:
        print(f"error: unknown command {name!r}{nearest(name, COMMANDS)}; see dpfbo --help", file=sys.stderr)
        return 2
    sys.argv = [f"dpfbo {name}", *rest]
    module = COMMANDS[name].module
    try:
        extra = "analysis" if module.startswith("analysis.") else "flower" if name == "deploy" else "run"
        with needing(extra, f"dpfbo {name}"):
            # by name: importing all programs would take seconds, and runners must not import analysis
            program = importlib.import_module(module)
    except MissingPackage as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return program.main() or 0


def _help() -> str:
    purposes = "\n".join(f"  {name:<12}{command.purpose}" for name, command in COMMANDS.items())
    return f"""usage: dpfbo COMMAND ...

Private federated Bayesian optimisation.

Commands
{purposes}

Each has its own --help. dpfbo COMMAND is python -m runners.COMMAND; tables, figures, agents, claims and report are
programs of analysis: python -m analysis.COMMAND.
Completion: eval "$(dpfbo completion bash)" in the shell's start-up file"""


if __name__ == "__main__":
    sys.exit(main())
