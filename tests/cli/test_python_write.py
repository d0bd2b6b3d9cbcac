"""The Python package tp_checkpoint writes checkpoints: other readers read them, tp-reshard converts them, and a
process that dies leaves the old step or the new one.

needs: tp-ckpt tp-reshard make_ckpt
"""
import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import harness
from harness import ok
from test_cut_rules import RULES, SHAPES

sys.path.insert(0, str(harness.REPO / "python"))
import tp_checkpoint  # noqa: E402
from tp_checkpoint import cuts, step_writer, transaction  # noqa: E402
from tp_checkpoint.checkpoint import BITS  # noqa: E402
from tp_checkpoint.manifest import TensorInfo, rule  # noqa: E402
from tp_checkpoint.shard_file import ShardFile, stored_boxes  # noqa: E402

READER = harness.REPO / "tests/reader/read_ckpt.py"
SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
FAMILIES = json.loads((harness.REPO / "tests/fixture/families.json").read_text())


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """As a new process: without an epoch."""
    monkeypatch.setattr(transaction, "_claimed", {})
    monkeypatch.delenv("TP_EPOCH", raising=False)


def llama(rng, name="llama"):
    """The arrays of a model's parameters and of one moment, and its config."""
    shapes = FAMILIES[name]["tensors"]
    arrays = {(g, n): rng.standard_normal(s).astype(np.float32) for g in ("param", "exp_avg") for n, s in shapes.items()}
    return arrays, FAMILIES[name]["config"]


def read_by_others(step, tmp_path):
    """{group/name: bits} by tests/reader, which also compares /index with the HDF5 structures."""
    subprocess.run([sys.executable, READER, step, tmp_path / "out.npz"], check=True, stdout=subprocess.DEVNULL)
    with np.load(tmp_path / "out.npz") as arrays:
        return dict(arrays)


def same(found, arrays):
    return set(found) == {"%s/%s" % k for k in arrays} and all(
        np.array_equal(found["%s/%s" % k].reshape(-1).view(np.uint8), np.asarray(v).reshape(-1).view(np.uint8))
        for k, v in arrays.items())


def random_arrays(rng):
    """Arrays of every dtype, with 0 to 6 axes, also empty ones."""
    out = {}
    for i in range(10):
        shape = tuple(int(n) for n in rng.integers(0, 9, rng.integers(0, 7))) or (() if i % 2 else (40000,))
        kind = np.dtype(BITS[list(BITS)[i % len(BITS)]])
        values = np.frombuffer(rng.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)
        out["group%d" % (i % 3), "tensor.%d" % i] = values
    return out


# ---- what is written -------------------------------------------------------------------------

def test_other_readers_read_it_and_a_reshard_there_and_back_has_the_same_digests(tmp_path):
    print("TP_SEED=%d" % SEED)
    rng = np.random.default_rng(SEED)
    arrays, config = llama(rng)
    arrays.update(random_arrays(rng))
    arrays["param", "wide"] = rng.standard_normal((2, 600_000)).astype(np.float64)  # a row is more than a chunk
    step = tp_checkpoint.save(tmp_path / "ckpt", 7, arrays, config=config, train={"next_sample": 56})
    assert "intact" in ok("tp-ckpt", "verify", tmp_path / "ckpt").out
    assert same(read_by_others(step, tmp_path), arrays)
    with tp_checkpoint.open(step) as ckpt:
        assert ckpt.train["next_sample"] == 56 and ckpt.model_config == config
        assert all(np.array_equal(ckpt.tensor(n, g).bits(), v, equal_nan=v.dtype.kind == "f")
                   for (g, n), v in arrays.items())
    ok("tp-reshard", tmp_path / "ckpt", "--to", "tp4pp2", "-o", tmp_path / "there")
    ok("tp-reshard", tmp_path / "there", "--to", "tp1pp1", "-o", tmp_path / "back")
    assert len({harness.digest(tmp_path / r) for r in ("ckpt", "there", "back")}) == 1


