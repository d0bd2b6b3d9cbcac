"""An interrupted tp-reshard resumes and writes the same bytes as an uninterrupted run.

The job is tiny and records its progress after each tile (--journal 0), so it can be interrupted at many
points. The shim of test_faults.py kills it at exact points, signals at random ones.

needs: tp-reshard tp-ckpt make_ckpt fault/shim.so
"""
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time

import pytest

import harness
from test_faults import Shim, died
from test_reshard import make, same_shards, step_dir

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
CONFIG = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 500}
EACH = ["--journal", 0, "--jobs", 1]
START = 0.01  # seconds that a program needs before it begins to copy


class Job:
    """A checkpoint, the result of an uninterrupted tp-reshard, and other runs of the same job."""

    def __init__(self, folder, start="tp4", to="tp2pp2", config=None, options=()):
        self.root = make(folder / "source", start, config or CONFIG)
        self.before = harness.tree(self.root)
        self.out, self.whole = folder / "out", folder / "whole"
        self.options = list(options)
        self.argv = self.argv_to(to)
        result = json.loads(harness.ok(*self.argv_to(to, self.whole), "--json").out)
        self.tiles, self.seconds = result["windows"], result["seconds"]
        assert self.tiles > 40

    def argv_to(self, to, out=None):
        return ["tp-reshard", self.root, "--to", to, "-o", out or self.out, *EACH, *self.options]

    def start(self, argv=None):
        return subprocess.Popen(harness.command(argv or self.argv), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def tmp(self):
        """The temporary directory, or None."""
        found = list(self.out.glob("step-*.tmp-*")) if self.out.exists() else []
        assert len(found) < 2, found
        return found[0] if found else None

    def interrupt(self, least=1, how=signal.SIGKILL):
        """Run until the journal has `least` bytes after its head, then send a signal. This leaves
        a temporary directory with a journal. On a busy machine a run may end before the signal, so this
        is tried several times."""
        for _ in range(10):
            status, err = self.run_until(300 + least, how)
            if self.tmp() and (self.tmp() / "progress").exists():
                return status, err
            shutil.rmtree(self.out)
        raise AssertionError("every run ended before the signal: " + err)

    def run_until(self, journal_bytes, how):
        """Send a signal when the journal has this many bytes. Returns the exit code and stderr."""
        p = self.start()
        while p.poll() is None:
            tmp = self.tmp()
            try:
                if tmp and (tmp / "progress").stat().st_size > journal_bytes:
                    break
            except FileNotFoundError:
                pass
            time.sleep(0.001)
        p.send_signal(how)
        _, err = p.communicate(timeout=60)
        return p.returncode, err

    def check(self, killed_late=False, verify=True):
        """The result must equal that of an uninterrupted run. killed_late: `latest` may be missing."""
        assert same_shards(step_dir(self.out), step_dir(self.whole)), "the shards differ"
        names = {p.name for p in self.out.iterdir()}
        if killed_late:
            names = names - {"latest.tmp"} | {"latest"}
        assert names == {"latest", "lock", step_dir(self.whole).name}
        assert not (step_dir(self.out) / "progress").exists()
        if verify:
            harness.ok("tp-ckpt", "verify", self.out)
        assert harness.tree(self.root) == self.before, "the source was written to"

    def finish(self):
        """Run to the end. Returns the number of tiles that earlier runs completed (None: it started over),
        and stderr."""
        r = harness.ok(*self.argv, "--json", "--journal", 2)  # --journal may differ from the first run
        self.check(verify=False)
        resumed = resumed_tiles(r.err)
        self.result = json.loads(r.out)
        assert self.result["windows_before"] == (resumed or 0)
        return resumed, r.err

    def keep(self):
        """Copy `out`, so that later runs can start from it again."""
        shutil.copytree(self.out, self.out.parent / "kept", symlinks=True)

    def again(self):
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(self.out.parent / "kept", self.out, symlinks=True)


def resumed_tiles(err):
    m = re.search(r"resuming an interrupted run: (\d+) of (\d+) tiles are complete", err)
    return int(m[1]) if m else None


def kill_until_done(job, rng):
    """Kill the job and run it again until it is done. Returns how often, and after how many kills more tiles were complete."""
    done, kills, grew = 0, 0, 0
    while True:
        p = job.start()
        try:
            p.wait(START + rng.uniform(0, 0.5) * job.seconds * (1 + kills / 5))
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGKILL)
        _, err = p.communicate()
        now = resumed_tiles(err)
        assert "starting over" not in err, err
        if now is not None:
            assert now >= done, "complete tiles went from %d back to %d" % (done, now)
            grew += now > done
            done = now
        else:
            assert not done or "resharding" not in err, err
        if p.returncode == 0 or "exists already" in err:  # the previous run was killed after its commit
            break
        assert p.returncode == -signal.SIGKILL, err
        kills += 1
    job.check(killed_late=p.returncode != 0)
    return kills, grew


