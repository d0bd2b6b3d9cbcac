"""tests/check/kernel_resources.py finds kernels that spill, grow, lose wide loads, or have no limits."""
import os
import subprocess
import sys

import harness

SCRIPT = harness.REPO / "tests/check/kernel_resources.py"
PTXAS = """ptxas info    : Compiling entry function '_Z3onei' for 'sm_90'
ptxas info    : Function properties for _Z3onei
    8 bytes stack frame, %d bytes spill stores, 0 bytes spill loads
ptxas info    : Used %d registers, used 1 barriers, 8 bytes cumulative stack size, 64 bytes smem
"""
PTX = """.visible .entry _Z3onei(
    ld.global.v2.u64 {%rd1, %rd2}, [%rd3];
    st.global.v4.f32 [%rd4], {%f1, %f2, %f3, %f4};
    ld.global.u32 %r1, [%rd4];
"""


def check(folder, limits, registers=32, spilled=0, ptx=PTX):
    folder.mkdir(exist_ok=True)
    (folder / "one.ptxas").write_text(PTXAS % (spilled, registers))
    (folder / "one.ptx").write_text(ptx)
    (folder / "limits").write_text("# nvcc 13\n" + limits)
    r = subprocess.run([sys.executable, "-B", SCRIPT, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       env={**os.environ, "KERNEL_LIMITS": str(folder / "limits")}, check=False)
    return r.returncode, r.stdout


def test_kernels_within_their_limits_pass(tmp_path):
    assert check(tmp_path / "a", "one 32 8 64 2\n")[0] == 0
    assert check(tmp_path / "a", "one 40 16 64 1\n")[0] == 0


def test_what_a_removed_kernel_left_in_the_build_folder_is_ignored(tmp_path):
    old = tmp_path / "a/kernels/cuda/removed.keep"
    old.mkdir(parents=True)
    (old / "removed.compute_90.ptx").write_text(PTX.replace("3one", "3two"))
    (old.parent / "removed.ptxas").write_text((PTXAS % (0, 32)).replace("3one", "3two"))
    assert check(tmp_path / "a", "one 32 8 64 2\n")[0] == 0


def test_each_breach_is_named(tmp_path):
    for number, (limits, more, said) in enumerate([
            ("one 31 8 64 2\n", {}, "one: registers: 32, and the limit is 31"),
            ("one 32 0 64 2\n", {}, "one: stack: 8, and the limit is 0"),
            ("one 32 8 32 2\n", {}, "one: shared: 64, and the limit is 32"),
            ("one 32 8 64 3\n", {}, "one: wide: 2, and the limit is 3"),
            ("one 32 8 64 2\n", {"spilled": 12}, "_Z3onei for sm_90 spills registers: 12 bytes stored"),
            ("one 32 8 64 2\ntwo 1 1 1 1\n", {}, "two has limits, but no longer exists"),
            ("", {}, "one has no limits: [32, 8, 64, 2]")]):
        code, out = check(tmp_path / str(number), limits, **more)
        assert code == 1 and said in out, (limits, out)
