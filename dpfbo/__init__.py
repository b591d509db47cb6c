"""Private federated Bayesian optimisation: tensors in, tensors out."""

import os

# MKL may round by where a matrix lies in memory, and so by which agents share a process (dpfbo/gp/batches.py); in this
# mode it does not. It reads the variable at its first call; the speed is the same.
os.environ.setdefault("MKL_CBWR", "AUTO")
