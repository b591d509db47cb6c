"""dpfbo COMMAND: the programs of `runners` and `analysis` under one name, with completion in shells."""

import difflib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dpfbo.extras import MissingPackage, needing


@dataclass(frozen=True)
class Command:
    """A program. module: holds its `main`. words: its arguments other than options, for completion."""

    module: str
    purpose: str
    words: tuple[str, ...] = ()


SETTINGS, EXPERIMENTS, DATA_FILES = "KEY=VALUE", "EXPERIMENT", "NAME"  # placeholders in `words`
READS_RESULTS = (EXPERIMENTS, "results_dir=")
COMMANDS = {
    "run": Command("runners.run", "one experiment, or several with -m", (SETTINGS,)),
    "sweep": Command("runners.sweep.command", "many settings times many seeds, side by side", (SETTINGS,)),
    "status": Command("runners.status", "how far the trials of experiments are", READS_RESULTS),
    "board": Command("runners.board.command", "one page that shows experiments while they run"),
    "study": Command(
        "runners.study", "one site or the server of a study, with JSON and files in and out",
        ("new", "join", "ask", "tell", "message", "receive", "best", "status", "host", "collect", "release"),
    ),
    "best": Command("runners.best", "the best configuration that every agent found"),
    "privacy": Command(
        "runners.privacy.command", "epsilon of runs, before and after them",
        ("epsilon", "calibrate", "table", "plot", "ledger", "projection", "certificate"),
    ),
    "audit": Command("runners.audit.command", "attacks on a setting's server, and checks of its claim", (SETTINGS,)),
    "theory": Command("runners.theory.command", "terms of the regret bound for finished runs",
                      (*READS_RESULTS, "data_dir=")),
    "headroom": Command("runners.headroom", "how much the agents of problems have in common",
                        (SETTINGS, "results_dir=")),
    "fetch": Command("runners.fetch.command", "download data files", (DATA_FILES, "data_dir=")),
    "wandb": Command("runners.wandb.command", "Weights & Biases: upload, log from files, save a dashboard",
                     ("sync", "backfill", "workspace", *READS_RESULTS)),
    "tables": Command("analysis.tables", "regret beside epsilon, by setting", READS_RESULTS),
    "figures": Command("analysis.figures", "pictures of experiments, and the numbers behind them", READS_RESULTS),
    "agents": Command("analysis.agents", "how the metric spreads over the agents of a run, which may go on"),
    "claims": Command("analysis.claims", "a verdict on every published claim", READS_RESULTS),
    "report": Command("analysis.report", "figures, tables and verdicts in one HTML file", READS_RESULTS),
    "completion": Command("runners.completion", "completion of all this in a shell", ("bash", "zsh", "fish")),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Hand the command line `argv` to the command that it names; returns its exit code, 2 if there is none."""
    name, *rest = (sys.argv[1:] if argv is None else list(argv)) or [""]
    if name in ("", "-h", "--help"):
        print(_help())
        return 2 if not name else 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        print(f"error: unknown command {name!r}{hint}; see dpfbo --help", file=sys.stderr)
        return 2
    sys.argv = [f"dpfbo {name}", *rest]
    module = COMMANDS[name].module
    try:
        with needing("analysis" if module.startswith("analysis.") else "run", f"dpfbo {name}"):
            # by name: importing all programs would take seconds, and runners know no module of analysis
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
Completion: eval "$(dpfbo completion bash)" (or zsh) in the shell's start-up file; dpfbo completion fish | source"""


if __name__ == "__main__":
    sys.exit(main())
