"""The programs behind `dpfbo COMMAND`.

`dpfbo deploy` needs the packages of the extra `flower`. All other programs need the packages of the extra `run`.
"""

import sys

from dpfbo.extras import check_for_program

PACKAGES = (
    "hydra", "joblib", "matplotlib", "omegaconf", "pyarrow", "yaml", "requests", "rich", "threadpoolctl",
)  # fmt: skip
DEPLOY_PACKAGES = (
    "cryptography",
    "omegaconf",
    "opendp",
    "rich",
    "shamirs",
    "yaml",
)  # flwr is needed only later, by the server and the sites

if any(word.startswith("runners.deploy") for word in sys.orig_argv):
    check_for_program(DEPLOY_PACKAGES, "flower")
else:
    check_for_program(PACKAGES, "run")
