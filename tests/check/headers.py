#!/usr/bin/env python3
"""tests/check/headers.py - every header compiles alone, and twice in one file. Its guard is its path.

$CC is the compiler (default gcc). Prints each breach as FILE:LINE: sentence. Exit 1 when there is any.
"""
import concurrent.futures
import os
import re
import subprocess

import source

PACKAGES = ["ompi-c", "jansson", "hdf5-serial"]
FAKE_CUDA = "tests/fakecuda/include"  # for machines without CUDA
INSTALLED = {"progress/tp_progress.h": "TP_PROGRESS_H"}  # programs of others include it without its folder


def compiler():
    flags = subprocess.run(["pkg-config", "--cflags"] + PACKAGES, stdout=subprocess.PIPE, text=True,
                           check=False).stdout.split()
    return os.environ.get("CC", "gcc").split() + flags + [
        "-std=c11", "-D_GNU_SOURCE", "-I.", "-idirafter", FAKE_CUDA, "-fopenmp", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
        "-x", "c", "-"]


def check(command, header):
    done = subprocess.run(command, input=2 * f'#include "{header}"\n', cwd=source.ROOT, text=True,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode == 0:
        return None
    error = next((line for line in done.stderr.splitlines() if "error" in line), "the compiler failed")
    return f"{header}:1: does not compile alone: {error}"


def check_guard(file):
    expected = INSTALLED.get(file.path, re.sub(r"[^A-Z0-9]", "_", file.path.upper()))
    guard = re.search(r"^#ifndef (\w+)\n#define (\w+)$", file.code, re.M)
    if guard and guard[1] == guard[2] == expected:
        return None
    return f"{file.path}:1: its guard is {guard[1] if guard else 'missing'}, expected {expected}"


def main():
    command = compiler()
    headers = [file.path for file in source.sources((".h",))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        breaches = [b for b in pool.map(lambda header: check(command, header), headers) if b]
    breaches += filter(None, map(check_guard, source.sources((".h", ".cuh"))))
    source.finish(breaches, f"headers stand alone ({len(headers)} headers)")


if __name__ == "__main__":
    main()
