"""python -m runners.wandb: upload offline runs, log finished ones, save dashboards and reports, write W&B sweeps."""

import argparse
import inspect
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from runners.arguments import Parser
from runners.compose.conf_folder import CONF
from runners.compose.overrides import no_setting, one_sentence, quoted
from runners.record.terminal import say_error
from runners.wandb.backfill import LoggedExperiment, log_experiment
from runners.wandb.finished_runs import finished_runs
from runners.wandb.upload import upload
from runners.wandb.workspace import build, build_report, save, specification, title

HELP = """Weights & Biases, in addition to the files of a run: docs/guides/wandb.md.

Examples
  python -m runners.wandb sync                       upload every experiment in results (make wandb-sync)
  python -m runners.wandb sync fig2c --finished      without unfinished runs
  python -m runners.wandb backfill fig2c             log to results/fig2c/wandb; upload with sync
  python -m runners.wandb backfill fig2c --online    log to the server
  python -m runners.wandb workspace fig2c            print sections and panels; --json: specification
  python -m runners.wandb workspace fig2c --save     save a view that everyone in the team can open
  python -m runners.wandb report fig2c --save        save a report: regret against epsilon, the summary
  python -m runners.wandb sweep problem=branin privacy.z=1,2 seeds=0..4 experiment_name=mine --save mine.yaml
                                                     write a file for `wandb sweep` and `wandb agent`

Access to the server needs `wandb login` or WANDB_API_KEY. Exit code: 0, that of `wandb sync`, 1 if there is nothing to
log or something could not be logged or saved, 2 for an invalid command line, 130 after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; return the exit code."""
    args = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        return args.do(args)
    except KeyboardInterrupt:
        say_error("interrupted; run the command again to do the rest")
        return 130
    except ImportError as error:
        say_error(f"W&B is not installed ({error}): pip install 'dpfbo[wandb]'")
    except (OSError, ValueError) as error:
        say_error(str(error))
    return 1


def sync(args: argparse.Namespace) -> int:
    """Upload the offline W&B runs of experiments. Unfinished runs are followed to their end, or until Ctrl-C."""
    return upload(args.folders, follow=not args.finished)


def backfill(args: argparse.Namespace) -> int:
    """Log finished runs to W&B from their files; also log an experiment's summary if the summary has changed."""
    import wandb  # noqa: F401  # fails here if W&B is missing, instead of warning for each run

    found = [folder for folder in args.folders if finished_runs(folder)]
    if not found or (args.experiments and found != args.folders):
        missing = next((f" of {folder.name!r}" for folder in args.folders if folder not in found), "")
        raise FileNotFoundError(f"no finished run{missing if args.experiments else ''} in {args.results_dir}")
    code = 0
    for folder in found:
        settings = _with_artifacts(folder) if args.artifacts else None
        result = log_experiment(folder, args.mode, args.again, console=Console(stderr=True), settings=settings)
        print(f"{folder.name}: {_in_words(result)}")
        code |= bool(result.failed or result.skipped or result.summary is None)
    return code


def _with_artifacts(folder: Path) -> dict[str, Any]:
    """Return `tracker.wandb` of an experiment's first run, with `artifacts` changed to True.

    Raises ValueError if `tracker.wandb.show` of a run hides values that were not released: artifacts would show them.
    """
    found = [run for run in finished_runs(folder) if not run.shown]
    if found:
        raise ValueError(
            "--artifacts uploads records with values that are not released: tracker.wandb.show must be all, or auto "
            f"for simulations, in all runs, got {found[0].folder}"
        )
    return {**finished_runs(folder)[0].config["tracker"]["wandb"], "artifacts": True}


def _in_words(result: LoggedExperiment) -> str:
    others = {"logged before": result.before, "in use or damaged": result.skipped, "not accepted by W&B": result.failed}
    parts = [f"{result.logged} run{'s' * (result.logged != 1)} logged"]
    parts += [f"{count} {words}" for words, count in others.items() if count]
    summary = {True: "logged", False: "as before", None: "not accepted by W&B"}[result.summary]
    return ", ".join([*parts, f"summary {summary}"])


def workspace(args: argparse.Namespace) -> int:
    """Build the dashboard of an experiment locally; --save stores it in the W&B project."""
    built, project = _built(build, args)
    if not _saved_or_printed(built, args):
        print(f"workspace {args.experiment} of project {project}, runs grouped by label")
        for section in specification(built)["section"]["panelBankConfig"]["sections"]:
            print(f"  {section['name']}{'' if section['isOpen'] else ' (closed)'}")
            for panel in section["panels"]:
                print(f"    {title(panel)}")
        print("--save stores it in W&B, --json prints its specification")
    return 0


