#!/usr/bin/env bash
#
# tools/cuobjdump.sh - install NVIDIA's cuobjdump from PyPI (6 MB) into build/cuobjdump/, unless some CUDA has it.
#
# A CUDA that has only a compiler lacks it, and then `make cuda` cannot compare machine code with its limits.
# A cuobjdump of a later CUDA reads what an earlier nvcc has made; PyPI has none of CUDA 13.0.
set -euo pipefail
cd "$(dirname "$0")/.."

version=13.2.86 # of both packages
folder=build/cuobjdump

if command -v cuobjdump >/dev/null || [ -x "$(dirname "$(command -v nvcc)")/cuobjdump" ] || [ -e "$folder/$version" ]; then
    exit 0
fi
echo "cuobjdump: installing cuobjdump and nvdisasm $version from PyPI into $folder"
rm -rf "$folder"
/usr/bin/python3 -m venv "$folder"
"$folder/bin/python" -m pip install -q --disable-pip-version-check --no-deps \
    "nvidia-cuda-cuobjdump==$version" "nvidia-cuda-nvdisasm==$version" </dev/null
touch "$folder/$version"