def kill_at_changes(job, shim, rng, record_bytes):
    """Kill the job at changes of a file, each time in a new folder, and run it to its end. A journal longer than
    record_bytes has a record to resume from. Returns at how many changes, and how often it resumed."""
    status, err = shim.run(job.argv)
    assert status == 0, err
    points = range(1, len(shim.points()) + 1)
    tried = points if harness.LONG else sorted(rng.sample(points, 15))
    resumed = 0
    for at in tried:
        shutil.rmtree(job.out)
        status, err = shim.run(job.argv, at, rng.choice(["kill", "torn"]))
        assert died(status)
        if job.out.exists() and harness.steps(job.out):  # the step was already committed
            job.check(killed_late=True)
            continue
        had = job.tmp() and (job.tmp() / "progress").exists() and (job.tmp() / "progress").stat().st_size > record_bytes
        before, err = job.finish()
        assert before is not None or not had, "TP_SEED=%d, point %d: %s" % (SEED, at, err)
        assert "starting over" not in err, "TP_SEED=%d, point %d: %s" % (SEED, at, err)
        resumed += before is not None
    assert resumed > len(tried) / 2
    return len(tried), resumed


def stop_and_resume(job, how):
    status, err = job.interrupt(how=how)
    assert status == 75
    found = re.search(r"interrupted: (\d+) of (\d+) tiles are complete; run the same command again", err)
    assert found and 0 < int(found[1]) < job.tiles == int(found[2])
    assert job.finish()[0] == int(found[1])


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


@pytest.mark.parametrize("start,to,options", [
    ("tp4", "tp2pp2", []), ("tp1", "tp8dp2zero1", ["--mem", "64M"]),
    ("tp2dp2zero3", "tp1", ["--no-optim"]), ("tp2", "tp4", ["--dtype", "f32"])])
def test_it_resumes_after_every_kill_and_writes_the_same_bytes(start, to, options, tmp_path, figure):
    print("TP_SEED=%d" % SEED)
    job = Job(tmp_path, start, to, {**CONFIG, "num_hidden_layers": 5}, options)
    figure("kills, and kills after which more tiles were complete", "%d, %d" % kill_until_done(job, random.Random(SEED)))


def test_it_resumes_when_it_was_killed_at_any_change_of_a_file(job, tmp_path, figure):
    """After the kill the next run resumes from the last record of the journal."""
    print("TP_SEED=%d" % SEED)
    figure("killed at points, resumed", "%d, %d" % kill_at_changes(job, Shim(tmp_path, job.out), random.Random(SEED), 200))


