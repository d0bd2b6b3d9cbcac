#!/usr/bin/env bash
#
# tests/clients/run.sh - ask transformers and PyTorch; `make test-clients` calls this.
#
# Makes a virtual environment in .venv/ (or where TP_VENV says) with the packages of
# requirements.txt from PyPI, once, and runs the tests of this folder in it. T=pattern as in
# `make test`. The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

venv=${TP_VENV:-$PWD/.venv}
wants=tests/clients/requirements.txt
bin=$(cd "${BIN:-bin}" && pwd) || exit 1

if ! cmp -s "$wants" "$venv/requirements.txt"; then
    echo "clients: installing into $venv from PyPI: $(grep -v '^#' "$wants" | paste -sd ' ')"
    echo "clients: (torch and what it brings are some gigabytes; a few minutes)"
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv" || exit 1
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$wants" </dev/null || {
        echo "clients: pip could not install them; its words are above" >&2
        exit 1
    }
    cp "$wants" "$venv/requirements.txt"
fi

if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# No hub, no GPU: both sides compute on this processor.
export HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES='' PYTHONDONTWRITEBYTECODE=1
report=$(mktemp)
trap 'rm -f "$report"' EXIT
TP_BIN=$bin "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider -c tests/pytest.ini \
    --rootdir=. --junitxml="$report" ${T:+-k "$T"} tests/clients </dev/null
rc=$?
"$venv/bin/python" - "$report" "$rc" <<'PY'
import sys
import xml.etree.ElementTree as et
try:
    s = next(et.parse(sys.argv[1]).getroot().iter("testsuite"))
    n, skipped = int(s.get("tests")), int(s.get("skipped"))
    bad = int(s.get("failures")) + int(s.get("errors"))
except (et.ParseError, OSError):
    n, bad, skipped = 1, 1, 0
if int(sys.argv[2]) and not bad:
    n, bad = n + 1, 1
print("%d passed, %d failed%s" % (n - bad - skipped, bad, ", %d skipped" % skipped if skipped else ""))
sys.exit(bad > 0)
PY
