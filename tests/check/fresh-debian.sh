#!/usr/bin/env bash
#
# tests/check/fresh-debian.sh [COMMAND...] - the README's two commands on a bare Debian.
#
# Clones HEAD of this repository into a bare Debian that has git, make and ca-certificates, and runs
# `make demo` and `make test` there, or the commands given. Takes 3 GB and some 15 minutes.
# bare_debian.sh explains RELEASE, CHROOT and KEEP.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/check/bare_debian.sh

commands=("make demo" "make test")
[ $# -gt 0 ] && commands=("$@")

bare_debian git,make,ca-certificates
git clone -q --no-local "$PWD" "$root/root/tp"
failed=0
for c in "${commands[@]}"; do
    echo "$name: $c"
    started=$SECONDS
    inside "$c" || {
        echo "$name: '$c' failed with status $?" >&2
        failed=1
    }
    echo "$name: '$c' took $((SECONDS - started)) s"
done
exit $failed