def report(args: argparse.Namespace) -> int:
    """Build a report of an experiment locally, with regret against epsilon; --save stores it in the W&B project.

    Each --save makes a new report.
    """
    built, project = _built(build_report, args)
    if not _saved_or_printed(built, args):
        print(f"report {built.title!r} of project {project}, runs grouped by label")
        print("--save stores it in W&B, --json prints its specification")
    return 0


def _built(make: Callable[[str, str, str], Any], args: argparse.Namespace) -> tuple[Any, str]:
    logging.getLogger("wandb").setLevel(logging.CRITICAL)
    default = yaml.safe_load((CONF / "tracker" / "default.yaml").read_text())["wandb"]
    project = args.project or default["project"]
    return make(args.experiment, project, args.entity or default["entity"] or ""), project


def _saved_or_printed(built: Any, args: argparse.Namespace) -> bool:
    if args.save:
        print(save(built))
    elif args.json:
        print(json.dumps(specification(built), indent=1))
    return args.save or args.json


def sweep(args: argparse.Namespace) -> int:
    """Write a file for `wandb sweep`.

    Agents of W&B run `python -m runners.run` with the values and seeds that W&B chooses. Values have the syntax
    of runners.sweep. With --method random or bayes, all runs must be simulations of one problem.
    """
    from runners.wandb.sweep_file import sweep_file  # imported here, since it loads torch

    here = [] if args.results_dir == Path("results") else [f"results_dir={args.results_dir}"]
    try:
        text = sweep_file([*args.overrides, *here], args.method)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(one_sentence(str(error))) from error
    if args.save is None:
        print(text, end="")
    else:
        args.save.write_text(text)
        print(f"wandb sweep {args.save}")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m runners.wandb", description=HELP)
    parser.add_folder("results_dir", Path("results"), "results folder (default: results)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(do: Callable[[argparse.Namespace], int], help: str) -> Parser:
        made = commands.add_parser(do.__name__, help=help, description=inspect.getdoc(do))
        made.set_defaults(do=do)
        if do in (sync, backfill):
            made.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="an experiment_name; default: all")
        return made

    add = command(sync, "upload offline runs, also unfinished ones").add_argument
    add("--finished", action="store_true", help="leave out unfinished runs")
    add = command(backfill, "log finished runs from their files").add_argument
    add("--online", dest="mode", action="store_const", const="online", default="offline", help="log to the server")
    add("--again", action="store_true", help="also log runs that were logged before, as new runs")
    add("--artifacts", action="store_true", help="also log the runs' records, and the figures of sweep.report")
    for do, help in ((workspace, "build an experiment's dashboard"), (report, "build an experiment's report")):
        view = command(do, help)
        add, form = view.add_argument, view.add_mutually_exclusive_group()
        add("experiment", metavar="EXPERIMENT", help="experiment_name of the runs, which is their group in W&B")
        add("--project", metavar="NAME", help="project; default: that of conf/tracker/default.yaml")
        add("--entity", metavar="NAME", help="user or team; default: that of the API key")
        form.add_argument("--json", action="store_true", help="print the specification that --save would send")
        form.add_argument("--save", action="store_true", help="store it in the W&B project")
    add = command(sweep, "write a file for `wandb sweep`").add_argument
    add("overrides", nargs="*", type=quoted, metavar="KEY=VALUE", help="settings and values, as for runners.sweep")
    add("--method", choices=["grid", "random", "bayes"], default="grid", help="how W&B chooses (default: grid)")
    add("--save", type=Path, metavar="FILE", help="write to this file; default: print")
    args = parser.parse_args(argv)
    for word in getattr(args, "overrides", ()):
        if "=" not in word and not word.startswith("~"):
            parser.error(no_setting(word))
    if "experiments" in args:
        results = args.results_dir
        if not results.is_dir():
            parser.error(f"results_dir must be a folder, got {str(results)!r}")
        for name in args.experiments:
            if Path(name).name != name or not (results / name).is_dir():
                parser.error(f"EXPERIMENT must be the name of a folder in {results}, got {name!r}")
        known = args.experiments or sorted(path.name for path in results.glob("*") if path.is_dir())
        args.folders = [results / name for name in known]
    return args
