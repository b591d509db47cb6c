"""The programs of `dpfbo COMMAND`; they need the packages of the extra `run`."""

import sys

from dpfbo.extras import MissingPackage, check_installed

PACKAGES = (
    "hydra", "joblib", "matplotlib", "omegaconf", "pooch", "pyarrow", "yaml", "requests", "rich", "threadpoolctl",
)  # fmt: skip

if sys.argv[:1] == ["-m"]:  # Python is looking for the module of `python -m runners.X`, which it has not imported yet
    try:
        check_installed(PACKAGES, "run", "a program of dpfbo")
    except MissingPackage as error:
        sys.exit(f"error: {error}")
