"""Kernels as PTX on the fake CUDA device (tests/fakecuda/ptx): instructions do what the PTX ISA says, and mistakes are found.

Each test writes its PTX; nvcc is not needed. What nvcc makes of the product's kernels is tested by `make ptx`.

needs: libtp-cuda.so
"""
import math
import operator
import pathlib
import re
import struct
import subprocess
import sys

import pytest

import harness

REPO = pathlib.Path(__file__).resolve().parents[2]
FAKE = REPO / "tests" / "fakecuda"
OBJECTS = [REPO / "build" / "fakecuda" / "tests" / "fakecuda" / f"{path.stem}.o" for path in sorted(FAKE.glob("*.cc"))]
WRAP = "-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset,-z,defs"

HEAD = """.version 9.0
.target sm_90
.address_size 64
"""
REGISTERS = """
.reg .pred %p<9>;
.reg .b16 %rs<9>;
.reg .b32 %r<40>;
.reg .f32 %f<40>;
.reg .b64 %rd<40>;
.reg .f64 %fd<9>;
"""
# %rd1: the thread's own 8 bytes of out. %rd2: in.
PLACE = """
ld.param.u64 %rd1, [out];
ld.param.u64 %rd2, [in];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 8;
add.s64 %rd1, %rd1, %rd3;
"""


def kernel(body, limits=".maxntid 256, 1, 1", before="", params=".param .u64 out, .param .u64 in, .param .u16 n"):
    return f"{HEAD}{before}.visible .entry probe({params})\n{limits}\n{{{REGISTERS}{PLACE}{body}\nret;\n}}\n"


def translate(folder, text):
    (folder / "probe.ptx").write_text(text)
    return subprocess.run([sys.executable, "-B", FAKE / "ptx" / "translate.py", "probe.ptx", "probe.cc"], cwd=folder, text=True,
                          stderr=subprocess.PIPE, check=False)


def build(folder, text):
    """A program whose kernel `probe` is this PTX."""
    r = translate(folder, text)
    assert r.returncode == 0, r.stderr
    subprocess.run(["clang++", "-std=c++17", "-O1", "-g1", "-ffp-contract=off", "-fno-optimize-sibling-calls", "-fPIC",
                    "-Wall", "-Wextra", "-Wno-unused-label", "-Wno-unused-variable", "-Werror", f"-I{FAKE / 'include'}", f"-I{REPO}",
                    folder / "probe.cc", FAKE / "ptx" / "probe.cc", *OBJECTS, WRAP, "-ldl", "-lpthread", "-lm", "-o", folder / "probe"], check=True)
    return folder / "probe"


def run(program, threads=1, blocks=1, seed=0):
    return harness.run(program, blocks, threads, env={"FAKECUDA_SEED": str(seed)})


def results(tmp_path, text, threads=1, blocks=1):
    r = run(build(tmp_path, text), threads, blocks)
    assert r.rc == 0, r
    return [int(line, 16) for line in r.out.split()]


# ---- instructions ----

def f32(x):
    return x if isinstance(x, int) else struct.unpack("<I", struct.pack("<f", x))[0]


def f64(x):
    return x if isinstance(x, int) else struct.unpack("<Q", struct.pack("<d", x))[0]


NAN, NAN_64, INF = 0x7fffffff, 0x7ff8000000000000, math.inf
ULP = 2.0**-23  # between two f32 above 1
KINDS = {"r": "b32", "rd": "b64", "rs": "b16", "f": "f32", "fd": "f64"}

