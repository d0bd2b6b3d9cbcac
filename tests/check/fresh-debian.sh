#!/usr/bin/env bash
#
# tests/check/fresh-debian.sh - the README's commands on a bare Debian 12.
#
# Makes a Debian 12 in a folder (debootstrap) that has git, make and ca-certificates besides the
# base, clones this repository's HEAD into it, and types `make demo` and `make test` there (or the
# commands given as arguments). Where packages come from is taken from this machine's apt. Needs
# root; some 3 GB and ten minutes.
#
#   CHROOT=DIR   where to (default: a new folder under TMPDIR, removed at the end)
#   KEEP=1       leave it
set -euo pipefail
cd "$(dirname "$0")/../.."

repo=$PWD
packages=git,make,ca-certificates
commands=("make demo" "make test")
[ $# -gt 0 ] && commands=("$@")

if [ "$(id -u)" -ne 0 ]; then
    echo "fresh-debian: needs root, for debootstrap and chroot" >&2
    exit 1
fi
root=${CHROOT:-$(mktemp -d "${TMPDIR:-/tmp}/fresh-debian.XXXXXX")}

# shellcheck disable=SC2317  # called by the trap
unmount() {
    local at
    for at in proc sys dev/pts dev/shm dev; do
        umount -q "$root/$at" 2>/dev/null || true
    done
}
# The folder goes only when nothing of this machine is mounted in it any more.
# shellcheck disable=SC2317
finish() {
    unmount
    if [ -z "${KEEP:-}" ] && ! grep -q " $root/" /proc/mounts; then
        rm -rf --one-file-system "$root"
    fi
}
trap finish EXIT

# The first mirror of this machine's apt that has bookworm.
mirror() {
    # shellcheck disable=SC2016  # apt's own words
    apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
        awk '$2 == "bookworm" { print $1; exit }'
}

bootstrap() {
    local from
    from=$(mirror)
    if [ -z "$from" ]; then
        echo "fresh-debian: this machine's apt has no Debian 12 (bookworm) to take packages from" >&2
        return 1
    fi
    echo "fresh-debian: debootstrap into $root"
    debootstrap --variant=minbase --include="$packages" bookworm "$root" "$from" >"$root.log" 2>&1 || {
        tail -n 20 "$root.log" >&2
        return 1
    }
    rm -f "$root.log"
}

# Inside, apt asks where this machine's asks, by its certificates and names.
configure() {
    local f
    rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
    mkdir -p "$root/etc/apt/sources.list.d"
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
        [ -e "$f" ] && cp "$f" "$root$f"
    done
    cp -r /etc/apt/trusted.gpg.d /etc/apt/keyrings "$root/etc/apt/" 2>/dev/null || true
    cp -r /etc/apt/auth.conf.d "$root/etc/apt/" 2>/dev/null || true
    apt-config dump | grep -E '^Acquire::(http|https|Retries|Check)' >"$root/etc/apt/apt.conf.d/90host" || true
    cp -L --remove-destination /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount --bind /dev "$root/dev"
    mkdir -p "$root/dev/shm"
    mount --bind /dev/shm "$root/dev/shm" 2>/dev/null || true
}

inside() { # COMMAND
    env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        chroot "$root" /bin/bash -c "cd /root/tp && $1" </dev/null
}

bootstrap
configure
git clone -q --no-local "$repo" "$root/root/tp"
failed=0
for c in "${commands[@]}"; do
    echo "fresh-debian: $c"
    started=$SECONDS
    inside "$c" || {
        echo "fresh-debian: '$c' failed with $?" >&2
        failed=1
    }
    echo "fresh-debian: '$c' took $((SECONDS - started)) s"
done
exit $failed
