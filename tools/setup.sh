#!/usr/bin/env bash
#
# tools/setup.sh - the Debian packages that this project needs, and their installation.
#
#   tools/setup.sh GROUP...            install what is missing, and print what and why (with apt-get,
#                                      as root or through sudo); does nothing if nothing is missing
#   tools/setup.sh --check GROUP...    only print what is missing; exit 1 if anything is
#   tools/setup.sh --list GROUP...     print the package names of the groups
#
# Groups: build (plain make), demo, test, lint, packaging, clients, long, slurm, radosgw, browser; another one
# is refused with exit code 2. Each entry has a probe. Only if the probe finds nothing is the package missing,
# so software that was installed in another way counts, too.
set -euo pipefail

# group | probe | package | purpose
# Probes: cmd:NAME a program on the PATH; hdr:FILE a header that the compiler finds, or below /usr;
#         lib:FILE a library file below /usr/lib; py:MODULE a module of Debian's Python; file:PATH.
needs() {
    cat <<'TABLE'
build|cmd:gcc|gcc|the C compiler
build|hdr:stdlib.h|libc6-dev|the C library's headers
build|cmd:ar|binutils|archives of object files
build|cmd:pkg-config|pkg-config|compiler flags of libraries
build|hdr:mpi.h|libopenmpi-dev|MPI, communication between ranks
build|cmd:mpirun|openmpi-bin|starting ranks
build|hdr:dnnl.h|libdnnl-dev|oneDNN, fast matrix products on CPUs
build|hdr:hdf5.h|libhdf5-dev|HDF5, the shards of checkpoints
build|hdr:jansson.h|libjansson-dev|JSON, manifests and config.json
build|hdr:isa-l.h|libisal-dev|ISA-L, fast CRC32C
build|hdr:zstd.h|libzstd-dev|zstd, compressed checkpoints
build|hdr:openssl/evp.h|libssl-dev|OpenSSL, SHA-256
build|hdr:yaml.h|libyaml-dev|YAML, job files
build|hdr:microhttpd.h|libmicrohttpd-dev|the status page of tp-run
build|hdr:curl/curl.h|libcurl4-openssl-dev|checkpoints on web servers and in S3, webhooks
demo|cmd:h5dump|hdf5-tools|looking into a shard with HDF5's own program
test|hdr:criterion/criterion.h|libcriterion-dev|Criterion, unit tests
test|cmd:clang++|clang|building for the fake CUDA device
test|file:/usr/bin/python3|python3|integration tests
test|py:pytest|python3-pytest|integration tests
test|py:xdist|python3-pytest-xdist|integration tests, two at a time
test|py:numpy|python3-numpy|an independent reader of checkpoints
test|py:h5py|python3-h5py|an independent reader of checkpoints
test|cmd:h5dump|hdf5-tools|HDF5's own programs read every shard
test|cmd:strace|strace|counting system calls
lint|cmd:clang|clang|a second compiler
lint|cmd:clang-format|clang-format|formatting
lint|cmd:clang-tidy|clang-tidy|static analysis
lint|cmd:cppcheck|cppcheck|static analysis
lint|cmd:shellcheck|shellcheck|shell scripts
lint|lib:libclang_rt.asan*.a|libclang-rt-dev|clang's sanitizers
lint|lib:libomp.so|libomp-dev|clang's OpenMP
lint|file:/usr/aarch64-linux-gnu/include/stdlib.h|libc6-dev-arm64-cross|compiling for arm64
slurm|cmd:slurmctld|slurmctld|tests of tp-run on a real Slurm
slurm|cmd:slurmd|slurmd|tests of tp-run on a real Slurm
slurm|cmd:srun|slurm-client|tests of tp-run on a real Slurm
slurm|lib:mpi_pmix.so|slurm-wlm-basic-plugins|tests of tp-run on a real Slurm
slurm|cmd:munged|munge|tests of tp-run on a real Slurm
slurm|cmd:slurmdbd|slurmdbd|Slurm's accounts
slurm|lib:accounting_storage_mysql.so|slurm-wlm-mysql-plugin|Slurm's accounts
slurm|cmd:mariadbd|mariadb-server|Slurm's accounts
slurm|cmd:ip|iproute2|nodes in network namespaces
radosgw|cmd:radosgw|radosgw|tests with a real S3 store
radosgw|cmd:ceph-mon|ceph-mon|tests with a real S3 store
radosgw|cmd:ceph-osd|ceph-osd|tests with a real S3 store
radosgw|cmd:ceph|ceph-common|tests with a real S3 store
radosgw|cmd:curl|curl|tests with a real S3 store
test|cmd:ss|iproute2|finding the process that listens on a port
test|lib:libfaketime.so.1|faketime|a wall clock that jumps
browser|cmd:chromium|chromium|the status page in a browser
clients|file:/usr/bin/python3|python3|a virtual environment
clients|py:venv|python3-venv|a virtual environment
clients|py:ensurepip|python3-venv|a virtual environment
long|cmd:debootstrap|debootstrap|a bare Debian in a folder
long|file:/usr/sbin/mkfs.xfs|xfsprogs|images of file systems that clone blocks
long|file:/usr/sbin/mkfs.btrfs|btrfs-progs|images of file systems that clone blocks
packaging|file:/usr/bin/python3|python3|generating manual pages and completions
packaging|py:pytest|python3-pytest|tests of what is installed
packaging|py:xdist|python3-pytest-xdist|tests of what is installed
packaging|py:numpy|python3-numpy|tests of what is installed
packaging|file:/usr/share/build-essential/essential-packages-list|build-essential|building Debian packages
packaging|cmd:dpkg-buildpackage|dpkg-dev|building Debian packages
packaging|cmd:dh|debhelper|building Debian packages
packaging|cmd:dh_python3|dh-python|building Debian packages
packaging|cmd:lintian|lintian|checking Debian packages
packaging|cmd:man|man-db|showing manual pages
packaging|cmd:groff|groff|checking manual pages
packaging|cmd:mandoc|mandoc|checking manual pages
packaging|cmd:zsh|zsh|testing completions
packaging|cmd:fish|fish|testing completions
TABLE
}

