#!/usr/bin/env python3
"""tests/check/modules.py - every module has a test: print which, and fail for those without.

A module is a source file of the product with its header. It is covered

  by name: tests/unit/FOLDER_NOUN.c or FOLDER_NOUN_*.c; the verbs and programs of cli/ by the files
      of tests/cli that run them;
  by declaration: a test's head has a line `covers: ckpt/find trainer/data_parallel/params`.

A test may only declare what its programs are linked from (build/uses.mk).

    modules.py          the check: prints each breach as FILE:LINE: sentence; exit 1 if any
    modules.py --map    the table of modules and their tests
"""
import glob
import os
import re
import sys

import source

sys.path.insert(0, os.path.join(source.ROOT, "tests", "runner"))
import selection  # noqa: E402

TESTS = ["tests/unit/*.c", "tests/mpi/*.c", "tests/cli/test_*.py", "tests/packaging/test_*.py",
         "tests/slurm/test_*.py", "tests/gpu/*.cu"]


def modules():
    """{module: [file, ...]}, for example "ckpt/find": ["ckpt/find.c", "ckpt/find.h"]."""
    found = {}
    for s in source.sources():
        found.setdefault("%s/%s" % (s.directory, s.noun), []).append(s.path)
    return {m: files for m, files in found.items() if any(f.endswith((".c", ".cu")) for f in files)}


def short(path):
    """How the table calls a test."""
    return os.path.splitext(os.path.basename(path))[0] if "/unit/" in path else path[len("tests/"):]


def linked():
    """{program: modules that it is linked from}, as make found them."""
    uses = {}
    with open(os.path.join(source.ROOT, "build", "uses.mk"), encoding="utf-8") as f:
        for line in f:
            name, files = line.split(" :=")
            uses[name[len("uses_"):]] = set(files.split())
    return uses


def runs(path, uses):
    """The modules of the programs that a test runs."""
    base = os.path.splitext(os.path.basename(path))[0]
    names = {"unit": ["tests/" + base], "mpi": ["tests/mpi/" + base]}.get(path.split("/")[1])
    if names is None:
        needs = selection.head(path, "needs") or ["tp-run", "tp-train", "tp-ckpt", "tp-reshard"]
        names = [n.replace(".so", "") for n in needs] + ["tests/" + n for n in needs]
    if path.startswith("tests/gpu"):
        names = ["gpu_check"]
    return set().union(*(uses.get(n, set()) for n in names))


def by_name(module, tests, texts):
    """The tests that are named after a module."""
    parts = module.split("/")
    wanted = "tests/unit/%s_%s" % (parts[0], parts[-1])
    found = [t for t in tests if re.fullmatch(re.escape(wanted) + r"(_\w+)?\.c", t)]
    if parts[0] != "cli":
        return found
    noun = parts[-1].replace("_", "-")
    pattern = r'"%s"' % noun if noun.startswith("tp-") else \
        r'"tp-%s", "%s"|verb\("%s"' % (parts[1], noun[4:], noun[4:])
    return found + [t for t in tests if t.endswith(".py") and re.search(pattern, texts[t])]


def main():
    tests = sorted(t for p in TESTS for t in glob.glob(p, root_dir=source.ROOT))
    texts = {t: selection.read(t) for t in tests}
    all_modules, uses, breaches = modules(), linked(), []
    covered = {m: by_name(m, tests, texts) for m in all_modules}
    for t in tests:
        linked_here = runs(t, uses)
        for module in selection.head(t, "covers") or []:
            if module not in all_modules:
                breaches.append("%s:1: covers %s, which does not exist" % (t, module))
            elif module not in linked_here and not module.startswith(("kernels/cuda", "device/cuda", "comm/cuda")):
                breaches.append("%s:1: covers %s, but no program that it runs has it" % (t, module))
            else:
                covered[module].append(t)
    if "--map" in sys.argv:
        for module, names in sorted(covered.items()):
            print("%-44s %s" % (module, " ".join(sorted({short(t) for t in names})) or "-"))
        return
    breaches += ["%s:1: no test covers it (%s explains how to say which does)" % (
        all_modules[m][0], "tests/check/modules.py") for m in sorted(covered) if not covered[m]]
    source.finish(breaches, "every module has a test (%d modules)" % len(covered))


if __name__ == "__main__":
    main()
