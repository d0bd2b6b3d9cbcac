#!/usr/bin/env python3
"""tests/fakecuda/ptx/run.py - run tests with libraries whose kernels are translated from PTX.

    run.py FOLDER... -- TEST...

Each folder has a libtp-cuda.so and the PTX of its kernels (make ptx). A kernel that no test launches is a failure, because
nothing shows what nvcc made of it. Tests choose some of their shapes and types at random, so they run again while kernels are
missing: with the seeds 1 to SEEDS, which together launch all of them. The last line counts the tests of all folders:
`N passed, N failed`.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SEEDS = 3
# cast_kernel is compiled for every pair of types, and a cast of a type to itself is a copy.
NEVER = re.compile(r"_Z11cast_kernelI(\w+?)(?:S0_|(?<=[df])\1)EvPT_PKT0_lb")
# The kernels of warpgroups are empty for GPUs other than sm_90a's, and the device of a folder has its folder's capability.
OF_WARPGROUPS, HAS_WARPGROUPS = "wgmma", "sm_90a"


def run(test, folder, launched, seed):
    """(passed, failed) of one program of Criterion."""
    r = subprocess.run([test], text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       env={**os.environ, "TP_CUDA_LIBRARY": str(folder / "libtp-cuda.so"), "FAKECUDA_PTX_KERNELS": launched,
                            "FAKECUDA_CAPABILITY": re.sub(r"\D", "", folder.name), **seed})
    m = re.search(r"Synthesis: Tested: \d+ \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)", r.stdout)
    passed, failed = (int(m[1]), int(m[2]) + int(m[3])) if m else (0, 0)
    failed = failed or (r.returncode != 0 or passed == 0)
    if failed:
        print(f"FAILED {folder.name}: {test}\n{r.stdout}")
    return passed, int(failed)


def kernels(folder):
    return {name for path in folder.rglob("*.ptx") for name in re.findall(r"^\.visible \.entry (\w+)", path.read_text(), re.M)}


def is_never(kernel, folder):
    return NEVER.fullmatch(kernel) or (OF_WARPGROUPS in kernel and folder.name != HAS_WARPGROUPS)


def main():
    at = sys.argv.index("--")
    folders, tests = [pathlib.Path(x).resolve() for x in sys.argv[1:at]], sys.argv[at + 1:]
    passed = failed = 0
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch:
            log = pathlib.Path(scratch) / "launched"
            log.touch()
            launched, there, before = set(), {k for k in kernels(folder) if not is_never(k, folder)}, failed
            for seed in {}, *({"TP_SEED": str(i + 1)} for i in range(SEEDS)):
                for test in tests:
                    p, f = run(test, folder, str(log), seed)
                    passed, failed = passed + p, failed + f
                launched = set(log.read_text().split())
                if there <= launched or failed > before:
                    break
        print(f"  ok    {folder.name}: {len(launched & there)} of {len(there)} kernels, as PTX, in {len(tests)} test programs")
        for name in sorted(there - launched if failed == before else []):
            print(f"FAILED {folder.name}: no test launches {name}")
            failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