# Whether a header of this name is in one of Debian's folders, or the compiler finds it.
header_there() {
    local name=$1 dir
    for dir in /usr/include /usr/include/*-linux-gnu /usr/include/hdf5/serial /usr/local/include \
        /usr/lib/*/openmpi/include; do
        [ -e "$dir/$name" ] && return 0
    done
    command -v "${CC:-gcc}" >/dev/null || return 1
    echo "#include <$name>" | "${CC:-gcc}" -E -x c - -o /dev/null 2>/dev/null
}

there() {
    local kind=${1%%:*} what=${1#*:}
    case $kind in
    cmd) command -v "$what" >/dev/null ;;
    hdr) header_there "$what" ;;
    lib) [ -n "$(find /usr/lib -name "$what" -print -quit 2>/dev/null)" ] ;;
    py) [ -e /usr/lib/python3/dist-packages/"$what" ] ||
        /usr/bin/python3 -c "import $what" 2>/dev/null ;;
    file) [ -e "$what" ] ;;
    esac
}

# A group that does not exist would need nothing.
check_groups() {
    local g all
    all=$(needs | cut -d'|' -f1 | sort -u)
    if [ ${#groups[@]} -eq 0 ]; then
        echo "setup: name a group; there are: ${all//$'\n'/ }" >&2
        return 2
    fi
    for g in "${groups[@]}"; do
        if ! grep -qxF -e "$g" <<<"$all"; then
            echo "setup: there is no group '$g'; there are: ${all//$'\n'/ }" >&2
            return 2
        fi
    done
}

in_groups() {
    local g
    for g in "${groups[@]}"; do
        [ "$g" = "$1" ] && return 0
    done
    return 1
}

# PACKAGE|PURPOSE of everything that is missing, each package once.
missing() {
    local group probe package why seen=" "
    while IFS='|' read -r group probe package why; do
        in_groups "$group" || continue
        case $seen in *" $package "*) continue ;; esac
        there "$probe" && continue
        seen="$seen$package "
        echo "$package|$why"
    done < <(needs)
}

say_missing() {
    local package why
    while IFS='|' read -r package why; do
        printf '  %-22s %s\n' "$package" "$why"
    done <<<"$1"
}

install_packages() {
    local as_root=()
    if ! command -v apt-get >/dev/null; then
        echo "setup: this system has no apt-get; install the equivalents of these packages" >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup: you are not root and there is no sudo; run as root: apt-get install $*" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    echo "setup: ${as_root[*]:+${as_root[*]} }apt-get install --no-install-recommends $*"
    # also a source that has nothing to do with these packages can fail
    "${as_root[@]}" apt-get update -qq >"$log" 2>&1 || {
        cat "$log" >&2
        echo "setup: warning: apt-get update failed, its output is above; continuing with the lists that it has" >&2
    }
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >"$log" </dev/null || {
        cat "$log" >&2
        echo "setup: apt-get could not install them; its output is above" >&2
        return 1
    }
}

main() {
    local mode=install gaps packages left
    case ${1:-} in
    --check | --list) mode=${1#--} && shift ;;
    esac
    groups=("$@")
    check_groups || return
    if [ "$mode" = list ]; then
        needs | while IFS='|' read -r group _ package _; do
            if in_groups "$group"; then
                echo "$package"
            fi
        done | sort -u
        return
    fi
    gaps=$(missing)
    [ -n "$gaps" ] || return 0
    echo "setup: these Debian packages are missing (groups: ${groups[*]}):"
    say_missing "$gaps"
    mapfile -t packages < <(cut -d'|' -f1 <<<"$gaps")
    if [ "$mode" = check ]; then
        echo "setup: to install them, run: apt-get install ${packages[*]}"
        echo "setup: 'make setup' does the same; 'make demo' and 'make test' do it by themselves"
        return 1
    fi
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    install_packages "${packages[@]}"
    hash -r
    left=$(missing)
    if [ -n "$left" ]; then
        echo "setup: these are still missing after the installation:" >&2
        say_missing "$left" >&2
        return 1
    fi
    echo "setup: installed"
}

main "$@"
