#!/usr/bin/env python3
"""tests/check/kernel_traffic.py - compare how the CUDA kernels access memory with tests/check/traffic_limits.txt.

    kernel_traffic.py FILE           the check; FILE is what FAKECUDA_TRAFFIC named while build/plain/tests/kernels_cuda_shapes ran
                                     on the fake CUDA device, with TP_SEED=1
    kernel_traffic.py FILE --write   write the limits anew, after a change that is meant

For each kernel four ratios, none of which may grow: the sectors of 32 bytes that the loads, and the stores, of a warp touch in global
memory, to as few as have the same bytes; the wavefronts that its loads, and its stores, need in shared memory, to those without
conflicts of banks. 1 is the best; 0: the kernel has no such accesses. A kernel without limits and limits without a kernel are breaches, too. Exit 1
when there is any. The numbers are counts (tests/fakecuda/traffic.cc), not times: caches are not looked at.
"""
import os
import pathlib
import sys

LIMITS = pathlib.Path(os.environ.get("TRAFFIC_LIMITS") or pathlib.Path(__file__).with_name("traffic_limits.txt"))
COLUMNS = ["global_loads", "global_stores", "shared_loads", "shared_stores"]


def measure(file):
    """{kernel: ratios}: over all launches."""
    sums = {}
    for line in pathlib.Path(file).read_text().splitlines():
        name, *numbers = line.split()
        of = sums.setdefault(name, [0] * len(numbers))
        for i, x in enumerate(numbers):
            of[i] += int(x)
    return {name: [round(of[i + 1] / of[i + 2], 2) if of[i + 2] else 0.0 for i in range(0, len(of), 3)] for name, of in sums.items()}


def read_limits():
    rows = [line.split() for line in LIMITS.read_text().splitlines() if line and not line.startswith("#")]
    return {row[0]: [float(x) for x in row[1:]] for row in rows}


def write_limits(now):
    width = max(map(len, now)) + 2
    head = ["# kernel, " + ", ".join(COLUMNS) + ": see kernel_traffic.py, which writes this file"]
    rows = [f"{name:{width}}" + "".join(f"{x:>8.2f}" for x in ratios) for name, ratios in sorted(now.items())]
    LIMITS.write_text("\n".join(head + rows) + "\n")


def compare(now, limits):
    for name in sorted(set(now) | set(limits)):
        if name not in limits:
            yield f"{name} has no limits: {now[name]}"
        elif name not in now:
            yield f"{name} has limits, but was not run"
        else:
            for what, is_now, limit in zip(COLUMNS, now[name], limits[name]):
                if is_now > limit + 0.005:  # both have two digits
                    yield f"{name}: {what}: {is_now}, and the limit is {limit}"


def main():
    now = measure(sys.argv[1])
    if "--write" in sys.argv[2:]:
        write_limits(now)
    breaches = list(compare(now, read_limits()))
    for breach in breaches:
        print(breach)
    if breaches:
        sys.exit(f"{len(breaches)} kernels access memory in more pieces than tests/check/traffic_limits.txt allows; "
                 "if that is meant, run tests/check/kernel_traffic.py FILE --write")
    print(f"  ok    sectors and wavefronts of {len(now)} kernels")


if __name__ == "__main__":
    main()
