#!/usr/bin/env python3
"""tests/check/readmes.py - every folder has a README.md of at most 20 lines, and CHANGELOG.md at most 300.

The first holds for the folders and subfolders of the product, the folders of tests/, and those of OTHERS.

A README.md says what the folder is for, what it may include, where to start reading, and which tests cover it.
Prints each breach as FILE:LINE: sentence. Exit 1 when there is any.
"""
import glob
import os

import source

OTHERS = "examples packaging python tests tools".split()

README_LINES_MAX = 20
CHANGELOG_LINES_MAX = 300


def check(path, lines_max):
    if not os.path.exists(os.path.join(source.ROOT, path)):
        return f"{path}:1: is missing"
    with open(os.path.join(source.ROOT, path), encoding="utf-8") as f:
        lines = len(f.readlines())
    return f"{path}:{lines}: has {lines} lines, more than {lines_max}" if lines > lines_max else None


def main():
    found = [d for d in source.directories() if os.path.isdir(os.path.join(source.ROOT, d))]
    found += OTHERS + sorted(os.path.relpath(os.path.dirname(p), source.ROOT)
                             for p in glob.glob(os.path.join(source.ROOT, "tests", "[a-z]*", "")))
    breaches = [check(d + "/README.md", README_LINES_MAX) for d in found]
    breaches.append(check("CHANGELOG.md", CHANGELOG_LINES_MAX))
    source.finish([b for b in breaches if b], f"folders have a README ({len(found)} of them)")


if __name__ == "__main__":
    main()
