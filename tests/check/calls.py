#!/usr/bin/env python3
"""tests/check/calls.py - what code may not call.

  1. Banned functions, anywhere: each has a better one that is bounded, checked or reentrant.
  2. Below cli/: no exit, and no printing but for core/progress.c, which draws the progress line.
  3. Below cli/: no environment variables; what a library needs of them is a parameter.
     progress/ is the exception: libtp-progress finds its folder by one.
  4. trainer/ does not touch device memory: it calls no memcpy, memset, memmove or kernels_for, and
     includes nothing of kernels/cpu/ or device/cpu/. trainer/data/ is the exception: it reads token
     files, which are host memory. Loops over elements fail in tests/cli/test_deferred.py.
  5. Integers of 64 bits are printed by %lld or %llu and a cast, not by the macros of <inttypes.h>: a
     format stays one string.

Prints each breach as FILE:LINE: sentence. Exit 1 when there is any.
"""
import re

import source

BANNED = ("gets strcpy strcat sprintf vsprintf strncpy strtok atoi atol atoll atof tmpnam mktemp alloca "
          "system rand srand asprintf vasprintf").split()  # of the last two no leak is found (tests/lsan.supp)
EXITS = "exit abort".split()
PRINTS = "printf vprintf puts putchar perror".split()
ENVIRONMENT = "getenv secure_getenv setenv unsetenv putenv clearenv".split()
MEMORY = "memcpy memset memmove kernels_for".split()


def calls(names):
    return re.compile(r"(?<![\w.>])(" + "|".join(names) + r")\s*\(")


FORMAT_MACRO = re.compile(r"(?<!\w)(PRI|SCN)[diouxX](?:8|16|32|64|MAX|PTR)(?!\w)")
STANDARD_STREAM = re.compile(r"(?<![\w.>])v?fprintf\s*\(\s*std(?:out|err)|"
                             r"(?<![\w.>])f?put[sc]\s*\([^;]*,\s*std(?:out|err)\s*\)")


def rules_of(file):
    """(pattern, sentence) of each rule that holds for this file."""
    yield calls(BANNED), "is a banned function"
    yield FORMAT_MACRO, "splits a format: write %lld and a cast to long long"
    if file.folder == "cli":
        return
    yield calls(EXITS), "ends the program below cli/"
    if file.path != "core/progress.c":
        yield calls(PRINTS), "prints below cli/"
        yield STANDARD_STREAM, "prints below cli/"
    if file.folder == "trainer" and file.directory != "trainer/data":
        yield calls(MEMORY), "accesses memory that may be a device's"
    if file.folder != "progress":
        yield calls(ENVIRONMENT), "uses the environment below cli/"
        yield re.compile(r"(?<![\w.>])environ\b"), "uses the environment below cli/"


def main():
    breaches = []
    files = source.sources()
    for file in files:
        for pattern, sentence in rules_of(file):
            for match in pattern.finditer(file.code):
                name = match[0].split("(")[0].strip()
                breaches.append(f"{file.path}:{file.line_of(match.start())}: {name} {sentence}")
        for line, header in file.includes():
            if file.folder == "trainer" and header.startswith(("kernels/cpu/", "device/cpu/")):
                breaches.append(f"{file.path}:{line}: {header} is the CPU device's, and trainer/ "
                                "works with any device")
    source.finish(breaches, f"no banned calls ({len(files)} files)")


if __name__ == "__main__":
    main()