# Instruction, kind of its result, (kind, value) of each operand, the result. Of f and fd an integer is the bits of a number.
CASES = [
    ("add.s32", "r", [("r", 0xffffffff), ("r", 2)], 1),
    ("add.s64", "rd", [("rd", 2**63), ("rd", 2**63 + 5)], 5),
    ("add.u64", "rd", [("rd", 7), ("rd", 5)], 12),
    ("sub.s32", "r", [("r", 3), ("r", 5)], 2**32 - 2),
    ("sub.s64", "rd", [("rd", 3), ("rd", 5)], 2**64 - 2),
    ("mul.lo.s32", "r", [("r", 0x10001), ("r", 0x10001)], 0x20001),
    ("mul.lo.s64", "rd", [("rd", 2**40 + 1), ("rd", 2**40 + 1)], 2**41 + 1),
    ("mul.hi.u32", "r", [("r", 0x80000000), ("r", 6)], 3),
    ("mul.hi.u64", "rd", [("rd", 2**63), ("rd", 6)], 3),
    ("mul.wide.s32", "rd", [("r", 2**32 - 3), ("r", 5)], 2**64 - 15),
    ("mul.wide.u32", "rd", [("r", 2**32 - 1), ("r", 2)], 2**33 - 2),
    ("mul.wide.u16", "r", [("rs", 0xffff), ("rs", 0xffff)], 0xfffe0001),
    ("mul.wide.s16", "r", [("rs", 0xffff), ("rs", 3)], 2**32 - 3),
    ("mad.lo.s32", "r", [("r", 3), ("r", 5), ("r", 2**32 - 1)], 14),
    ("mad.lo.s64", "rd", [("rd", 3), ("rd", 5), ("rd", 2**64 - 1)], 14),
    ("div.s32", "r", [("r", 2**32 - 7), ("r", 2)], 2**32 - 3),
    ("div.u32", "r", [("r", 2**32 - 7), ("r", 2)], 2**31 - 4),
    ("div.s64", "rd", [("rd", 2**63), ("rd", 2**64 - 1)], 2**63),
    ("div.u64", "rd", [("rd", 5), ("rd", 0)], 2**64 - 1),
    ("rem.s64", "rd", [("rd", 2**64 - 7), ("rd", 2)], 2**64 - 1),
    ("rem.s64", "rd", [("rd", 2**63), ("rd", 2**64 - 1)], 0),
    ("rem.u32", "r", [("r", 2**32 - 7), ("r", 10)], 9),
    ("neg.s32", "r", [("r", 5)], 2**32 - 5),
    ("neg.s64", "rd", [("rd", 5)], 2**64 - 5),
    ("min.s32", "r", [("r", 2**32 - 1), ("r", 1)], 2**32 - 1),
    ("min.s64", "rd", [("rd", 2**64 - 1), ("rd", 1)], 2**64 - 1),
    ("max.s32", "r", [("r", 2**32 - 1), ("r", 1)], 1),
    ("max.u32", "r", [("r", 2**32 - 1), ("r", 1)], 2**32 - 1),
    ("max.u64", "rd", [("rd", 2**64 - 1), ("rd", 1)], 2**64 - 1),
    ("and.b32", "r", [("r", 12), ("r", 10)], 8),
    ("or.b16", "rs", [("rs", 12), ("rs", 10)], 14),
    ("xor.b64", "rd", [("rd", 2**63 + 12), ("rd", 10)], 2**63 + 6),
    ("not.b32", "r", [("r", 1)], 2**32 - 2),
    ("not.b64", "rd", [("rd", 1)], 2**64 - 2),
    ("shl.b32", "r", [("r", 3), ("r", 31)], 2**31),
    ("shl.b32", "r", [("r", 3), ("r", 32)], 0),
    ("shl.b64", "rd", [("rd", 3), ("r", 63)], 2**63),
    ("shr.u32", "r", [("r", 2**31), ("r", 31)], 1),
    ("shr.u32", "r", [("r", 2**31), ("r", 40)], 0),
    ("shr.s32", "r", [("r", 2**31), ("r", 30)], 2**32 - 2),
    ("shr.s32", "r", [("r", 2**31), ("r", 99)], 2**32 - 1),
    ("shr.s64", "rd", [("rd", 2**63), ("r", 62)], 2**64 - 2),
    ("shr.u64", "rd", [("rd", 2**63), ("r", 64)], 0),
    ("shf.l.wrap.b32", "r", [("r", 0x80000001), ("r", 0x40000002), ("r", 33)], 0x80000005),
    ("bfi.b32", "r", [("r", 0x3f), ("r", 0), ("r", 4), ("r", 3)], 0x70),
    ("bfi.b32", "r", [("r", 0), ("r", 0xffffffff), ("r", 24), ("r", 16)], 0x00ffffff),
    ("prmt.b32", "r", [("r", 0x33221100), ("r", 0x77665544), ("r", 0x5410)], 0x55441100),
    ("prmt.b32", "r", [("r", 0x00800000), ("r", 0x44), ("r", 0x402a)], 0x440080ff),
    ("popc.b32", "r", [("r", 0xf00f0001)], 9),
    ("clz.b64", "r", [("rd", 2**40)], 23),
    ("clz.b64", "r", [("rd", 0)], 64),
    ("cvt.s64.s32", "rd", [("r", 2**31)], 2**64 - 2**31),
    ("cvt.u64.u32", "rd", [("r", 2**31)], 2**31),
    ("cvt.u32.u64", "r", [("rd", 2**40 + 3)], 3),
    ("cvt.u32.u16", "r", [("rs", 0xffff)], 0xffff),
    ("cvt.u16.u32", "rs", [("r", 0x12345678)], 0x5678),
    ("cvt.rn.f32.s32", "f", [("r", 2**32 - 5)], -5.0),
    ("cvt.rn.f32.u32", "f", [("r", 2**32 - 1)], 2.0**32),
    ("cvt.rn.f32.s64", "f", [("rd", 2**24 + 1)], 2.0**24),
    ("cvt.rn.f64.s64", "fd", [("rd", 2**64 - 1)], -1.0),
    ("cvt.rn.f64.u64", "fd", [("rd", 2**64 - 1)], 2.0**64),
    ("cvt.f64.f32", "fd", [("f", 0.5)], 0.5),
    ("cvt.rn.f32.f64", "f", [("fd", 1 + 2.0**-24)], 1.0),
    ("cvt.rn.f32.f64", "f", [("fd", NAN_64 + 5)], NAN),
    ("cvt.sat.f32.f32", "f", [("f", 1.5)], 1.0),
    ("cvt.sat.f32.f32", "f", [("f", -1.5)], 0.0),
    ("cvt.sat.f32.f32", "f", [("f", NAN)], 0.0),
    ("cvt.rni.s32.f64", "r", [("fd", 2.5)], 2),
    ("cvt.rni.s32.f64", "r", [("fd", -1e12)], 2**31),
    ("cvt.rzi.f64.f64", "fd", [("fd", -2.7)], -2.0),
    ("cvt.rn.bf16x2.f32", "r", [("f", 1.0), ("f", -2.0)], 0x3f80c000),
    ("cvt.rn.bf16x2.f32", "r", [("f", 0x3f808000), ("f", 0x3f818000)], 0x3f803f82),  # ties go to the even one
    ("cvt.rn.bf16x2.f32", "r", [("f", 0xff800001), ("f", 0x7f7fffff)], 0x7fff7f80),
    ("add.f32", "f", [("f", 2.0**24), ("f", 1.0)], 2.0**24),
    ("add.f32", "f", [("f", INF), ("f", -INF)], NAN),
    ("add.rz.f32", "f", [("f", 2.0**24), ("f", 1.75)], 2.0**24),
    ("add.rz.f32", "f", [("f", -2.0**24), ("f", -1.75)], -2.0**24),
    ("sub.f32", "f", [("f", 1.0), ("f", 3.0)], -2.0),
    ("sub.f64", "fd", [("fd", 1.0), ("fd", 3.0)], -2.0),
    ("add.f64", "fd", [("fd", 1.0), ("fd", 3.0)], 4.0),
    ("mul.f32", "f", [("f", 0xffc00001), ("f", 3.0)], NAN),
    ("mul.rn.f64", "fd", [("fd", 1.5), ("fd", 3.0)], 4.5),
    ("div.rn.f32", "f", [("f", 1.0), ("f", 3.0)], 1 / 3),
    ("div.rn.f64", "fd", [("fd", 1.0), ("fd", 3.0)], 1 / 3),
    ("rcp.rn.f32", "f", [("f", 3.0)], 1 / 3),
    ("rcp.rn.f64", "fd", [("fd", 3.0)], 1 / 3),
    ("rcp.approx.ftz.f64", "fd", [("fd", 3.0)], 0x3fd5555500000000),
    ("rcp.approx.ftz.f64", "fd", [("fd", 1)], INF),  # the smallest number
    ("sqrt.rn.f32", "f", [("f", 2.0)], math.sqrt(2)),
    ("sqrt.rn.f64", "fd", [("fd", 2.0)], math.sqrt(2)),
    ("fma.rn.f32", "f", [("f", 1 + ULP), ("f", 1 + ULP), ("f", -1 - 2 * ULP)], ULP**2),
    ("fma.rn.f64", "fd", [("fd", 1 + 2.0**-52), ("fd", 1 + 2.0**-52), ("fd", -1 - 2.0**-51)], 2.0**-104),
    ("fma.rm.f32", "f", [("f", 1 + ULP), ("f", 1 - ULP / 2), ("f", 0.0)], 1.0),
    ("fma.rm.f32", "f", [("f", 1.0), ("f", 1.0), ("f", -2.0**-80)], 1 - ULP / 2),
    ("fma.rm.f32", "f", [("f", -1.0), ("f", 1.0), ("f", -2.0**-80)], -1 - ULP),
    ("fma.rm.f32", "f", [("f", 1.0), ("f", 1.0), ("f", -1.0)], -0.0),
    ("abs.f32", "f", [("f", -3.0)], 3.0),
    ("abs.f64", "fd", [("fd", -3.0)], 3.0),
    ("neg.f32", "f", [("f", 0.0)], -0.0),
    ("neg.f64", "fd", [("fd", 3.0)], -3.0),
    ("max.f32", "f", [("f", NAN), ("f", -3.0)], -3.0),
    ("max.f32", "f", [("f", -0.0), ("f", 0.0)], 0.0),
    ("min.f32", "f", [("f", 0.0), ("f", -0.0)], -0.0),
    ("min.f32", "f", [("f", 0xffc00001), ("f", NAN)], NAN),
    ("ex2.approx.ftz.f32", "f", [("f", -3.0)], 0.125),
    ("ex2.approx.ftz.f32", "f", [("f", -127.0)], 0.0),
    ("selp.b32", "r", [("r", 1), ("r", 2), ("p", 1)], 1),
    ("selp.f64", "fd", [("fd", 1.0), ("fd", 2.0), ("p", 0)], 2.0),
    ("mov.b32", "f", [("r", 0x3f800000)], 1.0),
    ("mov.u64", "rd", [("rd", 2**63)], 2**63),
    ("cvta.to.global.u64", "rd", [("rd", 5)], 5),
]
ORDERED = {"eq": (0, 1, 0), "ne": (1, 0, 1), "lt": (1, 0, 0), "le": (1, 1, 0), "gt": (0, 0, 1), "ge": (0, 1, 1)}
CASES += [(f"setp.{c}.s32", "p", [("r", a), ("r", 1)], x) for c, r in ORDERED.items() for a, x in zip((2**32 - 1, 1, 2), r)]
CASES += [(f"setp.{c}.u64", "p", [("rd", a), ("rd", 9)], x) for c, r in ORDERED.items() for a, x in zip((1, 9, 2**64 - 1), r)]
CASES += [(f"setp.{c}{u}.{t}", "p", [(k, a), (k, 1.0)], x)
          for c, r in ORDERED.items() for t, k, nan in (("f32", "f", NAN), ("f64", "fd", NAN_64))
          for u in ("", "u") for a, x in zip((-1.0, 1.0, 2.0, nan), (*r, int(u != "")))]
