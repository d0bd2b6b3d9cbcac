"""An interrupted conversion between formats resumes and writes the same bytes as an uninterrupted one.

The jobs are tiny and record their progress after each tile (--journal 0). The shim of test_faults.py kills them
at exact points.

needs: tp-reshard tp-ckpt make_ckpt fault/shim.so
covers: reshard/job_identity reshard/formats/pieces/piece_resume reshard/formats/pieces/piece_place
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

import harness
import neox_files
import torch_files
import verl_files
from test_faults import Shim, died
from test_import_quantized import quantize
from test_neox import Made
from test_reshard import make
from test_reshard_resume import resumed_tiles

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
CONFIG = {"num_hidden_layers": 2, "vocab_size": 261}
EACH = ["--journal", 0, "--jobs", 1]
CASES = [("megatron", "megatron", "tp2pp2"), ("megatron", "tp", "tp4"), ("safetensors", "safetensors", "tp1"),
         ("dcp", "deepspeed", "tp1"), ("dcp", "trainer", "tp1"), ("tp", "accelerate-ddp", "tp1"),
         ("tp", "torchtitan", "tp1dp3zero3"), ("tp", "torch_dist", "tp2pp2"), ("tp", "accelerate", "tp2dp2zero3"),
         ("accelerate", "accelerate", "tp2"), ("verl", "verl", "dp3"), ("vllm", "vllm", "tp4"), ("tp", "meta", "tp1"),
         ("neox", "tp", "tp2"), ("pt", "vllm", "tp2"), ("fp8", "meta", "tp2")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """{format: a checkpoint in it}."""
    root = tmp_path_factory.mktemp("sources")
    made = {"tp": make(root / "own", "tp2", CONFIG, dtype="f32")}
    even = make(root / "even", "tp2", {**CONFIG, "vocab_size": 264}, dtype="f32")  # Meta's files have equal parts
    for fmt in ("megatron", "safetensors", "dcp", "accelerate", "vllm", "fp8"):
        made[fmt] = root / fmt
        harness.ok("tp-ckpt", "export", even if fmt == "fp8" else made["tp"], "-o", made[fmt],
                   "--format", "safetensors" if fmt == "fp8" else fmt)  # at tp2, as the source
    quantize(made["fp8"], "block")
    state, config = tensors_of(made["tp"]), made["dcp"] / "config.json"
    made["verl"] = verl_files.Save(state, 2, kind="fsdp1").write(root / "verl", config)
    made["pt"] = root / "pt/model.pt"
    torch_files.save(made["pt"], {"model": {k: torch_files.Tensor(v) for k, v in state["param"].items()}})
    neox = Made("gpt-neox", root, SEED)
    neox_files.Save(neox.config, neox.state, 2, 2, 1).write(root / "neox", 3)
    made["neox"] = root / "neox/global_step3"
    shutil.copy(neox.path, made["neox"])
    return made


def tensors_of(ckpt):
    """{group: {name: array}}"""
    path = ckpt.with_suffix(".npz")
    subprocess.run([sys.executable, harness.REPO / "tests/reader/read_ckpt.py", harness.steps(ckpt)[-1], path], check=True, stdout=subprocess.DEVNULL)
    state = {g: {} for g in ("param", "exp_avg", "exp_avg_sq")}
    for key, array in np.load(path).items():
        group, name = key.split("/", 1)
        state[group][name] = array
    return state


class Job:
    """A conversion, its result without interruptions, and the calls that it makes."""

    def __init__(self, folder, sources, case, more=()):
        start, self.format, self.to = case
        self.more = more or (["--config", sources["safetensors"] / "config.json"] if start == "pt" else [])
        self.source, self.work = sources[start], folder / "work"
        self.out, self.whole = self.work / "out", folder / "whole"
        self.work.mkdir(parents=True)
        self.before = harness.tree(self.source)
        result = json.loads(harness.ok(*self.argv(self.whole), "--json").out)
        self.tiles = result["windows"]
        assert self.tiles > 10 and result["windows_before"] == 0
        self.shim = Shim(folder, self.work)

    def argv(self, out=None):
        return ["tp-reshard", self.source, "--to", self.to, "--format", self.format, "-o", out or self.out, *EACH, *self.more]

    def points(self):
        status, err = self.shim.run(self.argv())
        assert status == 0, err
        calls = self.shim.points()
        self.reset()
        return calls

    def reset(self):
        shutil.rmtree(self.work)
        self.work.mkdir()

    def kill(self, at, how="kill"):
        status, err = self.shim.run(self.argv(), at, how)
        assert died(status), err
        return err

    def kill_late(self, calls, part=0.7):
        """Kill it after this part of its records."""
        syncs = [i + 1 for i, call in enumerate(calls) if call == "fsync"]
        self.kill(syncs[int(part * len(syncs))])
        assert self.tmp() and (self.tmp() / "progress").exists()

    def tmp(self):
        found = [p for p in self.work.rglob("*.tmp-*") if p.is_dir()]
        assert len(found) < 2, found
        return found[0] if found else None

    def files(self):
        """The files that hold tensors, in the temporary folder."""
        return sorted(p for p in self.tmp().rglob("*") if p.suffix in (".pt", ".pth", ".distcp", ".safetensors", ".h5"))

    def result(self, root):
        return {os.path.relpath(p, root): content for p, content in harness.tree(root).items()
                if os.path.basename(p) not in ("manifest.json", "lock")}

    def check(self):
        assert self.result(self.out) == self.result(self.whole), "the files differ"
        assert not [p for p in self.work.rglob("*") if ".tmp" in p.name or p.name == "progress"]
        assert harness.tree(self.source) == self.before, "the source was written to"

    def finish(self):
        """Run to the end. Returns how many tiles earlier runs completed (None: it started over), and stderr."""
        r = harness.ok(*self.argv(), "--json")
        resumed = resumed_tiles(r.err)
        self.report = json.loads(r.out)
        assert self.report["windows_before"] == (resumed or 0)
        self.check()
        return resumed, r.err


@pytest.fixture(params=CASES, ids=["-".join(c) for c in CASES])
def job(request, sources, tmp_path):
    return Job(tmp_path, sources, request.param)


@pytest.fixture
def one(sources, tmp_path):
    """The conversion with the most kinds of files."""
    return Job(tmp_path, sources, CASES[0])


def had_journal(job):
    tmp = job.tmp()
    return tmp is not None and (tmp / "progress").exists()


def test_it_resumes_when_it_was_killed_at_any_change_of_a_file(job, figure):
    calls, rng, resumed = job.points(), random.Random(SEED), 0
    assert set(job.shim.calls_from("unlink", "/progress", "rename")) == {"unlink"}  # a kill there loses the work: nothing slow
    print("TP_SEED=%d" % SEED)
    tried = range(1, len(calls) + 1) if harness.LONG else sorted(rng.sample(range(1, len(calls) + 1), 6))
    for at in tried:
        job.reset()
        job.kill(at, rng.choice(["kill", "torn"]))
        if job.out.exists() and not job.tmp() and (job.format != "tp" or harness.steps(job.out)):
            assert job.result(job.out).keys() >= job.result(job.whole).keys() - {"latest"}
            continue  # it appeared before the kill
        had = had_journal(job)
        before, err = job.finish()
        assert (before is not None) == had, "point %d of %s: %s" % (at, calls, err)
        assert "starting over" not in err, "point %d: %s" % (at, err)
        resumed += before is not None
    figure("killed at points, resumed", "%d, %d" % (len(tried), resumed))


def test_a_resumed_run_that_is_killed_resumes_too(one):
    calls, rng = one.points(), random.Random(SEED)
    print("TP_SEED=%d" % SEED)
    one.kill_late(calls, 0.5)
    kept = one.work.parent / "kept"
    shutil.copytree(one.work, kept, symlinks=True)
    status, err = one.shim.run(one.argv())
    assert status == 0 and resumed_tiles(err), err
    again = one.shim.points()
    tried = range(1, len(again) + 1) if harness.LONG else sorted(rng.sample(range(1, len(again) - 12), 6))
    for at in tried:
        shutil.rmtree(one.work)
        shutil.copytree(kept, one.work, symlinks=True)
        one.kill(at)
        if had_journal(one):
            assert one.finish()[0] > 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_75_and_the_same_command_resumes(one, how):
    for _ in range(10):
        p = subprocess.Popen(harness.command(one.argv()), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while p.poll() is None and not had_journal(one):
            time.sleep(0.001)
        p.send_signal(how)
        _, err = p.communicate(timeout=60)
        if p.returncode:
            break
        one.reset()  # on a busy machine it may end before the signal
    assert p.returncode == 75 and "run the same command again to resume" in err, err
    assert one.finish()[0] is not None


def damage(path, what, rng):
    size = path.stat().st_size
    if what == "gone":
        path.unlink()
    elif what == "folder gone":  # a power cut may take names of folders, which are synced at the end
        shutil.rmtree(path.parent)
    elif what == "cut":
        os.truncate(path, rng.randrange(size))
    elif what == "longer":
        os.truncate(path, size + 4096)
    else:
        with open(path, "r+b") as f:
            at = {"head": 0, "tail": size - 1}.get(what, rng.randrange(size))
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))


def test_damage_between_kill_and_rerun_is_found_and_repaired(job, figure):
    calls, rng, repaired = job.points(), random.Random(SEED), 0
    print("TP_SEED=%d" % SEED)
    job.kill_late(calls)
    kept = job.work.parent / "kept"
    shutil.copytree(job.work, kept, symlinks=True)
    kinds = ["bit"] * 40 + ["head", "tail", "gone", "cut", "longer"] * 4 if harness.LONG else \
        ["bit", "bit", rng.choice(["head", "tail"]), rng.choice(["gone", "cut", "longer"])]
    kinds += ["folder gone"] if job.format == "deepspeed" else []
    for what in kinds:
        shutil.rmtree(job.work)
        shutil.copytree(kept, job.work, symlinks=True)
        damage(rng.choice([p for p in job.files() if what != "folder gone" or p.parent.parent.name == "zero"]), what, rng)
        before, err = job.finish()  # compares every file with that of an uninterrupted run
        assert before is not None or "starting over" in err, "%s: %s" % (what, err)
        repaired += job.report["damaged_chunks"] > 0
    figure("damaged between kill and rerun: right in the end, repaired", "%d, %d" % (len(kinds), repaired))


def test_damage_in_what_was_written_is_announced(one):
    one.kill_late(one.points())
    for path in one.files():
        data = bytearray(path.read_bytes())
        for at in range(len(data) // 4, len(data) // 2, 64):
            data[at] ^= 1
        path.write_bytes(data)
    before, err = one.finish()
    assert before and "are not what the interrupted run wrote; they are written again" in err
    assert one.report["damaged_chunks"] > 0


def test_files_that_do_not_belong_there_are_removed(one):
    one.kill_late(one.points())
    (one.tmp() / "config.json").write_text("half")
    (one.tmp() / "more").mkdir()
    (one.tmp() / "more" / "file").write_text("x")
    assert one.finish()[0]


@pytest.mark.parametrize("change", ["source", "to", "dtype", "core", "journal"])
def test_it_starts_over_and_says_so_when_it_cannot_resume(change, sources, tmp_path):
    case, more = ("megatron", "megatron", "tp2"), []
    if change == "core":
        case, more = ("megatron", "torch_dist", "tp2"), ["--distributed-optimizer", "--megatron-core", "0.15.0"]
    source = shutil.copytree(sources["megatron"], tmp_path / "source")
    job = Job(tmp_path / "job", {"megatron": source}, case, more)
    job.kill_late(job.points())
    argv = job.argv()
    if change == "source":
        path = next(source.rglob("model_optim_rng.pt"))
        os.utime(path, (1, 1))
    elif change == "to":
        argv[argv.index("tp2")] = "tp4"
    elif change == "dtype":
        argv += ["--dtype", "f32"]
    elif change == "core":
        argv[argv.index("0.15.0")] = "0.12.3"
    else:
        data = bytearray((job.tmp() / "progress").read_bytes())
        data[20] ^= 1
        (job.tmp() / "progress").write_bytes(data)
    r = harness.ok(*argv)
    assert resumed_tiles(r.err) is None
    clean = tmp_path / "clean"
    harness.ok(*[clean if a == job.out else a for a in argv])
    assert job.result(job.out) == job.result(clean) and job.tmp() is None


def test_an_error_leaves_nothing_even_after_resuming(one):
    calls = one.points()
    one.kill_late(calls, 0.4)
    writes = [i + 1 for i, call in enumerate(calls) if call == "pwrite"]
    for how in ("enospc", "eio"):
        status, err = one.shim.run(one.argv(), writes[len(writes) // 2], how)
        assert status == 3 and "tp-reshard" in err, (how, status, err)
        assert not list(one.work.iterdir()), how
    assert one.finish()[0] is None


def storages(path):
    """[(begin, size)] of the tensors in a file of torch.save."""
    with zipfile.ZipFile(path) as z, open(path, "rb") as f:
        for m in z.infolist():
            if "/data/" in m.filename:
                f.seek(m.header_offset + 26)
                names = f.read(4)
                yield m.header_offset + 30 + int.from_bytes(names[:2], "little") + int.from_bytes(
                    names[2:], "little"), m.file_size


def test_a_resumed_import_still_compares_the_checksums_of_the_source(sources, tmp_path):
    """The parts that the first run read are in the journal."""
    source = shutil.copytree(sources["megatron"], tmp_path / "source")
    job = Job(tmp_path / "job", {"megatron": source}, ("megatron", "tp", "tp1"))
    calls = job.points()
    path = sorted(source.rglob("model_optim_rng.pt"))[0]
    good, times = path.read_bytes(), path.stat()
    bad = bytearray(good)
    for begin, size in storages(path):
        bad[begin + size // 2] ^= size > 1000
    path.write_bytes(bad)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    job.kill_late(calls, 0.4)
    path.write_bytes(good)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    r = harness.run(*job.argv())
    assert r.rc == 3 and "CRC-32" in r.err and path.name in r.err, repr(r)
    assert not job.tmp() and not (job.out.exists() and harness.steps(job.out))
