#!/usr/bin/env bash
# Submit a sweep as a Slurm job on four nodes. Run this on a login node, with Python's environment active; the code and
# RESULTS must be on a disk that all nodes see.
#
#   RESULTS=/shared/results deploy/slurm/sweep.sh experiment=fig3_landmine scale=paper
#   python -m runners.status fig3_landmine results_dir=/shared/results
#   python -m runners.sweep --cancel experiment=fig3_landmine results_dir=/shared/results
#
# runners.sweep checks the settings and writes the batch script, which starts Ray on all nodes with a token of its own.
# The script requeues itself before the time limit and continues. Further overrides go behind: launcher.partition=long
# launcher.account=mine "launcher.setup=['module load python']".
set -euo pipefail
: "${RESULTS:?is the folder for results, on a disk that all nodes see}"
exec python -m runners.sweep results_dir="$RESULTS" \
    launcher=slurm launcher.nodes=4 launcher.cpus_per_task=16 launcher.time=04:00:00 "$@"
