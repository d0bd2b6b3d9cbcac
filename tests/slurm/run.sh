#!/usr/bin/env bash
#
# tests/slurm/run.sh - the tests of tp-run on a real Slurm; the last line counts them.
# They start a cluster in namespaces of this machine and stop it at the end. Without root or without
# Slurm they are skipped and print the reason. TP_LONG=1 runs the long forms.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
TP_BIN=${TP_BIN:-$PWD/bin}
export TP_BIN
log=$(mktemp)
trap 'rm -f "$log"' EXIT
limit=3600 # many times what they take, because other work may run beside them
[ -z "${TP_LONG:-}" ] || limit=$((4 * limit))
timeout "$limit" "${PYTHON:-/usr/bin/python3}" -m pytest -c tests/pytest.ini --rootdir=. -q -rfEs tests/slurm \
    2>&1 | tee "$log"
rc=${PIPESTATUS[0]}
count() { grep -oE "[0-9]+ $1" "$log" | tail -n 1 | cut -d' ' -f1; }
passed=$(count passed) failed=$(count failed) errors=$(count errors?) skipped=$(count skipped)
failed=$((${failed:-0} + ${errors:-0}))
if [ "$rc" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
echo "${passed:-0} passed, $failed failed, ${skipped:-0} skipped"
[ "$failed" -eq 0 ]