CASES += [("setp.nan.f32", "p", [("f", 1.0), ("f", NAN)], 1), ("setp.num.f64", "p", [("fd", 1.0), ("fd", NAN_64)], 0),
          ("setp.eq.b32", "p", [("r", 5), ("r", 5)], 1), ("setp.ne.b64", "p", [("rd", 5), ("rd", 5)], 0),
          ("setp.eq.s16", "p", [("rs", 0xffff), ("rs", 0xffff)], 1), ("setp.lt.s16", "p", [("rs", 0xffff), ("rs", 0)], 1)]
CASES += [(f"{op}.pred", "p", [("p", a), ("p", b)], f(a, b))
          for op, f in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)) for a in (0, 1) for b in (0, 1)]
CASES += [("not.pred", "p", [("p", a)], 1 - a) for a in (0, 1)]


def encoded(kind, x):
    return {"f": f32, "fd": f64}.get(kind, lambda y: y)(x)


def case(number, name, to, operands):
    """PTX that stores the result at out[number]."""
    lines, names = [], []
    for i, (kind, x) in enumerate(operands):
        names.append(f"%{kind}{i + 4}")
        if kind == "p":
            lines.append(f"setp.ne.s32 {names[-1]}, {x}, 0;")
        elif kind in ("f", "fd"):
            literal = f"0f{encoded(kind, x):08X}" if kind == "f" else f"0d{encoded(kind, x):016X}"
            lines.append(f"mov.{KINDS[kind]} {names[-1]}, {literal};")
        else:
            lines.append(f"mov.{KINDS[kind]} {names[-1]}, {x};")
    lines.append(f"{name} %{to}8, {', '.join(names)};")
    if to == "p":
        lines += ["selp.u32 %r9, 1, 0, %p8;", f"st.global.u32 [%rd1+{8 * number}], %r9;"]
    else:
        lines.append(f"st.global.{KINDS[to]} [%rd1+{8 * number}], %{to}8;")
    return lines


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    lines = [line for i, (name, to, operands, _) in enumerate(CASES) for line in case(i, name, to, operands)]
    return results(tmp_path_factory.mktemp("cases"), kernel("\n".join(lines)))


