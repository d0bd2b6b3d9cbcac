#!/usr/bin/env python3
"""tests/check/tags.py - the tags of structs, unions and enums.

  1. No tag is defined in two files.
  2. A tag that a header defines begins with its module's prefix: the noun of the file, the noun of
     its family (shard for shard_row.h, where shard.h exists), the name of a folder that the file is
     in, the singular of any of these, or a prefix that PREFIXES allows there.

With --all, the folders in which the rules are not enforced yet are shown too.
Prints each breach as FILE:LINE: sentence. Exit 1 when there is any.
"""
import collections
import os
import re

import source

# Prefixes besides the file's noun and its folders.
PREFIXES = {
    "core/err.h": "tp",             # every function has them: struct tp_err, tp_status
    "layout/spec.h": "mesh",        # the mesh that a spec names
    "layout/tensor.h": "placement",
    "progress/tp_progress.h": "tp",
    "trainer/config.h": "train",    # struct train_config
    "trainer/context/ring_attention.h": "ring",
    "trainer/data_parallel/bucket_transfer.h": "bucket",
    "trainer/data_parallel/pairwise_sum.h": "pairwise",
    "trainer/sizing/activations.h": "ring",
    "trainer/sizing/buffer_pool.h": "buffer",
    "trainer/sizing/param_count.h": "param",
    "trainer/sizing/param_list.h": "param",
    "trainer/sizing/param_spans.h": "param",
}

DEFINITION = re.compile(r"\b(struct|union|enum)\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?(\w+)\s*\{")


def prefixes_of(path):
    *folders, name = path.split("/")
    words = os.path.splitext(name)[0].split("_")
    family = ["_".join(words[:n]) for n in range(len(words) - 1, 0, -1)]
    nouns = ["_".join(words)] + [noun for noun in family if is_header(folders, noun)] + folders
    return nouns + [n[:-1] for n in nouns if n.endswith("s")] + PREFIXES.get(path, "").split()


def is_header(folders, noun):
    """Whether noun.h exists in the innermost of these folders, or in the one above it."""
    return any(os.path.exists(os.path.join(source.ROOT, *f, noun + ".h")) for f in (folders, folders[:-1]) if f)


def definitions(files):
    """tag -> [(file, line, kind)] of every definition; a tag twice in one file counts once."""
    found = collections.defaultdict(list)
    for file in files:
        for match in DEFINITION.finditer(file.code):
            if all(file is not f for f, _, _ in found[match[2]]):
                found[match[2]].append((file, file.line_of(match.start()), match[1]))
    return found


def check(files):
    for tag, places in sorted(definitions(files).items()):
        for file, line, kind in places:
            others = [f.path for f, _, _ in places if f is not file]
            if others:
                yield f"{file.path}:{line}: {kind} {tag} is defined in {', '.join(others)} too"
            prefixes = prefixes_of(file.path)
            if file.path.endswith((".h", ".cuh")) and not any(
                    tag == p or tag.startswith(p + "_") for p in prefixes):
                yield f"{file.path}:{line}: {kind} {tag} begins with none of: {', '.join(prefixes)}"


def main():
    source.finish(sorted(check(source.sources())), "tags have one definition and their module's prefix")


if __name__ == "__main__":
    main()