def test_nothing_slow_comes_between_the_removal_of_the_journal_and_the_step(job, tmp_path):
    """A kill there loses the work of a run that was complete, so it must not wait for a disk."""
    shim = Shim(tmp_path, job.out)
    status, err = shim.run(job.argv)
    assert status == 0, err
    assert set(shim.calls_from("unlink", "/progress", "rename")) == {"unlink"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_75_and_the_same_command_resumes(job, how):
    stop_and_resume(job, how)


def test_a_truncated_journal_is_used_up_to_its_last_complete_record(job, figure):
    job.interrupt(1500)
    full = (job.tmp() / "progress").read_bytes()
    job.keep()
    rng, seen = random.Random(SEED), {}
    sizes = range(len(full) + 1) if harness.LONG else [0, 1, 150, len(full)] + rng.sample(
        range(len(full)), 10)
    for n in sorted(sizes):
        job.again()
        (job.tmp() / "progress").write_bytes(full[:n])
        seen[n], err = job.finish()
        if seen[n] is None:
            assert "starting over" in err, err
    order = [-1 if seen[n] is None else seen[n] for n in sorted(seen)]
    assert order == sorted(order) and order[0] == -1 and order[-1] > 5, seen
    figure("lengths of a truncated journal", len(seen))


def test_a_flipped_bit_in_the_journal_never_leads_to_a_wrong_checkpoint(job, figure):
    print("TP_SEED=%d" % SEED)
    job.interrupt(1500)
    full = (job.tmp() / "progress").read_bytes()
    job.keep()
    rng = random.Random(SEED)
    bits = ([8 * i + rng.randrange(8) for i in range(len(full))] if harness.LONG  # one of each byte
            else [3] + rng.sample(range(8 * len(full)), 12))
    most = None
    for bit in bits:
        data = bytearray(full)
        data[bit // 8] ^= 1 << bit % 8
        job.again()
        (job.tmp() / "progress").write_bytes(data)
        resumed, err = job.finish()
        assert resumed is not None or "starting over" in err
        most = max(most or 0, resumed or 0)
    assert most and most > 0
    figure("bits of the journal flipped", len(list(bits)))


def test_with_a_damaged_temporary_directory_it_starts_over(job):
    job.interrupt(1500)
    job.keep()
    shard = sorted(job.tmp().glob("rank-*"))[0].name
    for damage in ("cut", "longer", "gone", "folder"):
        job.again()
        path = job.tmp() / shard
        if damage == "cut":
            os.truncate(path, path.stat().st_size - 1)
        elif damage == "longer":
            os.truncate(path, path.stat().st_size + 4096)
        else:
            path.unlink()
            if damage == "folder":
                path.mkdir()
        resumed, err = job.finish()
        assert resumed is None and "starting over" in err and shard in err, (damage, err)


def test_the_structure_of_a_half_written_shard_is_created_again(job):
    """Bytes outside payloads that a crash left are replaced, so libhdf5 never reads them."""
    job.interrupt(1500)
    for shard in job.tmp().glob("rank-*"):
        with open(shard, "r+b") as f:
            f.write(os.urandom(512))
    assert job.finish()[0] > 0


def other_source(job):
    root = make(job.root.parent / "other", "tp4", CONFIG, seed=2)
    shutil.rmtree(job.root)
    shutil.copytree(root, job.root, symlinks=True)


@pytest.mark.parametrize("change", ["source", "to", "no-optim", "dtype"])
def test_a_different_job_starts_over(job, change):
    job.interrupt()
    argv = list(job.argv)
    if change == "source":
        other_source(job)
    elif change == "to":
        argv = job.argv_to("tp8")
    else:
        argv += ["--no-optim"] if change == "no-optim" else ["--dtype", "f32"]
    r = harness.ok(*argv)
    assert resumed_tiles(r.err) is None and "starting over" in r.err
    assert job.tmp() is None
    clean = job.out.parent / "clean"
    harness.ok(*[clean if a == job.out else a for a in argv])
    assert same_shards(step_dir(job.out), step_dir(clean))


def test_it_resumes_with_other_threads_and_more_memory(job):
    job.interrupt()
    job.argv = [a for a in job.argv if a not in EACH] + ["--jobs", 3, "--mem", "700M"]
    assert job.finish()[0] > 0


def test_it_resumes_with_the_least_memory(tmp_path):
    config = {**CONFIG, "hidden_size": 512, "vocab_size": 16000}
    job = Job(tmp_path, config=config, options=["--mem", "256M"])
    job.interrupt()
    least = harness.run(*job.argv, "--mem", "1M").err.split("at least ")[1].split()[0]
    job.argv += ["--mem", "%dk" % ((float(least) + 1) * 1024)]
    assert job.finish()[0] > 0


def test_the_second_run_finds_damage_that_the_first_has_read(job):
    """The journal has the checksums of the bytes that were read, so they are not read again."""
    shards = sorted(step_dir(job.root).glob("rank-*"))
    good = [s.read_bytes() for s in shards]
    for shard in shards:  # at several positions, so that the first tiles are damaged too
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        data[4096:4096 + 8] = bytes(b ^ 1 for b in data[4096:4096 + 8])
        shard.write_bytes(data)
    if harness.run("tp-ckpt", "verify", job.root).rc == 0:
        pytest.fail("nothing was damaged")
    job.interrupt(job.tiles)  # after many tiles
    for shard, data in zip(shards, good):
        shard.write_bytes(data)
    r = harness.run(*job.argv)
    assert r.rc in (0, 3)
    if r.rc == 3:
        assert "rank-" in r.err and job.tmp() is None
        return
    job.check()  # the first run had not read the damaged bytes


def stopped_run(job):
    """A run that has a journal and is stopped. On a busy machine it may end before, so this is tried several times."""
    for _ in range(10):
        p = job.start()
        p.send_signal(signal.SIGSTOP)
        while p.poll() is None and not (job.tmp() and (job.tmp() / "progress").exists()):
            p.send_signal(signal.SIGCONT)
            time.sleep(0.005)
            p.send_signal(signal.SIGSTOP)
        if p.poll() is None:
            return p
        p.communicate()
        shutil.rmtree(job.out)
    raise AssertionError("every run ended before it was stopped")


def test_a_second_run_is_refused_while_the_first_is_alive(job):
    first = stopped_run(job)
    second = harness.run(*job.argv)
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=60)
    assert second.rc == 2 and "another process is writing step 5" in second.err
    assert first.returncode == 0, err
    job.check()


def test_an_error_leaves_nothing_even_after_resuming(job, tmp_path):
    """After an I/O error, the files of the earlier run and the root that it created are removed too."""
    job.interrupt()
    job.keep()
    shim = Shim(tmp_path, job.out)
    shim.run(job.argv)
    calls = shim.points()
    writes = [i + 1 for i, call in enumerate(calls) if call == "fsync"]
    for at in (writes[0], writes[len(writes) // 2], writes[-1]):
        job.again()
        status, err = shim.run(job.argv, at, "eio")
        assert status == 3 and "tp-reshard" in err, "%s at %d of %s" % (status, at, calls)
        assert not job.out.exists(), os.listdir(job.out)
    assert job.finish()[0] is None


def test_several_processes_start_over(job):
    job.interrupt()
    argv = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2,
            *harness.command(job.argv)]
    r = harness.ok(*argv)
    assert resumed_tiles(r.err) is None
    job.check()


def flip_unfinished(job, rng):
    """Flip a bit in a shard of the temporary directory: of a byte that was written, three times of four."""
    shard = rng.choice(sorted(job.tmp().glob("rank-*")))
    data, whole = shard.read_bytes(), (step_dir(job.whole) / shard.name).read_bytes()
    written = rng.random() < 0.75
    for _ in range(1000):
        at = rng.randrange(len(data))
        if not written or (data[at] and data[at] == whole[at]):
            break
    with open(shard, "r+b") as f:
        f.seek(at)
        f.write(bytes([data[at] ^ 1 << rng.randrange(8)]))


def test_damage_between_kill_and_rerun_is_found_and_repaired(tmp_path, figure):
    """A bit flips in an unfinished shard while no process runs. The result has every bit right."""
    rng = random.Random(SEED)
    print("TP_SEED=%d" % SEED)
    jobs = [Job(tmp_path / "a"), Job(tmp_path / "b", "tp2", "tp4", options=["--dtype", "f32"])]
    least, tries, repaired = 200 if harness.LONG else 10, 0, 0
    while tries < least or repaired <= least / 10:  # a flipped bit may lie where nothing had been written
        assert tries < 10 * least, "the bits were hardly ever in what had been written"
        job = jobs[tries % 2]
        job.interrupt(rng.randrange(3000))
        flip_unfinished(job, rng)
        before, err = job.finish()  # compares every shard with that of an uninterrupted run
        assert before is not None and "starting over" not in err, "try %d: %s" % (tries, err)
        repaired += job.result["damaged_chunks"] > 0
        tries += 1
        shutil.rmtree(job.out)
    figure("bits flipped between kill and rerun: right in the end, repaired", "%d of %d, %d" % (
        tries, tries, repaired))


def flip_payloads(step, every):
    """Flip a bit of each `every`-th byte of all payloads, which the indexes of the shards locate."""
    for entry in json.loads((step / "manifest.json").read_text())["shards"]:
        data = bytearray((step / entry["file"]).read_bytes())
        for row in range(entry["index_rows"]):
            at, n = struct.unpack_from("<qq", data, entry["index_offset"] + 160 * row + 112)
            for i in range(at, at + n, every):
                data[i] ^= 1
        (step / entry["file"]).write_bytes(data)


def test_what_is_damaged_in_the_source_too_cannot_be_repaired(job):
    job.interrupt(2000)
    flip_payloads(step_dir(job.root), 64)
    for shard in job.tmp().glob("rank-*"):
        data = bytearray(shard.read_bytes())
        for at in range(0, len(data), 64):
            data[at] ^= 1
        shard.write_bytes(data)
    r = harness.run(*job.argv)
    assert r.rc == 3 and "chunks are not what" in r.err and "starting over" in r.err, r
    assert not job.out.exists()


def test_no_kill_leaves_the_journal_in_a_committed_step(job, tmp_path):
    shim = Shim(tmp_path, job.out)
    status, err = shim.run(job.argv)
    assert status == 0, err
    calls, committed = shim.points(), 0
    for at in range(len(calls) - 8, len(calls) + 1):  # the rename is among them
        shutil.rmtree(job.out)
        shim.run(job.argv, at, "kill")
        steps = harness.steps(job.out)
        committed += bool(steps)
        assert not any((s / "progress").exists() for s in steps), "point %d: %s" % (at, calls)
        if not steps:
            job.finish()
    assert committed > 0
