"""An interrupted tp-reshard --zstd, or tp-ckpt import --zstd, resumes and writes the same bytes as an uninterrupted run.

needs: tp-reshard tp-ckpt make_ckpt fault/shim.so
covers: ckpt/shard_pack_resume
"""
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

import harness
from test_faults import Shim
from test_reshard import make, random_config, random_spec, same_shards, step_dir
from test_reshard_resume import CONFIG, EACH, Job, kill_at_changes, kill_until_done, resumed_tiles, stop_and_resume

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
SMOOTH = 1 << 30  # a seed of make_ckpt with this bit gives numbers that compress (tests/unit/fixture.h)
# a tile has 1 MiB and a chunk up to 4 MiB, so most records have incomplete chunks
LARGE = {**CONFIG, "hidden_size": 512, "vocab_size": 4000, "num_hidden_layers": 2}


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path, options=["--zstd=3"])


@pytest.mark.parametrize("start,to,options", [
    ("tp4", "tp2pp2", ["--zstd=3"]), ("tp1", "tp8dp2zero1", ["--zstd", "--mem", "64M"]),
    ("tp2dp2zero3", "tp1", ["--zstd=19", "--no-optim"]), ("tp2", "tp4", ["--zstd", "--dtype", "bf16"])])
def test_it_resumes_after_every_kill_and_writes_the_same_bytes(start, to, options, tmp_path, figure):
    print("TP_SEED=%d" % SEED)
    job = Job(tmp_path, start, to, {**CONFIG, "num_hidden_layers": 5}, options)
    figure("zstd: kills, and kills after which more tiles were complete", "%d, %d" % kill_until_done(job, random.Random(SEED)))


@pytest.mark.parametrize("n", range(30 if harness.LONG else 4))
def test_random_layouts_resume_with_other_threads_and_memory(n, tmp_path):
    """Killed at two random records; the next run has other threads. From raw and from compressed shards."""
    rng = random.Random(SEED + n)
    config = {**random_config(rng), "hidden_size": 512 if n % 2 else 96, "vocab_size": 4000 if n % 2 else 600,
              "num_hidden_layers": rng.randint(3, 5)}
    a, b = random_spec(rng, config), random_spec(rng, config)
    print("TP_SEED=%d: %s -> %s of %s" % (SEED + n, a, b, config))
    job = Job(tmp_path, a, b, config, ["--zstd=%d" % rng.randint(1, 9)])
    for _ in range(2):
        job.interrupt(rng.randint(1, 4000))
    job.argv = [arg for arg in job.argv if arg not in EACH] + ["--jobs", rng.randint(1, 4), "--mem", "700M"]
    resumed, err = job.finish()
    assert resumed is not None and "starting over" not in err, err
    harness.ok("tp-ckpt", "verify", job.out)


def test_it_resumes_when_it_was_killed_at_any_change_of_a_file(job, tmp_path, figure):
    """After the kill the next run resumes from the last record of the journal, also while shards are finished."""
    print("TP_SEED=%d" % SEED)
    figure("zstd: killed at points, resumed", "%d, %d" % kill_at_changes(job, Shim(tmp_path, job.out), random.Random(SEED), 300))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_75_and_the_same_command_resumes(job, how):
    stop_and_resume(job, how)


def test_what_was_written_is_read_back(tmp_path):
    """A flipped bit in a shard or in the saved chunks, or a file that is cut or gone: it starts over, and says why."""
    job = Job(tmp_path, config=LARGE, options=["--zstd"])
    for least in range(200, 8000, 300):  # until the last record has incomplete chunks
        job.interrupt(least)
        job.keep()
        resumed = job.finish()[0]
        job.again()
        for path in job.tmp().glob("chunks-*"):
            path.unlink()
        if resumed and "starting over" in job.finish()[1]:
            break
        shutil.rmtree(job.out)
        shutil.rmtree(job.out.parent / "kept")
    else:
        pytest.fail("no chunk was incomplete")
    rng = random.Random(SEED)
    print("TP_SEED=%d" % SEED)
    for damage in ("bit", "saved bit", "cut", "gone", "saved cut", "saved gone"):
        job.again()
        shards = sorted(p for p in job.tmp().glob("rank-*") if p.stat().st_size > 4096)
        paths = sorted(job.tmp().glob("chunks-*")) if "saved" in damage else [rng.choice(shards)]
        for path in paths:
            data = bytearray(path.read_bytes())
            if "bit" in damage:
                data[4096 if len(data) > 8192 or "saved" not in damage else len(data) // 2] ^= 1 << rng.randrange(8)
                path.write_bytes(data)
            elif "cut" in damage:
                path.write_bytes(data[:4096 + 10] if "saved" not in damage else data[:-1])
            else:
                path.unlink()
        resumed, err = job.finish()
        assert resumed is None and "starting over" in err and any(p.name in err for p in paths), (damage, err)


def test_bytes_that_a_crash_left_outside_payloads_do_not_matter(job):
    job.interrupt(1500)
    for shard in job.tmp().glob("rank-*"):
        with open(shard, "r+b") as f:
            f.write(os.urandom(512))
            f.seek(0, os.SEEK_END)
            f.write(os.urandom(100000))
    assert job.finish()[0] > 0
    harness.ok("tp-ckpt", "verify", job.out)


@pytest.mark.parametrize("change", ["level", "raw"])
def test_another_level_or_none_starts_over(job, change):
    job.interrupt()
    argv = [a for a in job.argv if not str(a).startswith("--zstd")] + ([] if change == "raw" else ["--zstd=5"])
    r = harness.ok(*argv)
    assert resumed_tiles(r.err) is None and "starting over" in r.err and job.tmp() is None
    clean = job.out.parent / "clean"
    harness.ok(*[clean if a == job.out else a for a in argv])
    assert same_shards(step_dir(job.out), step_dir(clean))


def test_an_import_resumes_too(tmp_path):
    root = make(tmp_path / "source", "tp1", {**CONFIG, "num_hidden_layers": 8, "hidden_size": 256, "vocab_size": 8000}, seed=SMOOTH + 1)
    harness.ok("tp-ckpt", "export", root, "-o", tmp_path / "hf")
    argv = ["tp-ckpt", "import", tmp_path / "hf", "--layout", "tp4", "--zstd=9", "--jobs", 1]
    harness.ok(*argv, "-o", tmp_path / "whole")
    argv += ["-o", tmp_path / "out"]
    for _ in range(10):
        p = subprocess.Popen(harness.command(argv), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while p.poll() is None and not list((tmp_path / "out").glob("step-*.tmp-*/progress")):
            time.sleep(0.001)
        time.sleep(0.05)
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=60)
        if p.returncode == 75:
            break
        shutil.rmtree(tmp_path / "out")
    assert p.returncode == 75
    r = harness.ok(*argv)
    assert resumed_tiles(r.err) is not None, r.err
    assert same_shards(step_dir(tmp_path / "out"), step_dir(tmp_path / "whole"))
