#!/usr/bin/env bash
# tests/bench/bench_restart.sh - how fast tp-run brings a job back, and what watching costs; then the
# same on a Slurm in namespaces, where there are root and Slurm. --slurm: that part alone.
set -uo pipefail
here=$(dirname "$0")
python=${PYTHON:-/usr/bin/python3}
rc=0

if [ "${1:-}" = --slurm ]; then
    shift
else
    "$python" "$here/bench_restart.py" "$@" || rc=$?
fi
if [ "$(id -u)" -eq 0 ] && command -v slurmctld >/dev/null; then
    "$python" "$here/../slurm/bench_slurm.py" || rc=$?
else
    echo "slurm: skipped: needs root and Slurm"
fi
exit $rc
