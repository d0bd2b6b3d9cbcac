#!/usr/bin/env bash
#
# tests/runner/alone.sh - run a folder's pytest files one after the other, for tests that share a cluster of this
# machine; the last line counts them.
#
#   alone.sh FOLDER SECONDS     after so many seconds they are ended
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
TP_BIN=${TP_BIN:-$PWD/bin}
export TP_BIN
log=$(mktemp)
trap 'rm -f "$log"' EXIT
timeout "$2" "${PYTHON:-/usr/bin/python3}" -m pytest -c tests/pytest.ini --rootdir=. -q -rfEs "$1" 2>&1 | tee "$log"
rc=${PIPESTATUS[0]}
count() { grep -oE "[0-9]+ $1" "$log" | tail -n 1 | cut -d' ' -f1; }
passed=$(count passed) failed=$(count failed) errors=$(count errors?) skipped=$(count skipped)
failed=$((${failed:-0} + ${errors:-0}))
if [ "$rc" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
echo "${passed:-0} passed, $failed failed, ${skipped:-0} skipped"
[ "$failed" -eq 0 ]
