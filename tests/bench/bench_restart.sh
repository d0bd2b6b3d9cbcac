#!/usr/bin/env bash
# tests/bench/bench_restart.sh - how fast tp-run brings a job back, and what watching costs.
exec "${PYTHON:-/usr/bin/python3}" "$(dirname "$0")/bench_restart.py" "$@"
