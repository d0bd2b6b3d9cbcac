# tests/check/bare_debian.sh - a bare Debian in a folder; sourced by the checks that need one.
#
#   bare_debian PACKAGES     make it in $root with these packages beside Debian's minimum
#   inside COMMAND           run a command in it, in /root/tp
#
# RELEASE is its name: bookworm (Debian 12, the default) or trixie (Debian 13). Packages come from where this
# machine's apt gets those of Debian. Needs root and debootstrap. The folder is CHROOT, or a new one under
# TMPDIR. It is removed at the end unless KEEP=1.
# shellcheck shell=bash

name=$(basename "$0" .sh)

if [ "$(id -u)" -ne 0 ]; then
    echo "$name: needs root, for debootstrap and chroot" >&2
    exit 1
fi
release=${RELEASE:-bookworm}
root=${CHROOT:-$(mktemp -d "${TMPDIR:-/tmp}/$name.XXXXXX")}

# shellcheck disable=SC2317  # called by the trap
unmount() {
    local at
    for at in proc sys dev/shm dev/pts dev; do
        umount -q "$root/$at" 2>/dev/null || true
    done
}
# The folder is removed only when nothing of this machine is mounted in it any more.
# shellcheck disable=SC2317
finish() {
    unmount
    if [ -z "${KEEP:-}" ] && ! grep -q " $root/" /proc/mounts; then
        rm -rf --one-file-system "$root"
    fi
}
trap finish EXIT

# The first of this machine's mirrors of Debian that has the release.
mirror() {
    local from
    # shellcheck disable=SC2016  # the name is apt's
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | awk '!seen[$0]++' |
        while read -r from; do
            if /usr/lib/apt/apt-helper download-file "${from}dists/$release/Release" "$root.release" >"$root.log" 2>&1; then
                echo "$from"
                break
            fi
        done
    rm -f "$root.release"
}

bootstrap() { # PACKAGES
    local from
    from=$(mirror)
    if [ -z "$from" ]; then
        echo "$name: this machine's apt has no mirror of Debian with $release to take packages from" >&2
        return 1
    fi
    echo "$name: debootstrap of $release into $root"
    chmod 755 "$root" # for the tests' other users
    debootstrap --variant=minbase --include="$1" "$release" "$root" "$from" >"$root.log" 2>&1 || {
        tail -n 20 "$root.log" >&2
        return 1
    }
    rm -f "$root.log"
}

# apt inside uses the same mirrors, certificates and name servers as apt outside.
configure() {
    local f here
    here=$(. /etc/os-release && echo "$VERSION_CODENAME")
    rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
    mkdir -p "$root/etc/apt/sources.list.d"
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
        [ -e "$f" ] && sed "s/\\b$here\\b/$release/g" "$f" >"$root$f"
    done
    cp -r /etc/apt/trusted.gpg.d /etc/apt/keyrings "$root/etc/apt/" 2>/dev/null || true
    cp -r /etc/apt/auth.conf.d "$root/etc/apt/" 2>/dev/null || true
    apt-config dump | grep -E '^Acquire::(http|https|Retries|Check)' >"$root/etc/apt/apt.conf.d/90host" || true
    cp -L --remove-destination /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount --bind /dev "$root/dev"
    mkdir -p "$root/dev/shm" "$root/root/tp"
    mount --bind /dev/shm "$root/dev/shm" 2>/dev/null || true
    mount --bind /dev/pts "$root/dev/pts" 2>/dev/null || true # terminals
}

bare_debian() { # PACKAGES
    bootstrap "$1"
    configure
}

inside() { # COMMAND
    env -i HOME=/root TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        chroot "$root" /bin/bash -c "cd /root/tp && $1" </dev/null
}