def test_instructions_compute_what_the_isa_says(computed):
    wrong = [f"{name} of {operands}: {got:#x}, expected {encoded(to, want):#x}"
             for (name, to, operands, want), got in zip(CASES, computed) if got != encoded(to, want)]
    assert not wrong and len(CASES) <= len(computed), "\n".join(wrong)


def test_every_row_of_the_translator_has_a_case():
    """Except those whose results are in no register of their own: tests below have them."""
    sys.path.insert(0, str(FAKE / "ptx"))
    try:
        import translate as translator  # pylint: disable=import-outside-toplevel
    finally:
        sys.path.pop(0)
    there = {name for name, *_ in CASES} | {"add.cc.u32", "mad.lo.cc.u32", "mov.pred"}
    assert [p.pattern for p, *_ in translator.ARITHMETIC if not any(p.match(name) for name in there)] == []


def test_carries_go_from_word_to_word(tmp_path):
    """As nvcc multiplies numbers of several words. A difference that borrows twice."""
    got = results(tmp_path, kernel("""
    mov.u32 %r4, -1; mov.u32 %r5, 3; mov.u32 %r6, 0;
    add.cc.u32 %r7, %r4, %r5; addc.cc.u32 %r8, %r4, %r6; addc.u32 %r9, %r6, %r6;
    st.global.u32 [%rd1], %r7; st.global.u32 [%rd1+8], %r8; st.global.u32 [%rd1+16], %r9;
    sub.cc.s32 %r7, %r6, %r5; subc.cc.u32 %r8, %r6, %r6; subc.u32 %r9, %r5, %r6;
    st.global.u32 [%rd1+24], %r7; st.global.u32 [%rd1+32], %r8; st.global.u32 [%rd1+40], %r9;
    mad.lo.cc.u32 %r7, %r4, %r4, %r4; madc.hi.cc.u32 %r8, %r4, %r4, %r5; madc.lo.cc.u32 %r9, %r5, %r5, %r6;
    madc.hi.u32 %r10, %r4, %r5, 0;
    st.global.u32 [%rd1+48], %r7; st.global.u32 [%rd1+56], %r8; st.global.u32 [%rd1+64], %r9; st.global.u32 [%rd1+72], %r10;
    """))
    full = 2**32 - 1
    assert got[:6] == [2, 0, 1, 2**32 - 3, full, 2]
    # -1 * -1 = 1 in the lower word, and 2^32 - 2 in the upper one.
    assert got[6:10] == [0, 2, 10, 2]


