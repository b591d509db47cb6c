"""python -m tests.mutants [MODULE ...]: mutmut on the private core; exit code 1 if an unexplained mutant survives."""

import argparse
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.isolation.environment import isolated
from tests.mutants.modules import MODULES
from tests.mutants.mutation import Mutant, mutants_of, tested_copy
from tests.mutants.verdict import SCORE_HEADER, Explained, score_line

EXPLAINED = Path(__file__).with_name("explained.toml")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)} (default: all)")
    parser.add_argument("--processes", type=int, default=2, help="mutants tested at a time (default 2)")
    arguments = parser.parse_args(argv)
    for name in arguments.modules:
        if name not in MODULES:
            parser.error(f"MODULE must be one of {', '.join(MODULES)}, got {name!r}")
    if arguments.processes < 1:
        parser.error(f"--processes must be at least 1, got {arguments.processes}")
    explained = Explained.read(tomllib.loads(EXPLAINED.read_text()))
    unexplained: list[Mutant] = []
    print(SCORE_HEADER, flush=True)
    for name in arguments.modules or MODULES:
        with tempfile.TemporaryDirectory(prefix="mutants") as folder:
            mutants = mutants_of(tested_copy(Path(folder), MODULES[name]), arguments.processes)
        print(score_line(name, mutants, explained), flush=True)
        unexplained += [mutant for mutant in mutants if mutant.survived and mutant not in explained]
    for mutant in unexplained:
        print(f"\nnot explained: {mutant.module}, {mutant.function}")
        print(f"  was      {mutant.was}\n  becomes  {mutant.becomes}")
    print("FAILED" if unexplained else "passed", flush=True)
    return 1 if unexplained else 0


if __name__ == "__main__":
    with isolated():
        code = main()
    sys.exit(code)
