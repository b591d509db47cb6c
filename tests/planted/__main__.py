"""python -m tests.planted [--trials K]: the tables of results/planted-faults.md; exit code 1 if one is not found."""

import argparse
import sys

import torch

from dpfbo.audit.secure.examine import SITE_CHECKS
from dpfbo.audit.server.examine import CHECKS
from tests.planted import faults, secure


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="runs of each of the two worlds (default 1000)")
    trials = parser.parse_args(argv).trials
    torch.set_num_threads(1)
    wrong = _table(faults.sound_ones(), faults.planted(), trials, (*CHECKS, faults.TWO_WORLDS))
    print()
    wrong += _table(secure.sound_ones(), faults.planted_in_sites(), trials, tuple(SITE_CHECKS))
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def _table(sound, planted, trials, names):
    """Print one table; returns the false alarms and the faults that are not found."""
    clean = {name: faults.found_by(target, trials) for name, target in sound.items()}
    caught = {f"{name}: {f.words}": faults.found_by(f.target, trials) for name, f in planted.items()}
    print(faults.markdown({**clean, **caught}, names))
    wrong = [f"false alarm: {title}" for title, by in clean.items() if by]
    return wrong + [f"not found: {title}" for title, by in caught.items() if not by]


if __name__ == "__main__":
    sys.exit(main())
