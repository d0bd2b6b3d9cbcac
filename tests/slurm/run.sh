#!/usr/bin/env bash
#
# tests/slurm/run.sh - the tests of tp-run on a real Slurm; the last line counts them.
# They start a cluster in namespaces of this machine and stop it at the end. Without root or without
# Slurm they are skipped and print the reason. TP_LONG=1 runs the long forms.
limit=3600 # many times what they take, because other work may run beside them
[ -z "${TP_LONG:-}" ] || limit=$((4 * limit))
exec "$(dirname "$0")/../runner/alone.sh" tests/slurm "$limit"
