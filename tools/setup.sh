#!/usr/bin/env bash
#
# tools/setup.sh - what this project needs from Debian, and installing it.
#
#   tools/setup.sh GROUP...            install what is missing, saying what and why (apt-get, as root
#                                      or through sudo); does nothing when all is there
#   tools/setup.sh --check GROUP...    only say what is missing; exit 1 if anything is
#   tools/setup.sh --list GROUP...     print the package names of the groups
#
# Groups: build (plain make), demo, test, lint, clients, chroot, slurm, browser. A thing counts as there when its
# probe finds it, wherever it came from; Debian's package is only the way to get it.
set -euo pipefail

# group | probe | package | what for
# Probes: cmd:NAME on the PATH; hdr:FILE a header the compiler finds, or matching under /usr;
#         lib:FILE a library file under /usr/lib; py:MODULE of Debian's Python; file:PATH.
needs() {
    cat <<'TABLE'
build|cmd:gcc|gcc|the C compiler
build|hdr:stdlib.h|libc6-dev|the C library's headers
build|cmd:ar|binutils|archives of object files
build|cmd:pkg-config|pkg-config|compiler flags of libraries
build|hdr:mpi.h|libopenmpi-dev|MPI, ranks that talk to each other
build|cmd:mpirun|openmpi-bin|starting ranks
build|hdr:dnnl.h|libdnnl-dev|oneDNN, fast matrix products on CPUs
build|hdr:hdf5.h|libhdf5-dev|HDF5, the checkpoint's shards
build|hdr:jansson.h|libjansson-dev|JSON, manifests and config.json
build|hdr:isa-l.h|libisal-dev|ISA-L, fast CRC32C
build|hdr:openssl/evp.h|libssl-dev|OpenSSL, SHA-256
build|hdr:yaml.h|libyaml-dev|YAML, job files
build|hdr:microhttpd.h|libmicrohttpd-dev|the status page of tp-run
build|hdr:curl/curl.h|libcurl4-openssl-dev|webhooks
demo|cmd:h5dump|hdf5-tools|looking into a shard with somebody else's program
test|hdr:criterion/criterion.h|libcriterion-dev|Criterion, unit tests
test|file:/usr/bin/python3|python3|integration tests
test|py:pytest|python3-pytest|integration tests
test|py:xdist|python3-pytest-xdist|integration tests, two at a time
test|py:numpy|python3-numpy|an independent reader of checkpoints
test|py:h5py|python3-h5py|an independent reader of checkpoints
test|cmd:h5dump|hdf5-tools|HDF5's own programs read every shard
test|cmd:strace|strace|counting system calls from outside
lint|cmd:clang|clang|a second compiler
lint|cmd:clang-format|clang-format|formatting
lint|cmd:clang-tidy|clang-tidy|static analysis
lint|cmd:cppcheck|cppcheck|static analysis
lint|cmd:shellcheck|shellcheck|shell scripts
lint|lib:libclang_rt.asan*.a|libclang-rt-14-dev|clang's sanitizers
lint|lib:libomp.so|libomp-dev|clang's OpenMP
slurm|cmd:slurmctld|slurmctld|tests of tp-run on a real Slurm
slurm|cmd:slurmd|slurmd|tests of tp-run on a real Slurm
slurm|cmd:srun|slurm-client|tests of tp-run on a real Slurm
slurm|lib:mpi_pmix.so|slurm-wlm-basic-plugins|tests of tp-run on a real Slurm
slurm|cmd:munged|munge|tests of tp-run on a real Slurm
slurm|cmd:slurmdbd|slurmdbd|accounts on it
slurm|lib:accounting_storage_mysql.so|slurm-wlm-mysql-plugin|accounts on it
slurm|cmd:mariadbd|mariadb-server|accounts on it
slurm|cmd:ip|iproute2|nodes in network namespaces
test|cmd:ss|iproute2|who listens where
test|lib:libfaketime.so.1|faketime|a wall clock that jumps
browser|cmd:chromium|chromium|the status page in a browser
clients|file:/usr/bin/python3|python3|a virtual environment
clients|py:venv|python3-venv|a virtual environment
clients|py:ensurepip|python3-venv|a virtual environment
chroot|cmd:debootstrap|debootstrap|a bare Debian in a folder
TABLE
}

# Whether a file of this name lies under the places Debian puts headers in.
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

in_groups() {
    local g
    for g in "${groups[@]}"; do
        [ "$g" = "$1" ] && return 0
    done
    return 1
}

# "package|reason" of each thing that is missing, a package once.
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
        echo "setup: there is no apt-get here; install what these packages have by other means" >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup: not root, and no sudo; as root: apt-get install $*" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    echo "setup: ${as_root[*]:+${as_root[*]} }apt-get install --no-install-recommends $*"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >"$log" </dev/null || {
        cat "$log" >&2
        echo "setup: apt-get could not install them; its words are above" >&2
        return 1
    }
}

main() {
    local mode=install gaps packages left
    case ${1:-} in
    --check | --list) mode=${1#--} && shift ;;
    esac
    groups=("$@")
    if [ "$mode" = list ]; then
        needs | while IFS='|' read -r group _ package _; do
            in_groups "$group" && echo "$package"
        done | sort -u
        return
    fi
    gaps=$(missing)
    [ -n "$gaps" ] || return 0
    echo "setup: missing here, as Debian packages (for: ${groups[*]}):"
    say_missing "$gaps"
    mapfile -t packages < <(cut -d'|' -f1 <<<"$gaps")
    if [ "$mode" = check ]; then
        echo "setup: install them with: apt-get install ${packages[*]}"
        echo "setup: or type 'make setup', which does that (make demo and make test do it too)"
        return 1
    fi
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    install_packages "${packages[@]}"
    hash -r
    left=$(missing)
    if [ -n "$left" ]; then
        echo "setup: still missing after the installation:" >&2
        say_missing "$left" >&2
        return 1
    fi
    echo "setup: installed"
}

main "$@"
