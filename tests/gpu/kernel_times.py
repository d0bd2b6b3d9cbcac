"""tests/gpu/kernel_times.py - where the time of a training step on a GPU goes, from the file that kernel_times.cc writes."""
import collections
import re

from findings import Failed

# The kernel with which a step ends.
LAST = "adamw_kernel"
MOST = 40  # kernels that are listed


def short_name(name):
    """A kernel without its arguments, and without namespaces and what returns."""
    if m := re.match(r"(.*?[\w>])\(", name):
        name = m[1]
    plain = name.partition("<")[0]
    return plain.rpartition("::")[2].rpartition(" ")[2] + name[len(plain):]


def read(path):
    """[(start, end, name)] in ns, by start."""
    rows = []
    for line in path.read_text(errors="replace").splitlines():
        if m := re.fullmatch(r"(\d+)\t(\d+)\t(.+)", line):
            rows.append((int(m[1]), int(m[1]) + int(m[2]), m[3]))
    return sorted(rows)


def last_step(rows):
    """The rows of the last whole step: after the last LAST of the step before, up to its own. A step has several of them, with few
    other operations between them."""
    ends = [i for i, (_, _, name) in enumerate(rows) if LAST in name]
    steps = [i for k, i in enumerate(ends) if k + 1 == len(ends) or any(is_forward(rows[j]) for j in range(i + 1, ends[k + 1]))]
    if len(steps) < 2:
        raise Failed("no two steps were recorded: %d operations, %d of them %s" % (len(rows), len(ends), LAST))
    return rows[steps[-2] + 1:steps[-1] + 1]


def is_forward(row):
    return "embedding_forward" in row[2]


def summary(path):
    """{figure: value} of the last step."""
    rows = last_step(read(path))
    total, count = collections.Counter(), collections.Counter()
    busy, end = 0, rows[0][0]
    for start, stop, name in rows:
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
        total[short_name(name)] += stop - start
        count[short_name(name)] += 1
    all_ms = (end - rows[0][0]) / 1e6
    return {"step_ms": round(all_ms, 3), "between_operations_ms": round(all_ms - busy / 1e6, 3), "operations": len(rows),
            **{name: {"ms": round(ns / 1e6, 3), "times": count[name]} for name, ns in total.most_common(MOST)}}
