"""python -m tests.planted [--trials K]: the table of docs/concepts/audit.md; exit code 1 if a fault is not found."""

import argparse
import sys

import torch

from tests.planted import faults


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="runs of each of the two worlds (default 1000)")
    trials = parser.parse_args(argv).trials
    torch.set_num_threads(1)
    clean = {name: faults.found_by(target, trials) for name, target in faults.sound_ones().items()}
    caught = {f"{name}: {f.words}": faults.found_by(f.target, trials) for name, f in faults.planted().items()}
    print(faults.markdown({**clean, **caught}))
    wrong = [f"false alarm: {title}" for title, by in clean.items() if by]
    wrong += [f"not found: {title}" for title, by in caught.items() if not by]
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
