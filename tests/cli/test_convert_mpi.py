"""tp-reshard between formats under mpirun: processes share the tensors, and the files are those of one process.

needs: tp-reshard tp-ckpt make_ckpt fault/shim.so
covers: reshard/shared_step reshard/export_shared reshard/copy_totals reshard/job_identity reshard/formats/pieces/piece_share
"""
import json
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

import harness
import verl_files
from object_store import ObjectStore, ok as remote_ok
from test_comm_mpi import remaining
from test_convert_resume import storages, tensors_of
from test_faults import Shim
from test_reshard import make, mpirun, random_config

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
CONFIG = {"num_hidden_layers": 2, "vocab_size": 261}
WRITTEN = ["safetensors", "trainer", "dcp", "accelerate", "torchtitan", "megatron", "torch_dist", "deepspeed", "vllm"]
CUT = {"vllm": "tp4", "dcp": "tp2dp2zero3", "accelerate": "dp3zero3", "torchtitan": "dp4zero3", "megatron": "tp2pp2", "torch_dist": "tp4pp2", "tp": "tp4pp2"}
SAME = ["bytes_read", "bytes_written", "tensors", "boxes", "windows", "digests_equal", "casts", "checksums", "left_out", "step"]


def result(root):
    """{path: content}; of a manifest all but what differs between any two runs."""
    found = {os.path.relpath(p, root): content for p, content in harness.tree(root).items() if os.path.basename(p) != "lock"}
    for name in found:
        if os.path.basename(name) == "manifest.json":
            manifest = json.loads((root / name).read_text())
            found[name] = {k: v for k, v in manifest.items() if k not in ("save_id", "epoch", "checksum")}
    return found


def convert(source, to, format, out, *options):
    return ["tp-reshard", source, "--to", to, "--format", format, "-o", out, *options]


def nothing_left(folder):
    left = [p for p in folder.rglob("*") if ".tmp" in p.name or p.name == "progress"]
    return not left, left


