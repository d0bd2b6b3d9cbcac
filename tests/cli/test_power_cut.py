"""A power cut at any time leaves the old or the new state: of a save, of a reshard, of tp-run's journal.

tests/fault/record.c records every change of a program with its data, and power_cut.py builds the disk
states that a power cut may leave, from all cuts: what was not synced is there, missing, torn or reordered.
Where all states are too many, some are drawn with a seed; the states in which everything before the cut is
on disk, and in which only what was synced is, are always tried. TP_LONG=1 draws more.

needs: tp-train tp-reshard tp-ckpt journal_append fault/record.so
covers: core/file orchestrator/state/journal
"""
import os
import random
import shutil

import pytest

import harness
import power_cut
from harness import train_args
from test_faults import preload

pytestmark = pytest.mark.skipif("address" in harness.SANITIZE,
                                reason="the recorder and the sanitizer replace the same functions")
SEED = int(os.environ.get("TP_SEED", 11))
RECORD = harness.built("fault/record.so")
SAMPLES = 30 if harness.LONG else 1    # random states for each cut
RESUMED = 100 if harness.LONG else 4   # states in which the program runs again
SMALL = dict(vocab_size=128, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
             num_attention_heads=2, num_key_value_heads=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return harness.write_config(tmp_path_factory.mktemp("small"), **SMALL)


@pytest.fixture
def work(tmp_path):
    """The disk: all that is below it is lost or kept by the power cut."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def record(argv, under, tmp_path):
    """Run a program, and return what it did as a Recording."""
    log, lock = tmp_path / "log", tmp_path / "lock"
    lock.write_bytes(bytes(8))
    before, inodes = power_cut.load(under)
    harness.ok(*argv, env={"LD_PRELOAD": preload(RECORD), "TP_RECORD_UNDER": str(under),
                           "TP_RECORD_LOCK": str(lock), "TP_RECORD_LOG": str(log)})
    recording = power_cut.Recording(before, inodes, power_cut.read_log(log))
    assert recording.worlds[-1].tree() == power_cut.load(under)[0].tree(), "a change was not recorded"
    return recording


class Steps:
    """What a reader finds in the root of a disk: {step: digest}; each step must verify."""

    def __init__(self, folder):
        self.folder, self.known = folder, {}

    def digest(self, tree, step):
        """The digest of a step; steps with the same bytes are read once."""
        files = {p: what for p, what in tree.items() if p == step or p.startswith(step + "/")}
        key = tuple(sorted((p[len(step):], what) for p, what in files.items()))
        if key not in self.known:
            folder = self.folder / ("step-%d" % len(self.known))
            name = os.path.basename(step)
            power_cut.store({name + p[len(step):]: what for p, what in files.items()}, folder)
            r = harness.run("tp-ckpt", "verify", folder / name)
            assert r.rc == 0, "damaged: %r" % r
            self.known[key] = harness.digest(folder / name)
            shutil.rmtree(folder)
        return self.known[key]

    def __call__(self, tree, root):
        steps = [p for p, what in tree.items() if what is None and os.path.dirname(p) == root and
                 os.path.basename(p).startswith("step-") and ".tmp" not in p]
        return {os.path.basename(p): self.digest(tree, p) for p in steps}


def try_states(recording, check, rng):
    """Check every state. Returns the states that were tried."""
    states = recording.states(rng, SAMPLES)
    for cut, tree in states:
        try:
            check(cut, tree, cut == len(recording.changes))
        except AssertionError as e:
            raise AssertionError("after %d of %d changes, seed %d, TP_LONG=%s: %s\n%s" % (
                cut, len(recording.changes), SEED, os.environ.get("TP_LONG", ""), e,
                "\n".join(sorted(tree)))) from e
    return states


def run_again(states, argv, work, rng, after):
    """In some of the states, run argv again on a disk with this state."""
    chosen = states if len(states) <= RESUMED else rng.sample(states, RESUMED)
    for _, tree in chosen:
        shutil.rmtree(work)
        power_cut.store(tree, work)
        after(harness.run(*argv), tree)
    return len(chosen)


def check_steps(recording, allowed, work, tmp_path, figure, what):
    """Each state must show one of the `allowed` {step: digest}; after the program's end, the last one."""
    steps = Steps(tmp_path)

    def check(cut, tree, ended):
        found = steps(tree, "ckpt")
        assert found in allowed, "found %s, allowed are %s" % (found, allowed)
        assert not ended or found == allowed[-1], "the program promised the new state, found %s" % found

    states = try_states(recording, check, random.Random(SEED))
    figure("disk states after a power cut, %s" % what, "%d of %d old or new" % (len(states), len(states)))
    return states


# ---- a save -----------------------------------------------------------------------------------------


def save_first(small, work):
    return train_args(small, work / "ckpt", steps=1, layout="tp1")


def save_next(small, work):
    harness.train(small, work / "ckpt", steps=1, layout="tp1")
    return train_args(small, work / "ckpt", steps=2, layout="tp2", resume=True)


def save_over(small, work):
    harness.train(small, work / "ckpt", steps=2, layout="tp1", save_every=1)
    return train_args(small, work / "ckpt", steps=2, layout="tp1", resume=True, step=1, lr=0.1)


def save_and_keep_one(small, work):
    harness.train(small, work / "ckpt", steps=1, layout="tp1")
    return train_args(small, work / "ckpt", steps=2, layout="tp1", resume=True, keep=1)


@pytest.mark.parametrize("prepare", [save_first, save_next, save_over, save_and_keep_one],
                         ids=lambda f: f.__name__)
def test_a_power_cut_during_a_save_leaves_old_or_new(prepare, small, work, tmp_path, figure):
    argv, rng = prepare(small, work), random.Random(SEED)
    steps = Steps(tmp_path)
    old = steps(power_cut.load(work)[0].tree(), "ckpt")
    recording = record(argv, work, tmp_path)
    new = steps(recording.worlds[-1].tree(), "ckpt")
    assert old != new
    allowed = [old, {**old, **new}, new]
    states = check_steps(recording, allowed, work, tmp_path, figure, prepare.__name__)

    def after(r, tree):
        if prepare is save_first and r.rc == 2:
            assert "already has checkpoints" in r.err, repr(r)
        else:
            assert r.rc == 0, repr(r)
        left = [p for p in os.listdir(work / "ckpt") if ".tmp" in p]
        assert not left and steps(power_cut.load(work)[0].tree(), "ckpt") == new, (left, r)

    if prepare is not save_and_keep_one:
        count = run_again(states, argv, work, rng, after)
        figure("runs after a power cut, %s" % prepare.__name__, "%d of %d went on" % (count, count))


# ---- a reshard --------------------------------------------------------------------------------------


def test_a_power_cut_during_a_reshard_that_links_leaves_old_or_new(small, work, tmp_path, figure):
    """And the source, whose files it links, stays as it is."""
    steps = Steps(tmp_path)
    harness.train(small, work / "source", steps=1, layout="tp2")
    before = power_cut.load(work)[0].tree()
    source = {p: what for p, what in before.items() if p.startswith("source")}
    recording = record(["tp-reshard", work / "source", "--to", "tp2dp2", "-o", work / "ckpt", "--link"], work, tmp_path)
    new = steps(recording.worlds[-1].tree(), "ckpt")
    assert new == {"step-00000001": harness.digest(work / "source")}
    for _, tree in check_steps(recording, [{}, new], work, tmp_path, figure, "reshard --link"):
        assert {p: what for p, what in tree.items() if p.startswith("source")} == source


@pytest.mark.parametrize("what", ["reshard", "reshard_over"])
def test_a_power_cut_during_a_reshard_leaves_old_or_new(what, small, work, tmp_path, figure):
    source, rng, steps = tmp_path / "source", random.Random(SEED), Steps(tmp_path)
    harness.train(small, source, steps=1, layout="tp2")
    argv = ["tp-reshard", source, "--to", "tp1", "-o", work / "ckpt", "--journal", 0, "--jobs", 1]
    if what == "reshard_over":
        other = tmp_path / "other"
        harness.train(small, other, steps=1, layout="tp1", seed=99)
        harness.ok("tp-reshard", other, "--to", "tp2", "-o", work / "ckpt")
        argv.append("--force")
    old = steps(power_cut.load(work)[0].tree(), "ckpt")
    recording = record(argv, work, tmp_path)
    assert any(c.path.endswith("/progress") for c in recording.changes), "no journal was written"
    new = steps(recording.worlds[-1].tree(), "ckpt")
    assert new == {"step-00000001": harness.digest(source)} and old != new
    states = check_steps(recording, [old, new], work, tmp_path, figure, what)

    def after(r, tree):
        done = not argv[-1] == "--force" and steps(tree, "ckpt") == new
        assert r.rc == (2 if done else 0), repr(r)
        assert steps(power_cut.load(work)[0].tree(), "ckpt") == new
        assert done or not [p for p in os.listdir(work / "ckpt") if ".tmp" in p]

    count = run_again(states, argv, work, rng, after)
    figure("reshards after a power cut, %s" % what, "%d of %d went on" % (count, count))


# ---- tp-run's journal -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count, size", [(4, 3000), (3, 3 << 19)], ids=["appended", "begun anew"])
def test_a_power_cut_never_loses_a_record_of_the_journal(count, size, work, tmp_path, figure):
    """A record that was promised is there, and the one that is being written is there or not. After
    4 MiB a new journal begins, in which only the last record is."""
    program, rng = harness.built("journal_append"), random.Random(SEED)
    recording = record([program, work / "jobs" / "state", count, size], work, tmp_path)
    assert recording.mark(len(recording.changes)) == count
    disk = tmp_path / "cut"
    promised = 0

    def check(cut, tree, ended):
        nonlocal promised
        power_cut.store(tree, disk)
        words = harness.ok(program, disk / "jobs" / "state").out.split()
        shutil.rmtree(disk)
        mark = recording.mark(cut)
        promised += mark > 0
        assert words[0] == words[1], words
        found = 0 if words[0] == "none" else int(words[0])
        assert found in (mark, mark + 1), "record %d was promised, the journal has %d" % (mark, found)

    states = try_states(recording, check, rng)
    assert promised > 0
    figure("disk states after a power cut, journal of %d records of %d bytes" % (count, size),
           "%d of %d old or new" % (len(states), len(states)))


# ---- the method -------------------------------------------------------------------------------------


def test_a_program_that_does_not_sync_is_found(work, tmp_path):
    """The states contain what a missing fsync of a file, or of a directory, would leave."""
    script = ("import os; d = os.open('.', os.O_RDONLY); f = os.open('new', os.O_CREAT | os.O_WRONLY)\n"
              "os.write(f, b'x' * 9000)\n%s\nos.rename('new', 'file')\n%s")
    found = {}
    for name, sync_file, sync_dir in ("none", "", ""), ("file", "os.fsync(f)", ""), \
            ("both", "os.fsync(f)", "os.fsync(d)"):
        shutil.rmtree(work)
        work.mkdir()
        (work / "file").write_bytes(b"old")
        program = tmp_path / "program.py"
        program.write_text("import os; os.chdir(%r)\n" % str(work) + script % (sync_file, sync_dir))
        recording = record(["python3", program], work, tmp_path)
        (tmp_path / "log").unlink()
        states = recording.states(random.Random(SEED), 5)
        found[name] = {tree["file"] for _, tree in states}
        ended = {tree["file"] for cut, tree in states if cut == len(recording.changes)}
        assert (b"old" in ended) == (name != "both")
    whole, old = b"x" * 9000, b"old"
    assert found["file"] == found["both"] == {whole, old}
    assert {whole, old, b""} < found["none"] and bytes(9000) in found["none"]
    assert any(0 < data.count(b"x") < 9000 for data in found["none"]), "no torn write"
