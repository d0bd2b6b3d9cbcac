"""The disk states that a power cut may leave, from a recording of tests/fault/record.c.

A Recording is the folder before a program ran, and everything that the program changed, in order. A cut
after the first n changes leaves one of many states. What is certain:

- The contents of a file are on disk if they were written before an fsync or fdatasync of that file.
- The entries of a directory are on disk if they were made before an fsync of that directory. An fsync of
  a file does not save its name.

Each other change before the cut is on disk or not, whatever the order. A write can be torn at pages of
4 KiB: any of its pages can be missing, and so can the growth of the file. A page that is missing has its
old contents, or zeros if it had none.

This is more hostile than ext4 or XFS, which keep the order of changes to names. Not covered are disks
that lose what they reported as synced, and writes of less than a page that tear.
"""
import os
import struct

PAGE = 4096
(CREATE, TRUNCATE, WRITE, ALLOCATE, SYNC, MKDIR, RENAME, LINK, UNLINK, RMDIR, SYMLINK, MARK) = range(1, 13)
HEAD = struct.Struct("<IIIIQqqQ")
EXCHANGE = 2  # RENAME_EXCHANGE


class Change:
    """One recorded call. target: the file or directory whose durability decides; set by Recording."""

    def __init__(self, op, path, other, inode, a, b, data):
        self.op, self.path, self.other, self.inode = op, path, other, inode
        self.a, self.b, self.data = a, b, data
        self.target = self.obj = None


def read_log(path):
    changes, text, at = [], path.read_bytes(), 0
    while at < len(text):
        op, n_path, n_other, _, inode, a, b, n_data = HEAD.unpack_from(text, at)
        at += HEAD.size
        path = text[at:at + n_path].decode()
        other = text[at + n_path:at + n_path + n_other].decode()
        at += n_path + n_other
        changes.append(Change(op, path, other, inode, a, b, text[at:at + n_data]))
        at += n_data
    return changes


class World:
    """A tree of objects. An object is a number; names and contents belong to it, as to an inode."""

    def __init__(self, under):
        self.under = str(under)
        self.entries = {0: {}}  # directory: {name: object}
        self.contents = {}      # file: bytes
        self.targets = {}       # symbolic link: text

    def copy(self):
        w = World(self.under)
        w.entries = {k: dict(v) for k, v in self.entries.items()}
        w.contents, w.targets = dict(self.contents), dict(self.targets)
        return w

    def locate(self, path):
        """(object of the directory, name), or None if a directory on the way is missing."""
        words = os.path.relpath(path, self.under).split("/")
        at = 0
        for word in words[:-1]:
            at = self.entries.get(at, {}).get(word)
            if at is None or at not in self.entries:
                return None
        return (at, words[-1]) if words[-1] != "." else None

    def tree(self):
        """{relative path: bytes of a file, ("link", target), or None for a directory}."""
        found = {}

        def walk(directory, prefix):
            for name, obj in sorted(self.entries[directory].items()):
                path = prefix + name
                if obj in self.entries:
                    found[path] = None
                    walk(obj, path + "/")
                else:
                    found[path] = ("link", self.targets[obj]) if obj in self.targets \
                        else self.contents.get(obj, b"")
        walk(0, "")
        return found


def load(under):
    """(World, {inode: object}) of a real folder."""
    world, inodes, count = World(under), {os.lstat(under).st_ino: 0}, 1
    for folder, dirs, files in os.walk(under):
        at = inodes[os.lstat(folder).st_ino]
        for name in dirs + files:
            path = os.path.join(folder, name)
            inode = os.lstat(path).st_ino
            obj = inodes.setdefault(inode, count)
            count += obj == count
            world.entries[at][name] = obj
            if os.path.islink(path):
                world.targets[obj] = os.readlink(path)
            elif os.path.isdir(path):
                world.entries.setdefault(obj, {})
            else:
                with open(path, "rb") as f:
                    world.contents[obj] = f.read()
    return world, inodes


def store(tree, folder):
    """Write a tree to a folder, which does not exist yet."""
    os.mkdir(folder)
    for path, what in tree.items():
        path = os.path.join(folder, path)
        if what is None:
            os.mkdir(path)
        elif isinstance(what, tuple):
            os.symlink(what[1], path)
        else:
            with open(path, "wb") as f:
                f.write(what)


def resized(data, size):
    return data[:size] + bytes(max(0, size - len(data)))


