#!/usr/bin/env python3
"""tests/check/links.py - links between the documents lead somewhere.

Every relative link of a Markdown file names a file of the tree, and what follows a # is one of that file's headings, by
GitHub's rule, or the id of an <a>. A link is in one line, where this script sees it. Prints each breach as FILE:LINE: sentence.
Exit 1 when there is any.
"""
import functools
import os
import re

import source

BUILT = {"build", "bin", "lib", "demo"}  # and what begins with a dot

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BROKEN = re.compile(r"\[[^\[\]\n]*\n[^\[\]]*\]\(")  # across lines


@functools.lru_cache(None)
def lines(path):
    """Those of a document, but what is between ``` is empty."""
    with open(os.path.join(source.ROOT, path), encoding="utf-8") as f:
        text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), f.read(), flags=re.S | re.M)
    return text.split("\n")


@functools.lru_cache(None)
def headings(path):
    """What links call them: in lower case, without punctuation, with - for a space, and a number where one repeats."""
    found = {}
    for line in lines(path):
        found.update(dict.fromkeys(re.findall(r'<a id="([^"]+)">', line), 0))
        if m := re.match(r"#+ (.*)", line):
            name = re.sub(r"[^\w\- ]", "", LINK.sub(r"\g<0>", m[1]).lower()).replace(" ", "-")
            n = found[name] = found.get(name, -1) + 1
            if n:
                found["%s-%d" % (name, n)] = 0
    return found


def check(path):
    for number, line in enumerate(lines(path), 1):
        for link in LINK.findall(line):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, heading = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            if not os.path.exists(os.path.join(source.ROOT, target)):
                yield "%s:%d: links to %s, which is not there" % (path, number, target)
            elif heading and target.endswith(".md") and heading not in headings(target):
                yield "%s:%d: %s has no heading #%s" % (path, number, target, heading)
    text = "\n".join(lines(path))
    for m in BROKEN.finditer(text):
        yield "%s:%d: a link is broken across lines" % (path, text.count("\n", 0, m.start()) + 1)


def documents_of(root):
    for base, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in BUILT and not f.startswith("."))
        yield from (os.path.relpath(os.path.join(base, f), root) for f in sorted(files) if f.endswith(".md"))


def main():
    documents = list(documents_of(source.ROOT))
    source.finish([b for path in documents for b in check(path)], "links of documents (%d of them)" % len(documents))


if __name__ == "__main__":
    main()
