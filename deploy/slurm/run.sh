#!/usr/bin/env bash
# Submit one run as a Slurm job, with its agents on four nodes: for objectives that take seconds, or for many agents.
#
#   RESULTS=/shared/results deploy/slurm/run.sh problem=landmine experiment_name=one
#
# It is a sweep with one setting and one seed, so the job is requeued, continued, watched and cancelled like that of
# sweep.sh. Do not start `executor=ray_cluster` in a batch script of your own unless that script starts Ray on all nodes.
set -euo pipefail
: "${RESULTS:?is the folder for results, on a disk that all nodes see}"
exec python -m runners.sweep results_dir="$RESULTS" executor=ray executor.placement=SPREAD seeds=0 \
    launcher=slurm launcher.nodes=4 launcher.cpus_per_task=16 launcher.time=04:00:00 "$@"
