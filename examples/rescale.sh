#!/bin/sh
#
# examples/rescale.sh - prepare a launch of a trainer of another framework: convert its newest checkpoint to the layout of
# the launch, if a run at another layout saved it.
#
#   rescale.sh ROOT LAYOUT [options of tp-reshard]
#
# The trainer at LAYOUT loads from the folder ROOT/LAYOUT, and saves there. Files named `latest`, `latest_universal`
# (DeepSpeed) or `latest_checkpointed_iteration.txt` (Megatron-LM) in it say which step is complete. Nothing that exists is
# changed before the result is complete, so this can be killed at any time; tp-reshard then continues where it was.
set -eu

[ $# -ge 2 ] || {
    echo "usage: rescale.sh ROOT LAYOUT [options of tp-reshard]" >&2
    exit 2
}
root=$1 layout=$2
shift 2

# The newest complete step in a folder; 0: there is none.
step_of() {
    {
        echo 0
        cat "$1/latest" "$1/latest_universal" "$1/latest_checkpointed_iteration.txt" 2>/dev/null | grep -o '[0-9]*'
    } | sort -n | tail -n 1
}

newest=$root/$layout
step=$(step_of "$newest")
for folder in "$root"/*/; do
    folder=${folder%/}
    saved=$(step_of "$folder")
    if [ "$saved" -gt "$step" ]; then
        newest=$folder
        step=$saved
    fi
done
[ "$newest" != "$root/$layout" ] || exit 0

result=$root/.$layout # hidden from the search above until it is complete
rm -rf "$result"
tp-reshard "$newest" --to "$layout" -o "$result" "$@"
rm -rf "${root:?}/$layout"
mv "$result" "$root/$layout"
