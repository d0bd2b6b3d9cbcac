"""What the checks of the source tree share: the folders, their files, and C code without comments."""
import os
import re
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

# The folders of the product, from the bottom up; tests/check/includes.py says what each may include.
FOLDERS = ["core", "storage", "layout", "torch", "device", "kernels", "comm", "ckpt", "reshard", "trainer", "progress",
           "orchestrator", "cli"]

TOKEN = re.compile(r"""
      (?P<comment> //[^\n]* | /\*.*?\*/ )
    | (?P<string>  "(?:\\.|[^"\\\n])*" )
    | (?P<char>    '(?:\\.|[^'\\\n])*' )
""", re.VERBOSE | re.DOTALL)


def without_comments(text):
    """C code with comments blanked and strings emptied; every line keeps its number."""
    def blank(match):
        if match["comment"]:
            return " " + "\n" * match[0].count("\n")
        return '""' if match["string"] else "' '"

    return TOKEN.sub(blank, text)


class Source:
    """A C file: its path from the root, its text, and its code without comments."""

    def __init__(self, path):
        self.path = path
        self.folder = path.split("/")[0]
        self.directory = os.path.dirname(path)
        self.noun = os.path.splitext(os.path.basename(path))[0]
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            self.text = f.read()
        self.code = without_comments(self.text)

    def line_of(self, offset):
        """The number of the line of `code` that has this offset."""
        return self.code.count("\n", 0, offset) + 1

    def includes(self):
        """(line, header) of every #include "header"."""
        for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"', self.text, re.M):
            yield self.text.count("\n", 0, match.start()) + 1, match[1]


def directories():
    """Every folder and subfolder of the product, sorted."""
    found = []
    for folder in FOLDERS:
        for base, subfolders, _ in os.walk(os.path.join(ROOT, folder)):
            subfolders.sort()
            found.append(os.path.relpath(base, ROOT))
    return found


def sources(suffixes=(".c", ".h", ".cu", ".cuh")):
    """Every C file of the product, sorted by path."""
    found = []
    for directory in directories():
        for name in sorted(os.listdir(os.path.join(ROOT, directory))):
            if name.endswith(suffixes):
                found.append(Source(directory + "/" + name))
    return found


def within(path, parts):
    """Whether path is one of parts, or lies in one of them that is a folder."""
    return any(path == part or path.startswith(part + "/") for part in parts)


def finish(breaches, success):
    """Print the breaches, or what holds. Exits 1 when there are any."""
    for breach in breaches:
        print(breach)
    if breaches:
        check = os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)
        print(f"{len(breaches)} breaches of the rules of the tree; {check} explains the rules")
        sys.exit(1)
    print("  ok    " + success)