def write_all(root, own, specs, formats=WRITTEN):
    made = {"tp": own}
    for format in formats:
        made[format] = root / format
        harness.ok("tp-ckpt", "export", own, "-o", made[format], "--format", format, *specs.get(format, []))
    return made


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """{format: a checkpoint in it}."""
    root = tmp_path_factory.mktemp("sources")
    made = write_all(root, make(root / "own", "tp2", CONFIG, dtype="f32"),
                     {"safetensors": ["--max-shard-size", "100K"], "trainer": ["--max-shard-size", "100K"],
                      "megatron": ["--layout", "tp4pp2", "--distributed-optimizer"]})
    made["verl"] = verl_files.Save(tensors_of(made["tp"]), 2, kind="fsdp1").write(root / "verl", made["dcp"] / "config.json")
    return made


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The same with tensors of many tiles."""
    root = tmp_path_factory.mktemp("large")
    own = make(root / "own", "tp4", {"hidden_size": 256, "intermediate_size": 768, "vocab_size": 9000, "head_dim": 32}, dtype="f32")
    return write_all(root, own, {}, ["dcp", "megatron", "safetensors"])


def target_of(rng, source):
    """A format and a layout that this source can become."""
    choices = {"safetensors": ["safetensors", "tp", "dcp", "megatron"], "vllm": ["vllm", "safetensors", "tp"], "verl": ["verl", "verl", "tp", "dcp"], "tp": WRITTEN}
    format = rng.choice(choices.get(source, [*WRITTEN, "tp", "tp"]))
    if format == "verl":
        return format, "dp%d" % rng.randint(2, 5)
    return format, rng.choice(["tp1", CUT.get(format, "tp1")])


@pytest.mark.parametrize("n", range(120 if harness.LONG else 5 if harness.SANITIZE else 16))
def test_any_conversion_gives_the_bytes_of_one_process(n, sources, tmp_path):
    """Ranks on one host, or as on several: messages connect them."""
    rng = random.Random(SEED + n)
    source = [*sources][n % len(sources)]
    format, to = target_of(rng, source)
    options = rng.choice([[], ["--no-optim"], ["--dtype", "bf16"], ["--mem", "256M"]])
    if format == "tp" and rng.random() < 0.5:
        options = [*options, "--zstd"]
    if format in ("verl", "deepspeed", "trainer"):  # they need all of the optimizer
        options = []
    if source == "tp" and format in ("megatron", "torch_dist") and "--dtype" in options:  # it has no masters
        options = [*options, "--no-optim"]
    processes, hosts = rng.randint(2, 5), {"TP_HOST_RANKS": rng.choice(["1", "64"])}
    print("TP_SEED=%d: %s -> %s %s %s, %d processes %s" % (SEED + n, source, format, to, options, processes, hosts))
    before = harness.tree(sources[source])
    argv = convert(sources[source], to, format, tmp_path / "one", *options, "--json", "--jobs", 2)
    one = json.loads(harness.ok(*argv).out)
    argv[argv.index(tmp_path / "one")] = tmp_path / "many"
    many = json.loads(harness.ok(*mpirun(processes, *argv), env=hosts).out)
    assert many["processes"] == processes and one["processes"] == 1
    for key in SAME:
        if "--zstd" not in options or key not in ("bytes_read", "windows"):  # processes may then read the same part
            assert many[key] == one[key], key
    assert result(tmp_path / "many") == result(tmp_path / "one")
    assert nothing_left(tmp_path) == (True, []) and harness.tree(sources[source]) == before


@pytest.mark.parametrize("case", [("megatron", "dcp", "tp4"), ("dcp", "megatron", "tp2pp2"), ("dcp", "tp", "tp8"), ("tp", "safetensors", "tp1"),
                                  ("safetensors", "tp", "tp2"), ("tp", "deepspeed", "tp1")], ids="-".join)
def test_tensors_that_several_processes_write(case, large, tmp_path):
    source, format, to = case
    harness.ok(*convert(large[source], to, format, tmp_path / "one"))
    for n in (2, 3):
        harness.ok(*mpirun(n, *convert(large[source], to, format, tmp_path / str(n), "--jobs", n)))
        assert result(tmp_path / str(n)) == result(tmp_path / "one")
        harness.ok("tp-ckpt", "verify", tmp_path / str(n))
        shutil.rmtree(tmp_path / str(n))


@pytest.mark.parametrize("zstd", [[], ["--zstd"]], ids=["raw", "zstd"])
@pytest.mark.parametrize("n", range(20 if harness.LONG else 3))
def test_random_models_become_the_same_checkpoint(n, zstd, tmp_path):
    """Each run of a source is counted once, also where several processes read it."""
    rng = random.Random(SEED + n)
    config, processes = random_config(rng), rng.randint(2, 5)
    print("TP_SEED=%d: %s, %d processes" % (SEED + n, config, processes))
    own = make(tmp_path / "own", "tp1", config, seed=n)
    heads = config["num_attention_heads"]
    harness.ok("tp-ckpt", "export", own, "-o", tmp_path / "dcp", "--format", "dcp", "--layout", "tp%d" % rng.choice([t for t in (1, 2, 4) if heads % t == 0]))
    to = "tp%dpp%d" % (rng.choice([t for t in (1, 2, 4, 8) if heads % t == 0]), rng.randint(1, config["num_hidden_layers"]))
    harness.ok(*convert(tmp_path / "dcp", to, "tp", tmp_path / "one", *zstd))
    harness.ok(*mpirun(processes, *convert(tmp_path / "dcp", to, "tp", tmp_path / "many", *zstd)))
    assert result(tmp_path / "many") == result(tmp_path / "one")


def test_more_processes_than_tiles(tmp_path):
    own = make(tmp_path / "own", "tp1", {"num_hidden_layers": 1, "vocab_size": 8}, dtype="f32")
    for format in ("safetensors", "megatron"):
        argv = convert(own, "tp1", format, tmp_path / "one", "--no-optim", "--json")
        tiles = json.loads(harness.ok(*argv).out)["windows"]
        argv[argv.index(tmp_path / "one")] = tmp_path / "many"
        assert json.loads(harness.ok(*mpirun(tiles + 2, *argv)).out)["windows"] == tiles
        assert result(tmp_path / "many") == result(tmp_path / "one")
        harness.ok(*mpirun(tiles + 2, *convert(tmp_path / "one", "tp2", "tp", tmp_path / "back", "--no-optim")))
        assert harness.digest(tmp_path / "back") == harness.digest(tmp_path / "one")
        for name in ("one", "many", "back"):
            shutil.rmtree(tmp_path / name)


def test_a_result_is_replaced_only_by_force_and_one_process_says_so(sources, tmp_path):
    argv = mpirun(3, *convert(sources["dcp"], "tp2", "megatron", tmp_path / "out"))
    harness.ok(*argv)
    before = harness.tree(tmp_path)
    r = harness.run(*argv)
    assert r.rc == 2 and r.err.count("exists already") == 1, repr(r)
    assert harness.tree(tmp_path) == before
    harness.ok(*argv, "--force")
    assert {k: v for k, v in harness.tree(tmp_path).items()} == before


def test_processes_read_from_a_store_and_write_a_checkpoint_to_it(sources, tmp_path):
    with ObjectStore() as store:
        store.add_tree("bucket/runs/dcp", sources["dcp"])
        argv = ["tp-reshard", "s3://bucket/runs/dcp", "--from-format", "dcp"]
        for more in ([], ["--zstd"]):
            remote_ok(store, *mpirun(3, *argv, "--to", "tp4", "--format", "tp", "-o", "s3://bucket/runs/tp%d" % len(more), *more))
            assert remote_ok(store, "tp-ckpt", "digest", "s3://bucket/runs/tp%d" % len(more)).out == harness.ok("tp-ckpt", "digest", sources["dcp"]).out
        remote_ok(store, *mpirun(3, *argv, "--to", "tp2", "--format", "megatron", "-o", tmp_path / "many"))
    harness.ok(*convert(sources["dcp"], "tp2", "megatron", tmp_path / "one"))
    assert result(tmp_path / "many") == result(tmp_path / "one")


# ---- what is refused ----


@pytest.mark.parametrize("options,text", [
    (["--format", "gguf"], "gguf: GGUF of llama.cpp is written by one process; start it without mpirun"),
    (["--format", "dcp", "-o", "s3://127.0.0.1/bucket/x"], "by one process; start it without mpirun, or write to a folder"),
    (["--format", "dcp", "--link"], "--link"), (["--format", "dcp", "--zstd"], "--zstd"), (["--format", "x"], "unknown format"),
    (["--format", "tp", "--mem", "8M"], "at least")])
def test_what_processes_cannot_do_is_said_once(options, text, sources, tmp_path):
    argv = ["tp-reshard", sources["dcp"], "--to", "tp1", *options]
    r = harness.run(*mpirun(3, *argv, *([] if "-o" in options else ["-o", tmp_path / "out"])))
    assert r.rc == 2 and r.err.count(text) == 1 and len([x for x in r.err.splitlines() if x.startswith("tp-reshard")]) == 1, repr(r)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["megatron", "tp"])
def test_processes_that_find_different_sources_are_refused(format, sources, tmp_path):
    """As on nodes with file systems of their own, or when another program saves there."""
    links = [tmp_path / "a", tmp_path / "b"]
    links[0].symlink_to(sources["dcp"])
    shutil.copytree(sources["dcp"], links[1])
    for path in links[1].rglob("*.distcp"):
        os.utime(path, (1, 1))
    out = tmp_path / "work" / "out"
    out.parent.mkdir()
    commands = [harness.command(convert(source, "tp2", format, out)) for source in links]
    r = harness.run(*mpirun(2, *harness.of_each_rank(*commands)))
    assert r.rc == 2 and "rank 1 finds other files there than rank 0" in r.err, repr(r)
    assert not list(out.parent.iterdir())
    shutil.rmtree(links[1])
    r = harness.run(*mpirun(2, *harness.of_each_rank(*commands)))
    assert r.rc == 2 and "rank 1" in r.err and not list(out.parent.iterdir()), repr(r)


@pytest.mark.skipif(subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0, reason="needs root, to mount")
@pytest.mark.parametrize("format", ["megatron", "tp"])
def test_a_folder_that_nodes_do_not_share_is_refused(format, sources, tmp_path):
    """A process has another file system where OUT is to be."""
    shared = tmp_path / "shared"
    shared.mkdir()
    script = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then exec unshare -m sh -c \'mount -t tmpfs none "$0" && exec "$@"\' "%s" "$@"; fi; exec "$@"' % shared
    r = harness.run(*mpirun(2, "sh", "-c", script, "sh", *harness.command(convert(sources["dcp"], "tp2", format, shared / "out"))))
    assert r.rc == 2 and "but rank 1 does not have it; write to a file system that all nodes share" in r.err, repr(r)
    assert not list(shared.iterdir())


def test_processes_that_find_different_steps_are_refused(sources, tmp_path):
    """As when a job commits a step while they start."""
    other, out = make(tmp_path / "other", "tp2", CONFIG, seed=2, dtype="f32"), tmp_path / "out"
    commands = [harness.command(["tp-reshard", source, "--to", "tp4", "-o", out]) for source in (sources["tp"], other)]
    r = harness.run(*mpirun(2, *harness.of_each_rank(*commands)))
    assert r.rc == 2 and "rank 1 finds other files there than rank 0" in r.err and not out.exists(), repr(r)


# ---- failures ----


@pytest.mark.parametrize("format", ["dcp", "megatron", "tp"])
def test_damage_of_the_source_is_found_whichever_process_reads_it(format, sources, tmp_path):
    source, out, rng = shutil.copytree(sources["deepspeed"], tmp_path / "source"), tmp_path / "out", random.Random(SEED)
    print("TP_SEED=%d" % SEED)
    paths = sorted(p for p in source.rglob("exp_avg*.pt"))  # a file for each tensor
    for path in [paths[0], paths[-1], rng.choice(paths)]:
        good, bad = path.read_bytes(), bytearray(path.read_bytes())
        begin, size = next(storages(path))
        bad[begin + size // 2] ^= 1
        path.write_bytes(bad)
        r = harness.run(*mpirun(3, *convert(source, "tp1", format, out)))
        path.write_bytes(good)
        assert r.rc == 3 and str(path) in r.err and "CRC-32" in r.err, repr(r)
        assert nothing_left(tmp_path)[0] and not (out.exists() and (format != "tp" or harness.steps(out)))


class Job:
    """A conversion of three processes under the shim."""

    def __init__(self, folder, sources, case):
        start, self.format, to = case
        self.work, self.whole = folder / "work", folder / "whole"
        self.out = self.work / "out"
        self.work.mkdir()
        self.argv = convert(sources[start], to, self.format, self.out)
        harness.ok(*convert(sources[start], to, self.format, self.whole))
        self.shim = Shim(folder, self.work)

    def run(self, at=0, do=""):
        """(status, stderr). The ranks are under the shim, and mpirun is not."""
        line = "exec env " + self.shim.line(harness.command(self.argv[:1])[0], at, do)
        p = subprocess.run(list(map(str, mpirun(3, "sh", "-c", line, "sh", *self.argv[1:]))), stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300)
        return p.returncode, p.stderr

    def points(self):
        """The calls of all processes together, in the order of one run."""
        status, err = self.run()
        assert status == 0, err
        calls = self.shim.points()
        self.reset()
        return calls

    def reset(self):
        shutil.rmtree(self.work)
        self.work.mkdir()

    def is_complete(self):
        return self.out.exists() and (self.format != "tp" or bool(harness.steps(self.out)))

    def check_again(self):
        """The same command starts over, and leaves nothing else."""
        harness.ok(*mpirun(3, *self.argv))
        assert result(self.out) == result(self.whole) and nothing_left(self.work) == (True, [])


CASES = [("dcp", "megatron", "tp2pp2"), ("megatron", "tp", "tp4"), ("tp", "safetensors", "tp1"), ("accelerate", "accelerate", "dp2zero3")]


@pytest.fixture(params=CASES, ids="-".join)
def job(request, sources, tmp_path):
    return Job(tmp_path, sources, request.param)


def test_when_a_process_dies_all_end_and_the_result_is_absent_or_complete(job, figure):
    calls, rng, absent = job.points(), random.Random(SEED), 0
    print("TP_SEED=%d" % SEED)
    tried = rng.sample(range(1, len(calls) + 1), min(len(calls), 60 if harness.LONG else 2 if harness.SANITIZE else 4))
    for at in tried:
        status, err = job.run(at, "kill-self")
        complete = job.is_complete()
        assert status != 0 or complete, (at, err)
        if complete:
            assert result(job.out) == result(job.whole)
        absent += not complete
        if not complete:
            job.check_again()
        job.reset()
    figure("killed while processes convert: absent, complete", "%d, %d" % (absent, len(tried) - absent))


def test_an_error_of_any_process_ends_all_and_leaves_nothing(job, figure):
    calls, rng, failed = job.points(), random.Random(SEED), 0
    print("TP_SEED=%d" % SEED)
    writes = [i + 1 for i, call in enumerate(calls) if call in ("pwrite", "fsync")]
    tried = rng.sample(writes, min(len(writes), 60 if harness.LONG else 2 if harness.SANITIZE else 4))
    for at in tried:
        status, err = job.run(at, rng.choice(["eio", "enospc"]))
        if status == 0:  # the processes took another order, and the call was one whose failure is only noted
            assert result(job.out) == result(job.whole)
        else:
            assert status == 3 and len([x for x in err.splitlines() if x.startswith("tp-reshard: ")]) == 1, (at, status, err)
            assert not job.is_complete() and nothing_left(job.work) == (True, []), (at, err)
        failed += status != 0
        job.reset()
    assert failed, "no error was seen"
    figure("errors while processes convert: seen", "%d of %d" % (failed, len(tried)))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_one_process_ends_all(how, large, tmp_path):
    """Whichever process gets it, while it writes."""
    rng, out, tag = random.Random(SEED + how), tmp_path / "work" / "out", "%d-%d" % (how, os.getpid())
    print("TP_SEED=%d" % SEED)
    argv = convert(large["megatron"], "tp2", "dcp", out, "--jobs", 1)
    pid, script = tmp_path / ("pid.%d" % rng.randrange(3)), 'echo $$ > "%s/pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' % tmp_path
    for _ in range(10):
        shutil.rmtree(out.parent, ignore_errors=True)
        out.parent.mkdir()
        p = subprocess.Popen(list(map(str, mpirun(3, "sh", "-c", script, "sh", *harness.command(argv)))), env={**os.environ, "TP_TEST_TAG": tag},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while p.poll() is None and not list(out.parent.iterdir()):
            time.sleep(0.001)
        if p.poll() is None:
            os.kill(int(pid.read_text()), how)
        _, err = p.communicate(timeout=300)
        if p.returncode:
            break  # else it ended before the signal, on a busy machine
    assert p.returncode != 0 and not out.exists(), err
    deadline = time.time() + 60
    while remaining("TP_TEST_TAG=" + tag) and time.time() < deadline:
        time.sleep(0.05)
    assert not remaining("TP_TEST_TAG=" + tag)
    harness.ok(*mpirun(2, *argv))
    harness.ok("tp-ckpt", "verify", out)
    assert os.listdir(out.parent) == ["out"]
