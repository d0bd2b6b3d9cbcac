#!/usr/bin/env bash
#
# tests/radosgw/run.sh - the tests with Ceph's S3 gateway; the last line counts them.
# They start a Ceph on this machine and stop it at the end. Without it they are skipped and print the reason.
exec "$(dirname "$0")/../runner/alone.sh" tests/radosgw 1800