def random_boxes(rng, lo, lens, depth=4):
    """A random tiling of a box."""
    axes = [d for d, n in enumerate(lens) if n > 1]
    if depth == 0 or not axes:
        return [(lo, lens)]
    d = rng.choice(axes)
    n = rng.randrange(1, lens[d])
    first = random_boxes(rng, lo, lens[:d] + (n,) + lens[d + 1:], depth - 1)
    return first + random_boxes(rng, lo[:d] + (lo[d] + n,) + lo[d + 1:], lens[:d] + (lens[d] - n,) + lens[d + 1:],
                                rng.randrange(depth))


def test_any_boxes_of_any_number_of_ranks(tmp_path):
    print("TP_SEED=%d" % SEED)
    rng, numbers = random.Random(SEED), np.random.default_rng(SEED)
    shapes = {"a": (7, 5, 3), "b": (33,), "c": (), "columns": (64, 4096), "big": (9, 200_001)}
    cut = {"columns": rule(1), "big": rule(0, pad=True)}
    arrays = {("param", n): numbers.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    tensors = [TensorInfo(i, "param", n, "f32", s, rule=cut.get(n, rule())) for i, (n, s) in enumerate(shapes.items())]
    ranks = 4
    of_rank = [[] for _ in range(ranks)]
    for t in tensors:
        for lo, lens in random_boxes(rng, (0,) * len(t.shape), t.shape):
            of_rank[rng.randrange(ranks)].append((t, lo, lens))
    contents = step_writer.make_manifest(tensors, ranks, 3, step_writer.Model(), None)
    step = transaction.Transaction(tmp_path / "ckpt", 3)
    for rank, boxes in enumerate(of_rank):
        stored = stored_boxes(boxes)
        if stored:
            shard = ShardFile(step.path, rank, contents.spec, stored)
            for i, b in enumerate(stored):
                shard.write(i, arrays["param", b.tensor.name][tuple(slice(a, a + n) for a, n in zip(b.lo, b.lens))])
            contents.shards.append(shard.finish())
    step.commit(contents)
    ok("tp-ckpt", "verify", tmp_path / "ckpt")
    assert same(read_by_others(tmp_path / "ckpt/step-00000003", tmp_path), arrays)


def test_the_same_state_has_the_same_bytes(tmp_path):
    arrays, config = llama(np.random.default_rng(SEED))
    for name in "one", "two":
        tp_checkpoint.save(tmp_path / name, 1, arrays, config=config)
    a, b = ((tmp_path / n / "step-00000001/rank-00000.h5").read_bytes() for n in ("one", "two"))
    assert a == b


# ---- cuts ------------------------------------------------------------------------------------

@pytest.mark.parametrize("left_out", ["", "head_dim"])
@pytest.mark.parametrize("name", FAMILIES)
def test_cuts_and_layers_are_those_of_the_programs(name, left_out, tmp_path):
    config = {k: v for k, v in FAMILIES[name]["config"].items() if k != left_out}
    (tmp_path / "config.json").write_text(json.dumps(config))
    subprocess.run([harness.built("make_ckpt"), tmp_path / "config.json", "tp1", tmp_path / "ckpt", "1", "1"], check=True)
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        known = cuts.cuts_of(config, None, [])
        assert isinstance(known, cuts.FamilyCuts)
        for t in ckpt.tensors("param"):
            assert (known.rule(t.name), known.layer(t.name)) == (t.info.rule, t.info.layer), t
            cuts.check_fits(t.name, t.shape, t.info.rule)


@pytest.mark.parametrize("architectures", [{"architectures": None}, {}], ids=["null", "absent"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_with_a_model_type_alone_has_the_same_cuts(name, architectures):
    """That of a model of transformers that was made from a config, which the programs know by its model_type, too."""
    config = FAMILIES[name]["config"]
    rest = {**{k: v for k, v in config.items() if k != "architectures"}, **architectures}
    known, found = cuts.cuts_of(config, None, []), cuts.cuts_of(rest, None, [])
    for tensor in FAMILIES[name]["tensors"]:
        assert (found.rule(tensor), found.layer(tensor)) == (known.rule(tensor), known.layer(tensor)), tensor


def test_rules_are_read_as_tp_ckpt_reads_them(tmp_path):
    arrays = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
    tp_checkpoint.save(tmp_path / "ckpt", 1, arrays, config={"architectures": ["MyModel"]}, rules=RULES)
    ok("tp-reshard", tmp_path / "ckpt", "--to", "tp2pp3")
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        t = ckpt["blocks.1.attention.wqkv.weight"].info
        assert t.layer == 1 and t.rule == rule(0, 4, 3, first=16)
        assert [ckpt[n].info.layer for n in ("embed.weight", "head.weight")] == [-1, -2]
    for text, message in [("a 0", "no line has"), (RULES + "\nscale 0", "several lines have"), ("a x", "line 1"),
                          ("a - first=3", "line 1: first=3 is not possible for a tensor that is not cut"), ("a -1", "line 1: -1 is not"),
                          ("a 0 unit=+4", "line 1: .4 is not a whole number"), ("a 0 unit=0", "line 1: 0 is not a whole number from 1"),
                          ("a 0 many", "line 1: many"), ("a - expert", "line 1: expert is not possible"),
                          ("a.* 0 expert", "line 1: a.* has too few"), ("a optional", "line 1: optional is not"),
                          (RULES.replace("first=16", "first=15"), "wqkv.*does not fit|blocks")]:
        with pytest.raises(tp_checkpoint.UnsupportedError, match=message):
            tp_checkpoint.save(tmp_path / "bad", 1, arrays, rules=text)
    assert not (tmp_path / "bad").exists()


def test_a_state_of_another_shape_than_its_parameter_is_not_cut(tmp_path):
    """Adafactor has row sums; and a tensor that does not fit its family's rule does not hinder a save."""
    name, config = "model.layers.0.self_attn.q_proj.weight", dict(harness.TINY, head_dim=7)
    with pytest.warns(UserWarning, match="q_proj.*not a multiple of 7.*does not cut"):
        tp_checkpoint.save(tmp_path / "ckpt", 1, {name: np.zeros((64, 64)), ("row", name): np.zeros(3)}, config=config)
    with tp_checkpoint.open(tmp_path / "ckpt") as ckpt:
        assert [t.info.rule for t in ckpt.tensors()] == [rule(), rule()]
    ok("tp-ckpt", "verify", tmp_path / "ckpt")


# ---- old or new ------------------------------------------------------------------------------

POINTS = [(os, "open"), (os, "mkdir"), (os, "pwrite"), (os, "fsync"), (os, "rename"), (transaction, "_rename"),
          (os, "symlink"), (os, "fchmod")]


def at_call(number, then):
    """Do `then` before call `number` of the functions of POINTS; a list with the number of calls."""
    count = [0]

    def before(real):
        def call(*args, **kw):
            count[0] += 1
            if count[0] == number:
                then()
            return real(*args, **kw)
        return call

    for module, name in POINTS:
        setattr(module, name, before(getattr(module, name)))
    return count


def in_child(work):
    """The exit code of a child process that does `work`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def saved(tmp_path):
    """A root with step 1, of zeros."""
    tp_checkpoint.save(tmp_path / "ckpt", 1, {"x": np.zeros(5)})
    return tmp_path / "ckpt"


def value(root):
    with tp_checkpoint.open(root) as ckpt:
        return float(ckpt["x"][0])


def replace(root, number, then):
    """Replace the step, and do `then` before call `number`. The exit code of the process: 8: there was no such call."""
    count = at_call(number, then)
    tp_checkpoint.save(root, 1, {"x": np.full(5, float(number))}, force=True)
    return 8 if count[0] < number else 0


def test_a_process_that_dies_leaves_the_old_step_or_the_new_one(saved, figure):
    number, code, found = 0, 0, []
    while code != 8:
        number += 1
        before = value(saved)
        code = in_child(lambda: replace(saved, number, lambda: os._exit(7)))
        found.append(value(saved))
        assert found[-1] in ([before, number] if code == 7 else [number]), number
        assert len([p for p in saved.iterdir() if ".tmp-" in p.name]) <= 1, "what dead writers left was not removed"
    assert number > 15 and 1 < len(set(found)) < number, found
    figure("points at which a save by Python was killed", number - 1)
    tp_checkpoint.save(saved, 2, {"x": np.zeros(5)})
    assert [p.name for p in saved.iterdir() if ".tmp" in p.name] == []
    ok("tp-ckpt", "verify", saved, "--step", 1)


def test_an_io_error_leaves_the_old_step_and_nothing_else(saved, figure):
    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    def attempt():
        try:
            return replace(saved, number, fail)
        except tp_checkpoint.CheckpointError as e:
            return 7 if "No space left on device" in str(e) else 1

    number, code, failed = 0, 0, 0
    while code != 8:
        number += 1
        before = value(saved)
        code = in_child(attempt)
        if code == 7:
            failed += 1
            assert value(saved) == before, number
            assert [p.name for p in saved.iterdir() if ".tmp-" in p.name] == [], number
        else:  # only what is a convenience, or removes the replaced step, may fail without an error
            assert code in (0, 8) and value(saved) == number, (number, code)
    assert failed > 12
    figure("points at which the disk was full for a save by Python", failed)


def without_flags(old, new, flags):
    """renameat2 of a file system that has no flags, such as NFS."""
    return errno.EINVAL


def test_a_step_is_replaced_where_names_cannot_be_exchanged(saved, monkeypatch):
    monkeypatch.setattr(transaction, "_rename", without_flags)
    tp_checkpoint.save(saved, 1, {"x": np.ones(5)}, force=True)
    tp_checkpoint.save(saved, 2, {"x": np.full(5, 2.0)})
    assert value(saved) == 2 and sorted(tp_checkpoint.steps(saved)) == [1, 2]
    with tp_checkpoint.open(saved, 1) as ckpt:
        assert ckpt["x"][0] == 1
    assert sorted(p.name for p in saved.iterdir()) == ["epoch", "latest", "lock", "step-00000001", "step-00000002"]
    ok("tp-ckpt", "verify", saved, "--step", 1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_rename_that_fails_there_leaves_the_old_step(number, saved, monkeypatch):
    real, count = os.rename, [0]

    def rename(old, new):
        if "step-" in f"{old}{new}" and not str(old).endswith(".tmp"):
            count[0] += 1
            if count[0] == number + 1:  # the first is that of a new step
                raise OSError(errno.EIO, "Input/output error")
        real(old, new)

    monkeypatch.setattr(transaction, "_rename", without_flags)
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(tp_checkpoint.CheckpointError, match="Input/output error"):
        tp_checkpoint.save(saved, 1, {"x": np.ones(5)}, force=True)
    assert value(saved) == 0 and sorted(p.name for p in saved.iterdir()) == ["epoch", "latest", "lock", "step-00000001"]


@pytest.mark.parametrize("flags", [True, False])
@pytest.mark.parametrize("step", [1, 2])
def test_a_name_that_cannot_be_synced_is_taken_back(step, flags, saved, monkeypatch):
    def fail(folder):
        raise OSError(errno.EIO, "Input/output error")

    transaction.claim(str(saved))
    monkeypatch.setattr(transaction, "_sync", fail)
    if not flags:
        monkeypatch.setattr(transaction, "_rename", without_flags)
    with pytest.raises(tp_checkpoint.CheckpointError, match="Input/output error"):
        tp_checkpoint.save(saved, step, {"x": np.ones(5)}, force=True)
    assert value(saved) == 0 and sorted(p.name for p in saved.iterdir()) == ["epoch", "latest", "lock", "step-00000001"]


def test_what_was_replaced_is_kept_if_its_name_cannot_be_given_back(saved, monkeypatch):
    real, synced = transaction._rename, []

    def rename(old, new, flags):
        if synced and flags == transaction._EXCHANGE:
            return errno.EIO
        return real(old, new, flags)

    def fail(folder):
        synced.append(folder)
        raise OSError(errno.EIO, "Input/output error")

    transaction.claim(str(saved))
    monkeypatch.setattr(transaction, "_sync", fail)
    monkeypatch.setattr(transaction, "_rename", rename)
    with pytest.raises(tp_checkpoint.CheckpointError, match="Input/output error"):
        tp_checkpoint.save(saved, 1, {"x": np.ones(5)}, force=True)
    assert value(saved) == 1 and len(list(saved.glob("step-*.tmp-*/manifest.json"))) == 1


@pytest.mark.parametrize("flags", [True, False])
def test_an_interrupt_leaves_the_old_step_or_the_new_one_and_nothing_else(flags, saved, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    def attempt():
        try:
            return replace(saved, number, interrupt)
        except KeyboardInterrupt:
            names = {p.name for p in saved.iterdir()} - {"latest.tmp"}  # a link, which the next save replaces
            return 7 if names == {"epoch", "latest", "lock", "step-00000001"} else 1

    if not flags:
        monkeypatch.setattr(transaction, "_rename", without_flags)
    number, code = 0, 0
    while code != 8:
        number += 1
        before = value(saved)
        code = in_child(attempt)
        assert code in (7, 8) and value(saved) in (before, number), (number, code)
    assert number > 15


def test_a_step_that_nobody_commits_is_removed(saved):
    step = transaction.Transaction(saved, 2)
    assert list(saved.glob("step-00000002.tmp-*"))
    del step
    assert sorted(p.name for p in saved.iterdir()) == ["epoch", "latest", "lock", "step-00000001"]


@pytest.mark.parametrize("make", [lambda p: p.write_text("notes"), lambda p: (p.mkdir(), (p / "model.safetensors").touch()),
                                  lambda p: p.symlink_to("elsewhere")])
def test_force_replaces_only_checkpoints(make, saved):
    with pytest.raises(tp_checkpoint.ExistsError, match="exists already; force=True replaces it"):
        tp_checkpoint.save(saved, 1, {"x": np.ones(5)})
    make(saved / "step-00000007")
    before = harness.tree(saved)
    with pytest.raises(tp_checkpoint.CheckpointError, match="is not a checkpoint of this project, so force=True does not replace it"):
        tp_checkpoint.save(saved, 7, {"x": np.ones(5)}, force=True)
    assert harness.tree(saved) == before
    (saved / "step-00000001/manifest.json").write_text("damaged")
    tp_checkpoint.save(saved, 1, {"x": np.ones(5)}, force=True)
    ok("tp-ckpt", "verify", saved, "--step", 1)


def test_a_job_of_an_older_epoch_cannot_commit(saved, monkeypatch):
    assert (saved / "epoch").read_text() == "1\n"
    older = transaction.Transaction(saved, 2)
    transaction._claimed.clear()  # as another process
    tp_checkpoint.save(saved, 3, {"x": np.ones(5)})
    with pytest.raises(tp_checkpoint.StaleError, match="newer job .epoch 2; this one has 1"):
        older.commit(step_writer.make_manifest([], 1, 2, step_writer.Model(), None))
    older.abort()
    assert sorted(tp_checkpoint.steps(saved)) == [1, 3] and os.readlink(saved / "latest") == "step-00000003"
    monkeypatch.setenv("TP_EPOCH", "9")
    tp_checkpoint.save(saved, 4, {"x": np.ones(5)})
    with tp_checkpoint.open(saved) as ckpt:
        assert ckpt.manifest.epoch == 9


# ---- threads and children of a process -------------------------------------------------------

def test_threads_save_into_the_same_root(tmp_path, monkeypatch):
    """They are one job: none refuses the other as an older one."""
    real, begin, failed = transaction.read_epoch, threading.Barrier(4), []

    def read_epoch(root):
        found = real(root)
        time.sleep(0.2)  # the other threads are before the claim
        return found

    def save(step):
        begin.wait()
        try:
            tp_checkpoint.save(tmp_path / "ckpt", step, {"x": np.full(5, float(step))})
        except tp_checkpoint.CheckpointError as e:
            failed.append(e)

    monkeypatch.setattr(transaction, "read_epoch", read_epoch)
    threads = [threading.Thread(target=save, args=(step,)) for step in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and (tmp_path / "ckpt/epoch").read_text() == "1\n"
    for step in range(4):
        ok("tp-ckpt", "verify", tmp_path / "ckpt", "--step", step)
    assert list(tp_checkpoint.steps(tmp_path / "ckpt")) == [0, 1, 2, 3] and value(tmp_path / "ckpt") == 3


def locked(path):
    """Whether anyone has the lock of a file or folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@pytest.fixture
def worker():
    """Forks a child that lives until the end of the test, such as a worker of a DataLoader."""
    end, keep = os.pipe()
    pids = []

    def fork():
        pid = os.fork()
        if pid == 0:
            os.close(keep)
            os.read(end, 1)
            os._exit(0)
        pids.append(pid)

    yield fork
    os.close(keep)
    os.close(end)
    for pid in pids:
        os.waitpid(pid, 0)


def test_a_child_that_is_forked_in_a_save_does_not_keep_the_locks(saved, worker):
    with transaction._root_lock(saved):
        worker()
        assert locked(saved / "lock")
    assert not locked(saved / "lock")
    step = transaction.Transaction(saved, 2)
    worker()
    assert locked(step.path), "the lock of a writer that lives must stay"
    step.abort()
    tp_checkpoint.save(saved, 2, {"x": np.zeros(5)})


def test_what_a_dead_writer_left_is_removed_while_its_child_lives(saved):
    """The writer forks a child in the save, and dies."""
    end, keep = os.pipe()
    told, tell = os.pipe()

    def write():
        step = transaction.Transaction(saved, 2)
        with transaction._root_lock(saved):
            if os.fork() == 0:
                os.close(keep)
                os.write(tell, b"%d" % os.path.isdir(step.path))
                os.read(end, 1)
                os._exit(0)
            os.read(told, 1)
            os._exit(3)

    assert in_child(write) == 3
    assert not locked(saved / "lock")
    tp_checkpoint.save(saved, 3, {"x": np.zeros(5)})
    assert not list(saved.glob("*.tmp-*"))
    for fd in end, keep, told, tell:
        os.close(fd)


def test_a_child_does_not_remove_what_its_parent_writes(saved):
    step = transaction.Transaction(saved, 2)
    assert in_child(step.abort) == 0
    assert os.path.isdir(step.path) and locked(step.path)
    step.abort()


def test_a_child_that_is_forked_while_a_thread_claims_can_save(saved, monkeypatch):
    claims, forked = threading.Event(), threading.Event()
    transaction._claimed.clear()
    real = transaction._claim_next

    def claim_next(root):
        claims.set()
        forked.wait()
        return real(root)

    monkeypatch.setattr(transaction, "_claim_next", claim_next)
    thread = threading.Thread(target=tp_checkpoint.save, args=(saved, 2, {"x": np.zeros(5)}))
    thread.start()
    claims.wait()
    pid = os.fork()
    if pid == 0:
        forked.set()
        signal.alarm(60)
        tp_checkpoint.save(saved, 3, {"x": np.zeros(5)})
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    forked.set()
    thread.join()
    assert code == 0 and list(tp_checkpoint.steps(saved)) == [1, 2, 3]


# ---- errors ----------------------------------------------------------------------------------

@pytest.mark.parametrize("arrays, options, message", [
    ({"x": np.zeros(2, np.complex64)}, {}, "param/x: has the dtype complex64"),
    ({"a/b": np.zeros(2)}, {}, "no tensor can have these names"),
    ({("index", "x"): np.zeros(2)}, {}, "no group is named index"),
    ({"x": np.zeros(2), ("param", "x"): np.ones(2)}, {}, "param/x: is in the arrays twice"),
    ({"x": np.zeros(2)}, {"train": {"samples": 3}}, "has no member 'samples'"),
    ({"x": np.zeros(2)}, {"step": 1}, "exists already; force=True replaces it"),
    ({"x": np.zeros(2)}, {"step": -1}, "step is -1, expected a whole number"),
    ({"x": np.zeros(2)}, {"step": 1.7}, "step is 1.7, expected a whole number"),
    ({"x": np.zeros(2)}, {"step": 10 ** 18}, "expected a whole number from 0 to 10.18 - 1"),
    ({"x": np.zeros([1] * 7)}, {}, "has 7 axes; the format has at most 6"),
    ({"x": np.zeros(2)}, {"train": {"options": {"best": float("inf")}}}, "'options' cannot be stored as JSON"),
    ({"x": np.zeros(2)}, {"train": {"options": {"n": 1 << 64}}}, "has more than 64 bits"),
    ({"x": np.zeros(2)}, {"train": {"options": {"a": "\0"}}}, "has a zero byte"),
    ({"x": np.zeros(2)}, {"train": {"seed": None}}, "'seed' is None, expected a whole number"),
    ({"x": np.zeros(2)}, {"train": {"tokens": 1.5}}, "'tokens' is 1.5, expected a whole number"),
    ({"x": np.zeros(2)}, {"config": "path/config.json"}, "expected the content of a config.json"),
    ({"x": np.zeros(2)}, {"config": []}, "expected the content of a config.json"),
    ({"x": np.zeros(2)}, {"config": {"limits": [0, float("inf")]}}, "Infinity is no value of JSON: write null"),
    ({"x": np.zeros(2)}, {"config": {"scale": float("nan")}}, "NaN is no value of JSON"),
    ({"x": np.zeros(2)}, {"config": '{"scale": -1e999}'}, "-1e999 is no value of JSON"),
    ({"x": np.zeros(2)}, {"config": {"n": 1 << 64}}, "has more than 64 bits"),
    ({"x": np.zeros(2)}, {"config": {"a": "\0"}}, "has a zero byte"),
    ({"x": np.zeros(2)}, {"config": {"a": "\udc80"}}, "surrogates not allowed"),
    ({"x": np.zeros(2)}, {"config": '{"a": 1, "a": 2}'}, "has a member twice"),
    *(({"x": np.zeros(2)}, {"config": {"model_type": "llama", key: value}}, "config: '%s' is .*, expected a whole number" % key)
      for key, value in (("num_attention_heads", "8"), ("num_attention_heads", 0), ("head_dim", -1), ("hidden_size", [64]))),
    ({"a\ud800b": np.zeros(2)}, {}, "no tensor can have these names: UTF-8 of 1 to 1024 bytes"),
    ({("g\udcff", "x"): np.zeros(2)}, {}, "no tensor can have these names"),
    ({5: np.zeros(2)}, {}, "no tensor can have these names"),
    ([np.zeros(2)], {}, "arrays is .*, expected a dict of names and arrays"),
    ({("a", "b", "c"): np.zeros(2)}, {}, "'a', 'b', 'c'. is no key of an array"),
    ({"x": [[1], [1, 2]]}, {}, "param/x: is no array of numpy, and cannot be made one"),
    ({"x": np.zeros(2)}, {"rules": 5}, "rules is 5, expected a text"),
    ({"x": np.zeros(2)}, {"root": "s3://bucket/prefix"}, "is a URL, and this package reads and writes folders only"),
])
def test_what_cannot_be_saved_is_named_and_changes_nothing(saved, arrays, options, message):
    before = harness.tree(saved)
    with pytest.raises(tp_checkpoint.CheckpointError, match=message):
        tp_checkpoint.save(**{"root": saved, "step": 5, "arrays": arrays, **options})
    assert harness.tree(saved) == before and not os.path.exists("s3:")


def nested(n):
    return [nested(n - 1)] if n > 1 else []


# What train and a config have besides: of values 8 and 2, of levels 2 and 1, of bytes 13 with the escapes.
LARGEST = {"values": ({"train": {"options": {"a": [1] * n}}} for n in (50000 - 8, 50000 - 7)),
           "levels": ({"train": {"options": {"a": nested(n)}}} for n in (128 - 2, 128 - 1)),
           "levels of a config": ({"config": {"a": nested(n)}} for n in (128 - 1, 128)),
           "values of a config": ({"config": {"a": [1] * n}} for n in (100000 - 2, 100000 - 1)),
           "bytes of a config": ({"config": json.dumps({"a": "z" * n})} for n in ((4 << 20) - 15, (4 << 20) - 13)),
           "layers": ({"arrays": {"layers.%d.x" % n: np.zeros(2)}} for n in (9999, 10000))}


@pytest.mark.parametrize("what", LARGEST)
def test_the_largest_manifest_is_read_by_the_programs_and_a_larger_one_is_not_written(what, saved):
    least, most = LARGEST[what]
    tp_checkpoint.save(**{"root": saved, "step": 5, "arrays": {"x": np.zeros(2)}, **least})
    ok("tp-ckpt", "verify", saved, "--step", 5)
    if what == "layers":  # it is not taken for a layer
        tp_checkpoint.save(root=saved, step=6, **most)
        ok("tp-ckpt", "verify", saved, "--step", 6)
        return
    before = harness.tree(saved)
    with pytest.raises(tp_checkpoint.UnsupportedError, match="the most is"):
        tp_checkpoint.save(**{"root": saved, "step": 6, "arrays": {"x": np.zeros(2)}, **most})
    assert harness.tree(saved) == before


def test_numbers_of_numpy_are_numbers(saved):
    train = {"tokens": np.int64(7), "seed": np.int32(3), "options": {"lr": np.float64(0.5), "epoch": np.int64(2)}}
    tp_checkpoint.save(saved, np.int64(5), {"x": np.ones(5)}, train=train, config={"hidden_size": np.int64(4)})
    ok("tp-ckpt", "verify", saved, "--step", 5)
    with tp_checkpoint.open(saved, step=np.int64(5)) as ckpt:
        assert ckpt.train["tokens"] == 7 and ckpt.train["seed"] == "3" and ckpt.model_config == {"hidden_size": 4}
        assert ckpt.train["options"] == {"lr": 0.5, "epoch": 2}


def test_tensors_of_a_checkpoint_are_copied_with_their_dtypes(saved, tmp_path):
    arrays = random_arrays(np.random.default_rng(SEED))
    step = tp_checkpoint.save(saved, 5, arrays)
    with tp_checkpoint.open(step) as ckpt:
        again = tp_checkpoint.save(saved, 6, {(t.group, t.name): t for t in ckpt.tensors()})
    assert same(read_by_others(again, tmp_path), arrays)


def test_a_step_is_no_root(saved):
    with pytest.raises(tp_checkpoint.CheckpointError, match="epoch: is not a folder; give the root"):
        tp_checkpoint.save(saved / "epoch", 2, {"x": np.zeros(2)})
    with pytest.raises(tp_checkpoint.CheckpointError, match="is a step itself"):
        tp_checkpoint.save(saved / "step-00000001", 2, {"x": np.zeros(2)})
    for name in "step-00000007", "step-00000007.tmp-x":
        with pytest.raises(tp_checkpoint.CheckpointError, match="has the name of a step"):
            tp_checkpoint.save(saved / name, 2, {"x": np.zeros(2)})
        assert not (saved / name).exists()
