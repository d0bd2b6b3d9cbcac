#!/usr/bin/env bash
#
# tests/check/debian-packages.sh - the packages of `make deb`, installed and used in a bare Debian 12.
#
# Installs them with apt, which finds what they depend on. Then it trains, reshards and verifies,
# reads a manual page, completes a command line, compiles the example against the library and
# runs the Python module; and it removes the packages again. bare_debian.sh explains CHROOT and KEEP.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/check/bare_debian.sh

failed=0
check() { # WHAT COMMAND
    if inside "$2" >"$root/root/log" 2>&1; then
        echo "  ok    $1"
    else
        echo "  FAIL  $1: $2" >&2
        tail -n 20 "$root/root/log" >&2
        failed=1
    fi
}

make deb
bare_debian ca-certificates
cp build/deb/tp-tools_*.deb build/deb/*tp-progress*_*.deb "$root/root/tp/"
rm -f "$root"/root/tp/*dbgsym*
cp -r examples/llama-tiny "$root/root/tp/model"

inside "apt-get update -qq"
check "apt installs them with what they depend on" \
    "apt-get install -y --no-install-recommends ./*.deb"
check "tp-train trains on two ranks" \
    "tp-train --model model/config.json --data /usr/share/common-licenses/GPL-3 --layout tp2 --seq 32 \
     --steps 3 --ckpt ckpt"
check "tp-reshard reshards" "tp-reshard ckpt --to tp4"
check "tp-ckpt verifies" "tp-ckpt verify ckpt-tp4 && tp-ckpt diff ckpt ckpt-tp4"
check "tp-run runs a job" \
    "printf '%s\n' 'name: job' 'command: [tp-train, --model, model/config.json, --data, \
     /usr/share/common-licenses/GPL-3, --steps, 5, --seq, 32]' 'ckpt: runs' 'nodes: [a]' \
     'layouts: {allow: [tp1]}' >job.yaml && tp-run job.yaml"
check "the Python module works" \
    "mkdir beats && TP_PROGRESS_DIR=beats python3 -m tp_progress && [ -n \"\$(ls beats)\" ]"
check "what the next checks need is installed" \
    "apt-get install -y --no-install-recommends man-db bash-completion gcc libc6-dev pkg-config"
for p in tp-train tp-reshard tp-ckpt tp-run; do
    check "man $p" "man $p | grep -q 'User Commands'"
done
check "a new shell completes tp-ckpt ve" \
    "bash -ic '. /usr/share/bash-completion/bash_completion; _completion_loader tp-ckpt; \
     COMP_WORDS=(tp-ckpt ve) COMP_CWORD=1; _tp_ckpt tp-ckpt ve tp-ckpt; [ \"\${COMPREPLY[*]}\" = verify ]'"
check "the example compiles against the library" \
    "gcc /usr/share/doc/libtp-progress-dev/examples/progress.c \$(pkg-config --cflags --libs tp-progress) \
     -o progress && TP_PROGRESS_DIR=beats ./progress"
check "apt removes them" \
    "apt-get purge -y tp-tools libtp-progress0 && ! command -v tp-train && \
     [ -z \"\$(find /usr -name '*tp?progress*' -o -name 'tp-ckpt*')\" ]"
exit $failed
