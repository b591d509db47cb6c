"""python -m runners.workspace: the dashboard of an experiment in Weights & Biases, as a saved view of its project."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence

from runners.arguments import Parser
from runners.compose.conf_folder import CONF
from runners.compose.overrides import no_setting
from runners.record.terminal import say_error

HELP = """The dashboard of an experiment in W&B: sections, panels, runs grouped by label with their standard error.

Regret against epsilon and against the round, final regret against final epsilon, the sweep's summary, and below them
what the server and the agents saw. It is built here, without a server; --save stores it in the project, where it is a
saved view that everyone in the team can open.

Examples
  python -m runners.workspace experiment=fig2c                     its sections and panels
  python -m runners.workspace experiment=fig2c --json              its specification
  python -m runners.workspace experiment=fig2c --save              needs `wandb login` or WANDB_API_KEY

Keys
  experiment          the experiment_name of the runs, their group in W&B
  project             default: that of conf/tracker/default.yaml
  entity              user or team; default: that of conf/tracker/default.yaml, or the key's own

Exit code: 0, 1 if it cannot be saved, 2 for a command line that cannot be read."""
KEYS = ("experiment", "project", "entity")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    args, given = _parse(argv)
    logging.getLogger("wandb").setLevel(logging.CRITICAL)
    try:
        from runners.dashboard import workspace_spec

        own = _entity_of_key() if args.save else ""
        entity = given["entity"] or own
        built = workspace_spec.workspace(given["experiment"], given["project"], entity)
    except ImportError as error:
        say_error(f"a workspace needs wandb-workspaces ({error}): pip install 'dpfbo[wandb]'")
        return 1
    except ConnectionError as error:
        say_error(str(error))
        return 1
    spec = workspace_spec.spec(built)
    if args.json:
        print(json.dumps(spec, indent=1))
    elif not args.save:
        _show(given, spec)
    return _save(built) if args.save else 0


def _show(given: dict[str, str], spec: dict) -> None:
    print(f"workspace {given['experiment']} of project {given['project']}, runs grouped by label")
    for section in spec["section"]["panelBankConfig"]["sections"]:
        print(f"  {section['name']}{'' if section['isOpen'] else ' (closed)'}")
        for panel in section["panels"]:
            print(f"    {panel['config'].get('chartTitle') or 'a table of the summary'}")
    print("--save stores it in W&B, --json prints its specification")


def _entity_of_key() -> str:
    """The user or team of the API key. Raises ConnectionError, in one sentence, without a key or a server."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        wandb.setup(wandb.Settings(silent=True))
        if not wandb.login(prompt=False, verify=False):
            raise ConnectionError("--save needs a W&B API key: run `wandb login` or set WANDB_API_KEY")
        return str(wandb.Api(timeout=_SECONDS).default_entity)
    except ConnectionError:
        raise
    except Exception as error:  # W&B has many
        raise ConnectionError(f"--save needs the W&B server, which does not answer: {_sentence(error)}") from error


def _save(built: object) -> int:
    try:
        saved = built.save()  # type: ignore[attr-defined]
    except Exception as error:
        say_error(f"the workspace was not saved: {_sentence(error)}")
        return 1
    print(saved.url)
    return 0


_SECONDS = 15  # longest wait for an answer of the server


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, str]]:
    parser = Parser(
        prog="python -m runners.workspace", description=HELP,
        usage="%(prog)s experiment=NAME [KEY=VALUE ...] [--json | --save]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the specification that --save would send")
    form.add_argument("--save", action="store_true", help="store it in the W&B project")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="experiment, project, entity")
    args = parser.parse_intermixed_args(argv)
    given = _defaults()
    for word in args.settings:
        key, equals, value = word.partition("=")
        if not equals:
            parser.error(no_setting(word))
        if key not in KEYS:
            parser.error(f"unknown key {key!r}: choose of {', '.join(KEYS)}")
        given[key] = value
    if not given["experiment"]:
        parser.error("experiment=NAME must be given, the experiment_name of the runs")
    return args, given


def _defaults() -> dict[str, str]:
    """The project and the entity of the default tracker."""
    from omegaconf import OmegaConf

    tracker = OmegaConf.load(CONF / "tracker" / "default.yaml").wandb
    return {"experiment": "", "project": str(tracker.project), "entity": str(tracker.entity or "")}


if __name__ == "__main__":
    sys.exit(main())