def test_moves_take_registers_apart_and_together(tmp_path):
    got = results(tmp_path, kernel("""
    mov.b64 %rd4, 0x1122334455667788; mov.b64 {%r4, %r5}, %rd4; mov.b64 %rd5, {%r5, %r4}; st.global.u64 [%rd1], %rd5;
    mov.b32 {%rs1, %rs2}, %r4; mov.b32 %r6, {%rs2, %rs1}; st.global.u32 [%rd1+8], %r6;
    { .reg .b32 %temp; .reg .b32 %r5; mov.b64 {%temp, %r5}, %rd4; st.global.u32 [%rd1+16], %r5; mov.b64 {%r5, _}, %rd4; }
    { .reg .b32 tmp; mov.b64 {tmp, %r7}, %rd4; st.global.u32 [%rd1+24], tmp; }
    st.global.u32 [%rd1+32], %r5; mov.pred %p1, 0; mov.pred %p2, %p1; @!%p2 st.global.u32 [%rd1+40], 7;
    @%p2 st.global.u32 [%rd1+40], 8; ld.param.s16 %r8, [n]; st.global.u32 [%rd1+48], %r8;
    """))
    assert got[:7] == [0x5566778811223344, 0x77885566, 0x11223344, 0x55667788, 0x11223344, 7, 7]


def test_loads_extend_to_the_width_of_a_register(tmp_path):
    got = results(tmp_path, kernel("""
    mov.b32 %r4, 0x8080; st.global.u32 [%rd1], %r4; ld.global.s8 %r5, [%rd1]; ld.global.u8 %rs1, [%rd1+1];
    ld.global.s16 %rd4, [%rd1]; st.global.u32 [%rd1+8], %r5; st.global.u16 [%rd1+16], %rs1; st.global.u64 [%rd1+24], %rd4;
    ld.global.nc.v4.u32 {%r6, %r7, %r8, %r9}, [%rd2+16]; st.global.v2.u32 [%rd1+32], {%r9, %r6}; ld.u32 %r10, [%rd2+36];
    add.s64 %rd5, %rd1, 48; atom.global.add.u64 %rd6, [%rd5+-8], 5; atom.global.add.u64 %rd7, [%rd1+40], 6;
    st.global.u64 [%rd5], %rd7; atom.global.xor.b32 %r11, [%rd1+8], %r5; st.global.wb.u32 [%rd5+8], %r11;
    """))
    assert got[:8] == [0x8080, 0, 0x80, 2**64 - 2**15 + 0x80, 4 << 32 | 7, 11, 5, 0xffffff80]


