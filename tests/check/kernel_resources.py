#!/usr/bin/env python3
"""tests/check/kernel_resources.py - compare what the CUDA kernels take of a GPU with tests/check/kernel_limits.txt.

    kernel_resources.py BUILD           the check; BUILD is the folder of `make cuda`, such as build/plain/cuda
    kernel_resources.py BUILD --write   write the limits anew, after a change that is meant

For each kernel, the worst of all architectures: registers of a thread, bytes of stack, bytes of shared memory, none of which
may grow; and the fewest loads and stores of 16 bytes in its PTX, and in its machine code, which may not become fewer. Machine code is
read where there is cuobjdump: on the PATH, beside nvcc, where tools/cuobjdump.sh puts it, in .venv (a part of triton), or where
CUOBJDUMP says. A spilled register, a
kernel that uses local memory and has no stack, a kernel without limits and limits without a kernel are breaches, too. Exit 1 when
there is any.

The figures are those of one version of nvcc, which the first line names; with another one, small differences are not a fault of
the kernels.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

LIMITS = pathlib.Path(os.environ.get("KERNEL_LIMITS") or pathlib.Path(__file__).with_name("kernel_limits.txt"))
REPO = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = ["registers", "stack", "shared", "wide", "wide_machine_code"]
# 16 bytes at once: two of 64 bits, or four of 32, or an asynchronous copy.
IS_WIDE = re.compile(r"\bcp\.async\.cg\.shared\.global [^,]*, [^,]*, 16\b|\b(?:ld|st)(?:\.global|\.volatile|\.nc|\.wb|\.L\d::\w+|\.shared)*\.(?:v2\.[busf]64|v4\.[busf]32)\b")

WIDE_CODE, LOCAL_CODE = re.compile(r"\b(?:LDGSTS|(?:LD|ST)[GS]?)(?:\.\w+)*\.128\b"), re.compile(r"\b(?:LDL|STL)\b")


def demangle(names):
    names = sorted(names)
    out = subprocess.run(["c++filt"], input="\n".join(names), text=True, stdout=subprocess.PIPE, check=True).stdout
    short = {}
    for name, text in zip(names, out.split("\n")):
        short[name] = re.sub(r"^void ", "", text.split("(")[0] if "<" not in text else text[:text.index(">(") + 1]).replace(" ", "")
    return short


def logs(folder, suffix):
    """The files of kernels that still exist; a build folder may have those of removed ones."""
    for path in sorted(folder.rglob("*" + suffix)):
        source = re.sub(r"(\.keep/.*)?\.\w+$", ".cu", str(path.relative_to(folder)))
        if "/" not in source or (REPO / source).exists():
            yield path


def of_ptxas(folder):
    """{mangled name: [registers, stack, shared]}: the most over all architectures; and the breaches."""
    found, breaches = {}, []
    for path in logs(folder, ".ptxas"):
        name = None
        for line in path.read_text().splitlines():
            if m := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
                name, arch = m.groups()
                found.setdefault(name, [0, 0, 0])
            elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
                found[name][1] = max(found[name][1], int(m[1]))
                if int(m[2]) or int(m[3]):
                    breaches.append(f"{path}: {name} for {arch} spills registers: {m[2]} bytes stored, {m[3]} loaded")
            elif m := re.search(r"Used (\d+) registers", line):
                found[name][0] = max(found[name][0], int(m[1]))
                if m := re.search(r"(\d+) bytes smem", line):
                    found[name][2] = max(found[name][2], int(m[1]))
    return found, breaches


def of_ptx(folder):
    """{mangled name: loads and stores of 16 bytes}: the fewest over all architectures."""
    found = {}
    for path in logs(folder, ".ptx"):
        name, n = None, 0
        for line in [*path.read_text().splitlines(), ".entry end("]:
            if m := re.search(r"\.entry (\w+)\(", line):
                if name:
                    found[name] = min(n, found.get(name, n))
                name, n = m[1], 0
            n += bool(IS_WIDE.search(line))
    return found


def find_cuobjdump():
    """Its path; None: it is not installed."""
    named = os.environ.get("CUOBJDUMP")
    nvcc = pathlib.Path(shutil.which("nvcc") or "nvcc")
    packages = "lib/python3*/site-packages"
    places = [pathlib.Path(named)] if named else [
        nvcc.with_name("cuobjdump"), *REPO.glob(f"build/cuobjdump/{packages}/nvidia/cu*/bin/cuobjdump"),
        *REPO.glob(f".venv/{packages}/triton/backends/nvidia/bin/cuobjdump")]
    return (None if named else shutil.which("cuobjdump")) or next((str(p) for p in places if p.exists()), None)


def of_code(folder, cuobjdump):
    """{mangled name: loads and stores of 16 bytes}: the fewest over all architectures; and kernels that use local memory."""
    found, local = {}, set()
    for path in logs(folder, ".o"):
        r = subprocess.run([cuobjdump, "-sass", path], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        for kernel in re.split(r"\n\s+Function : ", r.stdout)[1:]:  # an object of C has none
            name = kernel.split(None, 1)[0]
            found[name] = min(len(WIDE_CODE.findall(kernel)), found.get(name, sys.maxsize))
            if LOCAL_CODE.search(kernel):
                local.add(name)
    return found, local


def measure(folder):
    """{kernel: columns}, the last one None where there is no cuobjdump; and the breaches."""
    taken, breaches = of_ptxas(folder)
    wide, names, cuobjdump = of_ptx(folder), demangle(taken), find_cuobjdump()
    code, local = of_code(folder, cuobjdump) if cuobjdump else ({}, set())
    for k in sorted(taken):
        if cuobjdump and k not in code:
            breaches.append(f"{names[k]}: {cuobjdump} finds no machine code of it")
        if k in local and not taken[k][1]:
            breaches.append(f"{names[k]} uses local memory, and ptxas says that it has no stack")
    return {names[k]: [*v, wide.get(k, 0), code.get(k)] for k, v in taken.items()}, breaches


def version():
    return LIMITS.read_text().splitlines()[0].lstrip("# ") if LIMITS.exists() else ""


def read_limits():
    if not LIMITS.exists():
        return {}
    rows = [line.split() for line in LIMITS.read_text().splitlines() if line and not line.startswith("#")]
    return {row[0]: [int(x) for x in row[1:]] for row in rows}


def write_limits(now, nvcc):
    if any(values[-1] is None for values in now.values()):
        sys.exit("kernel_resources: the limits of machine code need cuobjdump; CUOBJDUMP names another place")
    width = max(map(len, now)) + 2
    head = [f"# {nvcc}", "# kernel, " + ", ".join(COLUMNS) + ": see kernel_resources.py, which writes this file"]
    rows = [f"{name:{width}}" + "".join(f"{x:>8}" for x in values) for name, values in sorted(now.items())]
    LIMITS.write_text("\n".join(head + rows) + "\n")


def compare(now, limits):
    for name in sorted(set(now) | set(limits)):
        if name not in limits:
            yield f"{name} has no limits: {now[name]}"
        elif name not in now:
            yield f"{name} has limits, but no longer exists"
        else:
            for what, is_now, limit in zip(COLUMNS, now[name], limits[name]):
                if is_now is not None and (is_now < limit if what.startswith("wide") else is_now > limit):
                    yield f"{name}: {what}: {is_now}, and the limit is {limit}"


def main():
    folder = pathlib.Path(sys.argv[1])
    now, breaches = measure(folder)
    if not now:
        sys.exit(f"kernel_resources: {folder} has no logs of ptxas; run make cuda")
    if "--write" in sys.argv[2:]:
        nvcc = subprocess.run(["nvcc", "--version"], text=True, stdout=subprocess.PIPE, check=True).stdout
        write_limits(now, "nvcc " + re.search(r"V([\d.]+)", nvcc)[1])
    breaches += compare(now, read_limits())
    for breach in breaches:
        print(breach)
    if breaches:
        sys.exit(f"{len(breaches)} kernels take more of a GPU than tests/check/kernel_limits.txt allows (made with {version()}); "
                 "if that is meant, run tests/check/kernel_resources.py BUILD --write")
    code = "wide loads in PTX (no cuobjdump, so not in machine code)" if None in [v[-1] for v in now.values()] else \
        "wide loads in PTX and machine code"
    print(f"  ok    registers, stack, shared memory, {code} of {len(now)} kernels")


if __name__ == "__main__":
    main()