def pages_of(change):
    """The pages of the file that a write touches, as (from, to) in its data."""
    cuts = [0]
    while cuts[-1] < len(change.data):
        cuts.append(min(len(change.data), (change.a + cuts[-1]) // PAGE * PAGE + PAGE - change.a))
    return list(zip(cuts, cuts[1:]))


ALL = "all"    # a write with all pages
NOTHING = "no"
SIZE = "size"  # the file grew, but no page of the write is there


def write(data, change, how):
    """Contents after a write of which a part is on disk: ALL, SIZE, or (set of pages, grows)."""
    pages, grows = (None, True) if how == ALL else (set(), True) if how == SIZE else how
    size = max(len(data), change.a + len(change.data)) if grows else len(data)
    if pages is None:
        return resized(data, change.a)[:change.a] + change.data + data[change.a + len(change.data):]
    out = bytearray(resized(data, max(size, change.a + len(change.data))))
    for i, (lo, hi) in enumerate(pages_of(change)):
        if i in pages:
            out[change.a + lo:change.a + hi] = change.data[lo:hi]
    return bytes(out[:size])


def apply(world, c, how=ALL):
    """Make one change in a world where changes before it may be missing. Impossible ones do nothing."""
    if c.op in (TRUNCATE, WRITE, ALLOCATE):
        data = world.contents.get(c.obj, b"")
        if c.op == TRUNCATE:
            data = resized(data, c.a)
        elif c.op == ALLOCATE:
            data = resized(data, max(len(data), c.a + c.b))
        else:
            data = write(data, c, how)
        world.contents[c.obj] = data
        return
    if c.op in (SYNC, MARK):
        return
    place = world.locate(c.path)
    if place is None:
        return
    folder, name = place
    if c.op in (CREATE, MKDIR, SYMLINK):
        world.entries[folder][name] = c.obj
        if c.op == MKDIR:
            world.entries.setdefault(c.obj, {})
        elif c.op == SYMLINK:
            world.targets[c.obj] = c.other
    elif c.op in (UNLINK, RMDIR):
        world.entries[folder].pop(name, None)
    else:
        to = world.locate(c.other)
        obj = world.entries[folder].get(name)
        if to is None or obj is None:
            return
        there = world.entries[to[0]].get(to[1])
        if c.op == RENAME and not c.a & EXCHANGE:
            del world.entries[folder][name]
        elif c.op == RENAME and there is not None:
            world.entries[folder][name] = there
        world.entries[to[0]][to[1]] = obj


class Recording:
    """The world before, and the changes with the objects that they are about."""

    def __init__(self, before, inodes, changes):
        self.before, self.changes = before, changes
        world, inodes, count = before.copy(), dict(inodes), 1 + max(inodes.values())
        self.worlds = [before]  # after each number of changes, all of them on disk
        for c in changes:
            if c.op in (CREATE, MKDIR, SYMLINK):
                c.obj, count = count, count + 1
                if c.op != SYMLINK:
                    inodes[c.inode] = c.obj
            elif c.op in (TRUNCATE, WRITE, ALLOCATE, SYNC):
                c.obj = inodes[c.inode]
            place = world.locate(c.other or c.path) if c.op in (RENAME, LINK) else \
                world.locate(c.path) if c.path else None
            c.target = place[0] if place else c.obj
            apply(world, c)
            self.worlds.append(world.copy())

    def uncertain(self, cut):
        """The numbers of the changes before the cut that no sync has saved."""
        synced, found = set(), []
        for i in range(cut - 1, -1, -1):
            c = self.changes[i]
            if c.op == SYNC:
                synced.add(c.obj)
            elif c.op != MARK and c.target not in synced:
                found.append(i)
        return found[::-1]

    def mark(self, cut):
        """The last mark before the cut; 0: none."""
        return max([c.a for c in self.changes[:cut] if c.op == MARK], default=0)

    def state(self, cut, choices):
        """The tree on disk: choices {number of an uncertain change: how much of it}; others are whole."""
        start = min(choices, default=cut)
        world = self.worlds[start].copy()
        for i in range(start, cut):
            how = choices.get(i, ALL)
            if how != NOTHING:
                apply(world, self.changes[i], how)
        return world.tree()

    def random_choice(self, i, rng):
        c = self.changes[i]
        if c.op != WRITE or rng.random() < 0.4:
            return rng.choice([ALL, NOTHING])
        if rng.random() < 0.3:
            return SIZE
        pages = range(len(pages_of(c)))
        return {p for p in pages if rng.random() < 0.5}, rng.random() < 0.7

    def choices(self, cut, rng, samples):
        """Choices for a cut: with all, with nothing, only names, only contents, files that grew without
        contents; all subsets if there are few changes, else some alone and some missing; random ones."""
        may = self.uncertain(cut)
        names = [i for i in may if self.changes[i].op >= MKDIR or self.changes[i].op == CREATE]
        data = [i for i in may if i not in names]
        yield {}
        yield {i: NOTHING for i in may}
        yield {i: NOTHING for i in data}
        yield {i: NOTHING for i in names}
        yield {i: SIZE if self.changes[i].op == WRITE else ALL for i in data}
        if len(may) <= (6 if samples > 1 else 3):
            for bits in range(1 << len(may)):
                yield {i: NOTHING for n, i in enumerate(may) if not bits >> n & 1}
        else:
            for i in rng.sample(may, min(len(may), samples)):
                yield {i: NOTHING}
                yield {j: NOTHING for j in may if j != i}
        for _ in range(samples if may else 0):
            yield {i: self.random_choice(i, rng) for i in may}

    def states(self, rng, samples):
        """[(cut, tree), ...]: the different states of all cuts."""
        seen, found = set(), []
        for cut in range(len(self.changes) + 1):
            for choices in self.choices(cut, rng, samples):
                tree = self.state(cut, choices)
                key = (self.mark(cut), cut == len(self.changes), hash_tree(tree))
                if key not in seen:
                    seen.add(key)
                    found.append((cut, tree))
        return found


def hash_tree(tree):
    return hash(tuple(tree.items()))