def test_shuffles_keep_to_their_segments(tmp_path):
    """up by 1 in segments of 8, bfly by 3, idx 2 in segments of 16, bfly by 16 up to a clamp; and which sources were within."""
    got = results(tmp_path, kernel("""
    shfl.sync.up.b32 %r4|%p1, %r1, 1, 6144, -1; shfl.sync.bfly.b32 %r5|%p2, %r1, 3, 31, -1;
    shfl.sync.idx.b32 %r6|%p3, %r1, 2, 4127, -1; shfl.sync.bfly.b32 %r7|%p4, %r1, 16, 2063, -1;
    shl.b32 %r5, %r5, 8; shl.b32 %r6, %r6, 16; shl.b32 %r7, %r7, 24; add.s32 %r4, %r4, %r5; add.s32 %r4, %r4, %r6;
    add.s32 %r4, %r4, %r7; selp.u32 %r8, 1, 0, %p1; selp.u32 %r9, 2, 0, %p2; selp.u32 %r10, 4, 0, %p3; selp.u32 %r11, 8, 0, %p4;
    or.b32 %r8, %r8, %r9; or.b32 %r10, %r10, %r11; or.b32 %r8, %r8, %r10; st.global.v2.u32 [%rd1], {%r4, %r8};
    """), threads=64)
    for lane in range(32):
        up, fourth = lane - 1 if lane % 8 else lane, (lane ^ 16) <= (lane & 8 | 15 & ~8)
        word = up | (lane ^ 3) << 8 | (lane // 16 * 16 + 2) << 16 | (lane ^ 16 if fourth else lane) << 24
        assert got[lane] == word | ((lane % 8 > 0) | 6 | fourth * 8) << 32, lane


def test_votes_and_barriers(tmp_path):
    got = results(tmp_path, kernel("""
    setp.eq.s32 %p1, %r1, 5; vote.sync.ballot.b32 %r4, %p1, -1; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r5, 1, 0, %p2;
    bar.warp.sync -1; bar.sync 0; { .reg .pred %p3; bar.red.or.pred %p3, 0, %p1; selp.u32 %r6, 1, 0, %p3; }
    shl.b32 %r5, %r5, 4; or.b32 %r5, %r5, %r6; st.global.u32 [%rd1], %r4; st.global.u32 [%rd1+4], %r5;
    """), threads=64)
    assert (got[:32], got[32:64]) == ([32 | 0x11 << 32] * 32, [0x1 << 32] * 32)


MATRICES = """
.shared .align 16 .b8 tile[512];
mov.u32 %r4, tile; mul.lo.s32 %r5, %r1, 16; add.s32 %r6, %r4, %r5; ld.param.u64 %rd6, [in]; mul.wide.u32 %rd7, %r1, 16;
add.s64 %rd6, %rd6, %rd7; cp.async.cg.shared.global [%r6], [%rd6], 16; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
"""


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_lanes_their_elements(tmp_path, transposed):
    """Row 8 m + r of the matrices is 8 halves: of the numbers 4 (8 m + r) .. + 3, whose upper halves are 0."""
    got = results(tmp_path, kernel(f"""{MATRICES}
    ldmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.shared.b16 {{%r8, %r9, %r10, %r11}}, [%r6];
    st.global.u32 [%rd1], %r11; st.global.u32 [%rd1+4], %r9;"""), threads=32)
    def element(m, row, col):
        return 0 if col % 2 else 4 * (8 * m + row) + col // 2
    for lane in range(32):
        row, col = lane // 4, lane % 4 * 2
        at = [(col, row), (col + 1, row)] if transposed else [(row, col), (row, col + 1)]
        words = [element(m, *at[0]) | element(m, *at[1]) << 16 for m in (3, 1)]
        assert got[lane] == words[0] | words[1] << 32, lane


def bf16(x):
    return f32(float(x)) >> 16


@pytest.mark.parametrize("swapped", [False, True])
def test_mma_multiplies_fragments(tmp_path, swapped):
    """d = a b + c with a[row][k] = row - k and b[k][col] = k + 2 col; c is 1. With two registers of a swapped it is not."""
    order = "%r4, %r6, %r5, %r7" if swapped else "%r4, %r5, %r6, %r7"
    select = "".join(f"setp.eq.s32 %p1, %r1, {lane}; " + "".join(
        f"@%p1 mov.u32 %r{4 + i}, {bf16(row - k) | bf16(row - k - 1) << 16}; "
        for i in range(4) for row, k in [(lane // 4 + i % 2 * 8, lane % 4 * 2 + i // 2 * 8)]) + "".join(
        f"@%p1 mov.u32 %r{8 + i}, {bf16(k + lane // 4 * 2) | bf16(k + 1 + lane // 4 * 2) << 16}; "
        for i in range(2) for k in [lane % 4 * 2 + i * 8]) for lane in range(32))
    got = results(tmp_path, kernel(f"""{select} mov.f32 %f4, 0f3F800000;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%f5, %f6, %f7, %f8}}, {{{order}}}, {{%r8, %r9}},
    {{%f4, %f4, %f4, %f4}};
    st.global.f32 [%rd1], %f6; st.global.f32 [%rd1+4], %f7;"""), threads=32)
    def product(row, col):
        return f32(float(1 + sum((row - k) * (k + 2 * col) for k in range(16))))
    right = [product(l // 4, l % 4 * 2 + 1) | product(l // 4 + 8, l % 4 * 2) << 32 for l in range(32)]
    assert (got[:32] == right) != swapped


# A panel of dynamic shared memory whose elements are 1 in bf16, and its descriptor.
PANEL = """
mov.u32 %r4, panel; shl.b32 %r5, %r1, 6; add.s32 %r5, %r4, %r5; mov.u32 %r6, 0x3F803F80;
""" + "".join(f"st.shared.u32 [%r5+{4 * i}], %r6; " for i in range(16)) + """
fence.proxy.async.shared::cta; bar.sync 0; and.b32 %r7, %r4, 0x3FFFF; shr.u32 %r7, %r7, 4; cvt.u64.u32 %rd4, %r7;
or.b64 %rd4, %rd4, 0x4000004000010000; mov.u32 %r8, 0x40004000; mov.f32 %f36, 0f40400000;
"""
RESULTS = "{" + ", ".join(f"%f{i}" for i in range(32)) + "}"


def test_wgmma_multiplies_panels_and_fragments(tmp_path):
    """A whose elements are 2, in registers, and B of ones add 32 to 3. Two panels of ones are 16, without what was there."""
    name = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
    moves = " ".join(f"mov.f32 %f{i}, %f36;" for i in range(32))
    end = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    got = results(tmp_path, kernel(f"""{PANEL} {moves} setp.eq.u32 %p1, 0, 0; setp.ne.u32 %p2, 0, 0; wgmma.fence.sync.aligned;
    {name} {RESULTS}, {{%r8, %r8, %r8, %r8}}, %rd4, %p1, 1, 1, 1; {end}
    st.global.f32 [%rd1], %f31; wgmma.fence.sync.aligned;
    {name} {RESULTS}, %rd4, %rd4, %p2, 1, 1, 0, 0; {end}
    st.global.f32 [%rd1+4], %f0;""", before=".extern .shared .align 1024 .b8 panel[];\n"), threads=128)
    assert got[:128] == [f32(35.0) | f32(16.0) << 32] * 128


def test_functions_are_called_and_have_local_memory(tmp_path):
    """A function of one argument that returns 16 bytes, by way of its own stack; constants of the module."""
    before = """.func (.param .align 8 .b8 func_retval0[16]) twice (.param .b64 twice_param_0);
    .global .align 8 .b8 __cudart_table[16] = {1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0};
    """
    after = """.func (.param .align 8 .b8 func_retval0[16]) twice(.param .b64 twice_param_0)
    { .local .align 8 .b8 __local_depot1[16]; .reg .b64 %SP; .reg .b64 %SPL; .reg .b64 %rd<9>; mov.u64 %SPL, __local_depot1;
    cvta.local.u64 %SP, %SPL; ld.param.u64 %rd1, [twice_param_0]; add.u64 %rd2, %SPL, 8; st.local.u64 [%rd2], %rd1;
    ld.u64 %rd3, [%SP+8];
    add.s64 %rd4, %rd3, %rd3; st.param.b64 [func_retval0+0], %rd1; st.param.b64 [func_retval0+8], %rd4; ret; }
    """
    got = results(tmp_path, kernel("""
    mov.u64 %rd4, __cudart_table; ld.global.nc.u64 %rd5, [%rd4+8];
    { .reg .b32 temp_param_reg; .param .b64 param0; st.param.b64 [param0+0], %rd5; .param .align 8 .b8 retval0[16];
    call.uni (retval0), twice, (param0); ld.param.b64 %rd6, [retval0+8]; }
    st.global.u64 [%rd1], %rd6;
    """, before=before) + after)
    assert got[0] == 2 * 258


# ---- mistakes ----

SHARED = ".shared .align 4 .b8 word[4]; mov.u32 %r4, word; "
MISTAKES = {
    "beyond": ("st.global.u32 [%rd1+4096], %r1;", 1, "a write of 4 bytes at .* is outside of every allocation"),
    "misaligned": ("ld.global.v2.u32 {%r4, %r5}, [%rd2+4];", 1, "a misaligned access: .* is not a multiple of 8"),
    "undefined": (SHARED + "ld.shared.u32 %r5, [%r4];", 1, "a read of .*, which was never written"),
    "race": (SHARED + "st.shared.u32 [%r4], %r1;", 33, "race within a block, in shared memory"),
    "race-of-blocks": ("st.global.u32 [%rd2], %r1;", 1, "race between blocks"),
    "shared-as-global": (SHARED + "cvt.u64.u32 %rd4, %r4; st.global.u32 [%rd4], %r1;", 1, "a write of host memory at"),
    "global-as-shared": ("cvt.u32.u64 %r4, %rd1; st.shared.u32 [%r4], %r1;", 1,
                         "a write of 4 bytes at .*, which is not in shared memory"),
    "offset-as-shared": (SHARED + "st.shared.u32 [%rd3], %r1;", 1, "a write of 4 bytes at .*, which is not in shared memory"),
    "beyond-the-parameters": ("mov.b64 %rd4, out; ld.param.u64 %rd5, [%rd4+24];", 1,
                              "a read of 8 bytes at .*, which is not in parameter memory"),
    "beyond-local": (".local .align 8 .b8 __local_depot0[8]; mov.u64 %rd4, __local_depot0; st.local.u32 [%rd4+8], %r1;", 1,
                     "an access of 4 bytes at .* is outside of local memory"),
    "copy-in-flight": (MATRICES.replace("cp.async.wait_group 0", "cp.async.wait_group 1") + "ld.shared.u32 %r7, [%r6];", 1,
                       "a read of .*, which an asynchronous copy may still write"),
    "barrier-of-some": ("setp.eq.s32 %p1, %r1, 0; @%p1 bra $A; bar.sync 0; bra.uni $B; $A: bar.sync 0; $B:", 2,
                        "threads of a block wait at different barriers"),
    "shuffle-of-some": ("setp.eq.s32 %p1, %r1, 0; @%p1 ret; shfl.sync.idx.b32 %r4|%p2, %r1, 0, 31, -1;", 32,
                        "the mask .* has lane 0, which has ended"),
    "too-many-threads": ("", 257, "probe is launched with 257 threads, and was compiled for at most 256"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(tmp_path, name):
    body, threads, message = MISTAKES[name]
    program = build(tmp_path, kernel(body))
    for seed in range(3):
        r = run(program, threads, 2, seed)
        assert r.rc == 86 and re.search("fakecuda: .*" + message, r.err), r
    if threads <= 256 and name not in ("barrier-of-some", "shuffle-of-some"):
        assert re.search(r"in .*probe at probe\.ptx:[0-9]+", r.err), r.err


def test_arguments_have_the_layout_of_ptx(tmp_path):
    program = build(tmp_path, kernel("", params=".param .u64 out, .param .u64 in, .param .u32 n"))
    r = run(program)
    assert r.rc == 86 and "probe has 18 bytes of arguments, and 20 in PTX" in r.err, r


@pytest.mark.parametrize("body,message", [
    ("add.sat.s32 %r4, %r1, %r1;", "unknown instruction add.sat.s32"),
    ("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1, %f2}, {%r1}, {%r2}, {%f1};", "unknown instruction mma.sync"),
    ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, %p1, 1, 1, 0, 0;", "wgmma.* with 1 results"),
    ("add.s32 %r4, %r1;", "add.s32 with 2 operands"),
    ("mov.u32 %r4, nothing;", "unknown operand nothing"),
    ("mov.u32 %r4, %clock;", "unknown operand %clock"),
    ("mov.u32 %r99, 1;", "unknown operand %r99"),
    ("ld.global.v2.u32 {%r4}, [%rd2];", "2 elements and 1 registers"),
    ("cp.async.cg.shared.global [%r4], [%rd2], 8;", "cp.async.cg.shared.global of 8 bytes"),
    ("bar.sync 1;", "unknown instruction bar.sync"),
    (".reg .b128 %q;", "unknown declaration .reg .b128 %q"),
    ("st.param.u64 [out], %rd1;", "a store to the parameters of a kernel"),
])
def test_what_is_not_known_is_named(tmp_path, body, message):
    text = kernel(body)
    r = translate(tmp_path, text)
    line = text[:text.index(body)].count("\n") + 1
    assert r.returncode == 1 and re.search(rf"^probe\.ptx:{line}: translate: ({message})", r.stderr), r.stderr


def test_without_nvcc_make_ptx_says_so():
    r = harness.run("make", "-C", REPO, "ptx", "NVCC=")
    assert r.rc == 2 and "ptx: nvcc is not installed, so there is no PTX to run" in r.err, r
