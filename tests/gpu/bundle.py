#!/usr/bin/env python3
"""tests/gpu/bundle.py - what tests/gpu/gpu_check.py needs, in one file, for a machine that cannot build it; `make gpu-check-bundle`
runs it.

    bundle.py --build BUILD --bin BIN --libtp-cuda.so FILE -o FILE.tar.gz

The archive has a folder gpu-check/ with the places of the source tree, so that gpu_check.py finds its programs, and in lib/bundled/
the shared libraries that they need. Not among them are those of the C and C++ compilers, which must not be older there than here,
the driver's, cuBLAS and NCCL.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from gpu_check import ALL_KERNEL_TESTS, BUNDLED, LIBRARY, OF_BUILD, REPO

OF_THE_MACHINE = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|pthread|dl|rt|resolv|stdc\+\+|gcc_s|cuda|cublas|cublasLt|nccl))\.so\b")
PROGRAMS = ("tp-train", "tp-reshard", "tp-ckpt")


def libraries_of(path):
    """{name: file} of the shared libraries that a file needs, also through others."""
    said = subprocess.run(["ldd", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {}
    for line in said.splitlines():
        name, arrow, file = line.strip().partition(" => ")
        if not arrow or OF_THE_MACHINE.match(name):
            continue
        if file.startswith("not found"):
            raise SystemExit("bundle: %s needs %s, which is not found" % (path, name))
        found[name] = pathlib.Path(file.split(" (")[0])
    return found


def files_of(options):
    """{place in the archive: file}; programs that were not built are left out, with a warning."""
    wanted = {LIBRARY.relative_to(REPO): options.cuda_library}
    wanted.update({pathlib.Path("bin", name): options.bin / name for name in PROGRAMS})
    wanted.update({pathlib.Path("build/plain", name): options.build / name for name in OF_BUILD})
    for name in ALL_KERNEL_TESTS:
        wanted[pathlib.Path("build/plain/tests", name)] = options.build / "tests" / name
    for file in wanted.values():
        if not file.exists():
            print("bundle: %s was not built, so its part of the report will be missing" % file, file=sys.stderr)
    return {place: file for place, file in wanted.items() if file.exists()}


def fill(folder, options):
    programs, libraries = files_of(options), {}
    for place, file in programs.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / place)
        if file.read_bytes()[:4] == b"\x7fELF":
            libraries.update(libraries_of(file))
            subprocess.run(["strip", folder / place], check=True)
    (folder / BUNDLED.relative_to(REPO)).mkdir(parents=True)
    for name, file in libraries.items():
        shutil.copy(file, folder / BUNDLED.relative_to(REPO) / name)
    (folder / "tests/gpu").mkdir(parents=True)
    for file in pathlib.Path(__file__).parent.glob("*.py"):
        shutil.copy(file, folder / "tests/gpu")
    return len(programs), len(libraries)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--build", type=pathlib.Path, required=True)
    p.add_argument("--bin", type=pathlib.Path, required=True)
    p.add_argument("--libtp-cuda.so", dest="cuda_library", type=pathlib.Path, required=True)
    p.add_argument("-o", dest="out", type=pathlib.Path, required=True)
    options = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch, "gpu-check")
        folder.mkdir()
        counts = fill(folder, options)
        with tarfile.open(options.out, "w:gz") as archive:
            archive.add(folder, "gpu-check")
    print("bundle: %s, %.0f MiB, has %d programs and %d libraries. On the machine with the GPU: tar xf %s && python3 "
          "gpu-check/tests/gpu/gpu_check.py" % (options.out, options.out.stat().st_size / 2**20, *counts, options.out.name))


if __name__ == "__main__":
    main()
