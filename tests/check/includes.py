#!/usr/bin/env python3
"""tests/check/includes.py - includes go one way.

  1. A folder includes only headers of the folders that MAY_INCLUDE names with it.
  2. Inside a folder that has subfolders, a part includes only parts of lower layers (LAYERS).
  3. Includes of our own headers are folder-qualified, and the header exists.
  4. There is no cycle between folders, of any depth, and none between files. A header and its source
     count as one file.

Prints each breach as FILE:LINE: sentence. Exit 1 when there is any.
"""
import collections
import os

import source

# What a folder may include, itself aside: folders, subfolders, or single headers.
MAY_INCLUDE = {
    "core": "",
    "layout": "core",
    "torch": "core storage layout",
    "device": "core",
    "kernels": "core device layout/dtype.h layout/box.h",
    "comm": "core layout/dtype.h device kernels/cpu/tree_reduce.h kernels/cuda/cuda.h",
    "storage": "core",
    "ckpt": "core layout storage",
    "reshard": "core layout torch device kernels comm storage ckpt",
    "trainer": "core layout device kernels comm storage ckpt reshard",
    "progress": "core",
    "orchestrator": "core layout storage ckpt trainer/sizing",
    "cli": "core layout torch device kernels comm storage ckpt reshard trainer orchestrator",
}

# The layers of a folder with subfolders, from the bottom up. A file may include its own part and the
# parts of lower layers. A part is a subfolder ("cpu/"), or the noun of a file at the top of the
# folder; "." is all other files there. Parts of one layer do not see each other.
LAYERS = {
    "layout": [".", "family/"],
    "device": [".", "cpu/ cuda/ null/"],
    "comm": ["env", "host/", ".", "cuda/"],
    "kernels": [".", "cpu/ null/", "cuda/"],
    "reshard": ["engine/", "formats/export_writer formats/upload_set", "formats/checkpoint/ formats/pieces/", "formats/safetensors/",
                "formats/torch/", "formats/gguf/ formats/megatron/ formats/hf_trainer/ formats/meta/ formats/verl/ formats/vllm/", "formats/deepspeed/",
                "formats/pt/", "formats/", "."],
    "trainer": ["sizing/", "config pipeline/ process_groups",
                "context/ data_parallel/ tensor/", "data/ model/ same_bits/", "."],
    "orchestrator": ["job/", "process/ state/ watch/", "plan/ web/", "backend/", "."],
    "cli": [".", "ckpt/ reshard/ run/ train/"],
}


def part_of(path):
    """(folder, part): the part of LAYERS that a file belongs to; part "." also without layers."""
    folder, rest = path.split("/", 1)
    parts = " ".join(LAYERS.get(folder, [])).split()
    noun = os.path.splitext(rest)[0]
    if noun in parts:
        return folder, noun
    subfolders = [p for p in parts if p.endswith("/") and rest.startswith(p)]
    return folder, max(subfolders, key=len) if subfolders else "."


def layer_of(folder, part):
    """The number of the layer of a part; None when it has none."""
    for number, layer in enumerate(LAYERS[folder]):
        if part in layer.split():
            return number
    return None


def check_folder(path, header):
    """What is wrong with this include between two folders, or None."""
    folder = path.split("/")[0]
    if header.split("/")[0] == folder or source.within(header, MAY_INCLUDE[folder].split()):
        return None
    return f'{folder}/ may not include "{header}"'


def check_layer(path, header):
    """What is wrong with this include between two parts of a folder, or None."""
    (folder, part), (other, target) = part_of(path), part_of(header)
    if folder != other or part == target or folder not in LAYERS:
        return None
    if layer_of(folder, target) < layer_of(folder, part):
        return None
    name = f"{folder}/{part}".replace("/.", "/")
    return f'{name} may not include "{header}", which is not in a lower layer of {folder}/'


def check_includes(files):
    for file in files:
        for line, header in file.includes():
            if "/" not in header:
                problem = f'"{header}" is not folder-qualified'
            elif not os.path.exists(os.path.join(source.ROOT, header)):
                problem = f'"{header}" does not exist'
            else:
                problem = check_folder(file.path, header) or check_layer(file.path, header)
            if problem:
                yield f"{file.path}:{line}: {problem}"


def has_layer(directory):
    """Whether a subfolder has a layer: its own, or that of a folder around it whose subfolders have none of their own."""
    folder, part = part_of(directory + "/x")
    own = directory == folder + "/" + part.rstrip("/")
    split = any(p != part and p.endswith("/") and p.startswith(part) for p in " ".join(LAYERS.get(folder, [])).split())
    return part != "." and (own or not split)


def check_tables():
    """Every subfolder has a layer, and MAY_INCLUDE goes one way."""
    for folder in source.FOLDERS:
        for name in MAY_INCLUDE[folder].split():
            if source.FOLDERS.index(name.split("/")[0]) >= source.FOLDERS.index(folder):
                yield f"tests/check/includes.py: {folder}/ comes before {name} and may not include it"
    for directory in source.directories():
        if "/" in directory and not has_layer(directory):
            yield f"{directory}: has no layer; give it one in LAYERS of tests/check/includes.py"


def cycles(edges):
    """The strongly connected components of more than one node (Tarjan 1972), each sorted."""
    number, lowest, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in number:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == number[node]:
            members = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(edges):
        if node not in number:
            visit(node)
    return found


def check_cycles(kind, edges, examples):
    for members in cycles(edges):
        yield f"{members[0]}: a cycle of {kind}: " + ", ".join(members)
        for (a, b), where in sorted(examples.items()):
            if a in members and b in members:
                yield f"{where}: includes {b}"


def graphs(files):
    """Includes between files and between folders: for each, the edges and an example of each edge."""
    between = {"files": (collections.defaultdict(set), {}), "folders": (collections.defaultdict(set), {})}

    def folder_node(path):
        folder, part = part_of(path)
        return os.path.dirname(path) if part == "." or part.endswith("/") else f"{folder}/{part}"

    for file in files:
        for line, header in file.includes():
            pairs = {"files": (os.path.splitext(file.path)[0], os.path.splitext(header)[0]),
                     "folders": (folder_node(file.path), folder_node(header))}
            for kind, (a, b) in pairs.items():
                if a != b and "/" in header:
                    between[kind][0][a].add(b)
                    between[kind][1].setdefault((a, b), f"{file.path}:{line}")
    return between


def main():
    files = source.sources()
    breaches = list(check_tables()) + list(check_includes(files))
    between = graphs(files)
    breaches += check_cycles("files", *between["files"])
    breaches += check_cycles("folders", *between["folders"])
    source.finish(breaches, f"includes go one way ({len(files)} files)")


if __name__ == "__main__":
    main()
