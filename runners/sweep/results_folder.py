"""After a sweep: its figures, tables, verdicts and report in one folder.

The programs of `analysis` draw them from the files of the trials, as they do by themselves. Runners never import
`analysis`, and so each one is a process of its own.
"""

import subprocess
import sys
from collections.abc import Sequence

from rich.console import Console

from dpfbo.formats.files import replace_text
from runners.sweep.plan import SweepPlan
from runners.sweep.trials import States


def write_results(
    sweeps: Sequence[SweepPlan], states: Sequence[States], overrides: Sequence[str], console: Console
) -> bool:
    """Write the results of the experiments that have finished trials; returns False if a program could not.

    overrides: the command line, which names the folder: `results/paper` of `experiment=paper`.
    """
    found = [
        s.experiment for s, known in zip(sweeps, states, strict=True) if any(t.phase == "done" for t in known.values())
    ]
    if not found:
        return True
    asked = {o.lstrip("+").partition("=")[0]: o.partition("=")[2] for o in overrides}
    results_dir = sweeps[0].folder.parent
    folder = results_dir / (asked.get("experiment") or sweeps[0].experiment).replace(",", "+")
    folder.mkdir(parents=True, exist_ok=True)
    programs = {
        "figures": ["--out", folder / "figures"], "tables": [], "claims": ["--out", folder],
        "report": ["--out", folder / "report.html"],
    }  # fmt: skip
    failed = []
    for name, options in programs.items():
        console.print(f"python -m analysis.{name}")
        line = [sys.executable, "-m", f"analysis.{name}", *found, *map(str, options), f"results_dir={results_dir}"]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)  # errors go to the terminal
        failed += [name] if done.returncode else []
        if name == "tables":
            replace_text(folder / "tables.txt", done.stdout, mode=0o600)  # it may tell of real data
    console.print(f"figures/, tables.txt, claims.md and report.html are in {folder}", soft_wrap=True)
    if failed:
        console.print(f"not whole, see the errors above: {', '.join(failed)}")
    return not failed
