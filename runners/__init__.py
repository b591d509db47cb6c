"""The programs of `dpfbo COMMAND`. They need the packages of the extra `run`."""

from dpfbo.extras import check_for_program

PACKAGES = (
    "hydra", "joblib", "matplotlib", "omegaconf", "pyarrow", "yaml", "requests", "rich", "threadpoolctl",
)  # fmt: skip

check_for_program(PACKAGES, "run")
