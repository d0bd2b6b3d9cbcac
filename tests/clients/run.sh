#!/usr/bin/env bash
#
# tests/clients/run.sh - compare with transformers and PyTorch; `make test-clients` calls this.
#
#   run.sh [--install]                 --install: only install the packages, and test nothing
#
# Makes a virtual environment in .venv/ (or in TP_VENV) with the packages of requirements.txt from
# PyPI, in its folder frameworks/ those of requirements-frameworks.txt, and in that one's folder
# megatron-core/ the versions of requirements-megatron.txt, in its folder transformers/ those of
# requirements-transformers.txt, in torchtitan/ those of requirements-torchtitan.txt, in meta/ those
# of requirements-meta.txt, and runs the tests of this folder in it.
# T is an expression of pytest -k. The last line is `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

venv=${TP_VENV:-$PWD/.venv}
wants=tests/clients/requirements.txt

if ! cmp -s "$wants" "$venv/requirements.txt"; then
    echo "clients: installing into $venv from PyPI: $(grep -v '^#' "$wants" | paste -sd ' ')"
    echo "clients: (some gigabytes, because of torch; this takes a few minutes)"
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv" || exit 1
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$wants" </dev/null || {
        echo "clients: pip could not install them; its output is above" >&2
        exit 1
    }
    cp "$wants" "$venv/requirements.txt"
fi

adds=tests/clients/requirements-frameworks.txt
if ! cmp -s "$adds" "$venv/frameworks/requirements.txt"; then
    rm -rf "$venv/frameworks"
    # DeepSpeed has no wheels: it is built, without its kernels, with the packages that are there.
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation \
        --target "$venv/frameworks" -r "$adds" </dev/null || {
        echo "clients: pip could not install $adds; its output is above" >&2
        exit 1
    }
    cp "$adds" "$venv/frameworks/requirements.txt"
fi

cores=tests/clients/requirements-megatron.txt
if ! cmp -s "$cores" "$venv/frameworks/megatron-core/requirements.txt"; then
    rm -rf "$venv/frameworks/megatron-core"
    while read -ra core; do
        python=3.11
        [ ${#core[@]} = 1 ] || python=3.12 # the newest one asks for it, and runs with 3.11
        "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --ignore-requires-python \
            --python-version $python --target "$venv/frameworks/megatron-core/${core[0]#*==}" "${core[@]}" </dev/null || {
            echo "clients: pip could not install ${core[*]}; its output is above" >&2
            exit 1
        }
    done < <(grep -v '^#' "$cores")
    cp "$cores" "$venv/frameworks/megatron-core/requirements.txt"
fi

# Versions that have a folder each: NAME==VERSION, and what it needs in that folder.
for name in transformers torchtitan meta; do
    how=(--only-binary :all:)
    [ $name != meta ] || how=(--no-build-isolation)
    olds=tests/clients/requirements-$name.txt
    if ! cmp -s "$olds" "$venv/frameworks/$name/requirements.txt"; then
        rm -rf "$venv/frameworks/$name"
        while read -ra old; do
            "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "${how[@]}" \
                --target "$venv/frameworks/$name/${old[0]#*==}" "${old[@]}" </dev/null || {
                echo "clients: pip could not install ${old[*]}; its output is above" >&2
                exit 1
            }
        done < <(grep -v '^#' "$olds")
        cp "$olds" "$venv/frameworks/$name/requirements.txt"
    fi
done
[ "${1:-}" != --install ] || exit 0

export TP_FRAMEWORKS=$venv/frameworks

# Do not use the model hub or a GPU: both sides compute on the CPU.
export HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES='' PYTHON=$venv/bin/python
exec "$PYTHON" -B tests/runner/run.py --folder tests/clients
