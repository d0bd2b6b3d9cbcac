"""tests/check/kernel_resources.py finds kernels that spill, grow, lose wide loads, or have no limits; in machine code too, where
there is cuobjdump, which is a script here."""
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
# Two architectures; the second one has fewer wide loads.
SASS = """code for sm_80
		Function : _Z3onei
        /*0430*/                   LDG.E.128.CONSTANT R8, [R16.64] ;
        /*0440*/                   STG.E.128 [R16.64], R8 ;
        /*0450*/                   LDG.E.64 R8, [R16.64] ;
code for sm_90
		Function : _Z3onei
        /*0430*/                   LDG.E.128.CONSTANT R8, [R16.64] ;
"""


def check(folder, limits, registers=32, spilled=0, ptx=PTX, sass=None, stack=8):
    folder.mkdir(exist_ok=True)
    tool = folder / "cuobjdump"
    if sass is not None:
        (folder / "one.o").touch()
        tool.write_text("#!/bin/sh\ncat <<'END'\n%sEND\n" % sass)
        tool.chmod(0o755)
    (folder / "one.ptxas").write_text((PTXAS % (spilled, registers)).replace("8 bytes stack frame", "%d bytes stack frame" % stack))
    (folder / "one.ptx").write_text(ptx)
    (folder / "limits").write_text("# nvcc 13\n" + limits)
    r = subprocess.run([sys.executable, "-B", SCRIPT, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       env={**os.environ, "KERNEL_LIMITS": str(folder / "limits"), "CUOBJDUMP": str(tool)}, check=False)
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
            ("", {}, "one has no limits: [32, 8, 64, 2, None]")]):
        code, out = check(tmp_path / str(number), limits, **more)
        assert code == 1 and said in out, (limits, out)


def test_machine_code_is_compared_where_there_is_cuobjdump(tmp_path):
    code, out = check(tmp_path / "a", "one 32 8 64 2 5\n")
    assert code == 0 and "not in machine code" in out
    code, out = check(tmp_path / "b", "one 32 8 64 2 1\n", sass=SASS)
    assert code == 0 and "PTX and machine code" in out
    for number, (limits, more, said) in enumerate([
            ("one 32 8 64 2 2\n", {"sass": SASS}, "one: wide_machine_code: 1, and the limit is 2"),
            ("one 32 0 64 2 1\n", {"sass": SASS + "  STL.64 [R1], R38 ;\n", "stack": 0}, "one uses local memory, and"),
            ("one 32 8 64 2 1\n", {"sass": "nothing\n"}, "finds no machine code of it")]):
        code, out = check(tmp_path / str(number), limits, **more)
        assert code == 1 and said in out, (limits, out)


def test_cuobjdump_is_found_where_its_script_installs_it(tmp_path, monkeypatch):
    sys.path.insert(0, str(SCRIPT.parent))
    import kernel_resources
    monkeypatch.setattr(kernel_resources, "REPO", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUOBJDUMP", raising=False)
    assert kernel_resources.find_cuobjdump() is None
    tool = tmp_path / "build/cuobjdump/lib/python3.11/site-packages/nvidia/cu13/bin/cuobjdump"
    tool.parent.mkdir(parents=True)
    tool.touch()
    assert kernel_resources.find_cuobjdump() == str(tool)
