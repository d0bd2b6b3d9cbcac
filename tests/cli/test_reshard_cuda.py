"""tp-reshard --device cuda, on the fake CUDA device of tests/fakecuda: every byte of the new step is the CPU's.

The fake device ends a run with exit 86 when kernels or events are wrong. A failing test prints its seed; TP_SEED=n
repeats it.

needs: tp-reshard tp-ckpt make_ckpt libtp-cuda.so
covers: cli/cuda_library cli/reshard/reshard_device reshard/engine/device_ring reshard/engine/device_batch
"""
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

import harness

MAKE = harness.built("make_ckpt")
SEED = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
LITTLE = ["--device-mem", "1M"]  # the fake device tracks every byte of its memory
SMOOTH = 1 << 30  # a seed of make_ckpt with this bit gives numbers that compress (tests/unit/fixture.h)
LAYOUTS = ["tp1", "tp2", "tp4", "tp3", "pp2", "tp2pp2", "dp2zero1", "tp2dp2zero1", "dp3zero3"]
MODEL = {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 2, "hidden_size": 20, "vocab_size": 101,
         "intermediate_size": 60, "num_hidden_layers": 2}


def on_fake(**more):
    env = {"TP_CUDA_LIBRARY": str(harness.built("libtp-cuda.so")), "FAKECUDA_SEED": str(SEED), "FAKECUDA_GPUS": "2"}
    return {**env, **{"FAKECUDA_" + name: str(value) for name, value in more.items()}}


def make(folder, spec, dtype="bf16", seed=SEED, **model):
    folder.mkdir(parents=True, exist_ok=True)
    harness.ok(MAKE, harness.write_config(folder, **{**MODEL, **model}), spec, folder / "ckpt", 5, seed, dtype)
    return folder / "ckpt"


def make_compressed(folder, spec, dtype="bf16"):
    """A checkpoint that the CPU has compressed, and the same one raw."""
    raw = make(folder, spec, dtype, seed=SEED | SMOOTH)
    reshard(raw, spec, folder / "zstd", "--zstd", "--device", "cpu")
    assert is_compressed(folder / "zstd") and not is_compressed(raw)
    return folder / "zstd", raw


def is_compressed(root):
    return json.loads((root / "step-00000005/manifest.json").read_text())["version"] == 3


def sums_of(root):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((root / "step-00000005").iterdir())}


def reshard(root, to, out, *options, env=None):
    return json.loads(harness.ok("tp-reshard", root, "--to", to, "-o", out, "--json", *options, env=env).out)


def assert_same(a, b):
    """The files are equal; the manifests, which have an id of the save, apart from it."""
    a, b = sums_of(a), sums_of(b)
    a.pop("manifest.json"), b.pop("manifest.json")
    assert a == b, SEED


@pytest.mark.parametrize("number", range(40 if harness.LONG else 3))
def test_bytes_and_digests_are_the_cpus(tmp_path, number):
    rng = random.Random(SEED * 1000 + number)
    source, target = rng.choice(LAYOUTS), rng.choice(LAYOUTS)
    options = rng.choice([[], [], ["--dtype", "f32"], ["--dtype", "f16"], ["--no-optim"]])
    memory = ["--device-mem", rng.choice(["1M", "1500K", "4M"]), "--jobs", rng.randint(1, 3), *rng.choice([["--journal", "0"], []])]
    print(SEED, number, source, target, options, memory)
    root = make(tmp_path, source)
    want = reshard(root, target, tmp_path / "cpu", "--device", "cpu", *options)
    got = reshard(root, target, tmp_path / "cuda", "--device", "cuda", *options, *memory,
                  env=on_fake(SEED=SEED + number))
    assert (want["device"], got["device"]) == ("cpu", "cuda")
    for key in ("bytes_read", "bytes_written", "digests_equal", "casts", "tensors", "boxes"):
        assert got[key] == want[key], (SEED, key)
    assert_same(tmp_path / "cpu", tmp_path / "cuda")
    harness.ok("tp-ckpt", "verify", tmp_path / "cuda")


@pytest.mark.parametrize("number", range(40 if harness.LONG else 4))
def test_compressed_bytes_and_digests_are_the_cpus(tmp_path, number):
    """The processor decompresses into pinned memory and compresses what returns there; in turns only one of the two."""
    rng = random.Random(SEED * 1000 + number)
    from_zstd, to_zstd = ((True, False), (False, True), (True, True))[number % 3]
    source, target = rng.choice(LAYOUTS), rng.choice(LAYOUTS)
    options = rng.choice([[], [], ["--dtype", "f32"], ["--dtype", "f16"], ["--no-optim"]])
    options += ["--zstd=%d" % rng.randint(1, 4)] if to_zstd else []
    memory = ["--device-mem", rng.choice(["1M", "1500K", "4M"]), "--jobs", rng.randint(1, 3)]
    print(SEED, number, source, target, from_zstd, options, memory)
    compressed, raw = make_compressed(tmp_path, source)
    root = compressed if from_zstd else raw
    want = reshard(root, target, tmp_path / "cpu", "--device", "cpu", *options)
    got = reshard(root, target, tmp_path / "cuda", "--device", "cuda", *options, *memory, env=on_fake(SEED=SEED + number))
    assert (got["device"], got["zstd"]) == ("cuda", want["zstd"]) and is_compressed(tmp_path / "cuda") == to_zstd
    for key in ("bytes_read", "bytes_written", "digests_equal", "casts", "tensors", "boxes", *["bytes_stored"] * to_zstd):
        assert got[key] == want[key], (SEED, key)
    assert_same(tmp_path / "cpu", tmp_path / "cuda")
    harness.ok("tp-ckpt", "verify", tmp_path / "cuda")


MEM = 64 if harness.SANITIZE else 44  # MiB; the sanitizers' own memory counts


@pytest.mark.parametrize("options,most_pinned,most_on_device", [
    (["--device-mem", "1M"], 1 << 20, 1 << 20), (["--mem", "%dM" % MEM], MEM << 20, 1 << 30)], ids=["device-mem", "mem"])
def test_memory_of_host_and_device_is_bounded(tmp_path, options, most_pinned, most_on_device, figure):
    """The ring would take six times what is copied if it could. Pinned memory is a part of what --mem bounds."""
    root, calls = make(tmp_path, "tp2", vocab_size=9001), tmp_path / "calls"
    result = reshard(root, "tp4", tmp_path / "out", "--device", "cuda", *options, env=on_fake(HOST_CALLS=calls))
    lines = [line.split() for line in calls.read_text().splitlines()]
    pinned, on_device = (max(int(line[column]) for line in lines) for column in (3, 2))
    figure("memory of tp-reshard --device cuda %s, MiB" % " ".join(options), "%.1f pinned, %.1f on the device, of %.1f copied" % (
        pinned / 2**20, on_device / 2**20, result["bytes_written"] / 2**20))
    assert harness.SANITIZE or (result["bytes_read"] + result["bytes_written"]) * 6 > most_pinned, SEED
    assert 0 < pinned <= most_pinned and on_device <= most_on_device, SEED


@pytest.mark.parametrize("options", [[], ["--zstd", "--dtype", "bf16"]], ids=["", "zstd"])
@pytest.mark.parametrize("compressed", [False, True])
def test_processes_share_a_gpu(tmp_path, compressed, options):
    """With --zstd both read some parts of the source, and one of them counts the cast."""
    root = (make_compressed(tmp_path, "tp1", "fp32")[0] if compressed else make(tmp_path, "tp1", "fp32"))
    want = reshard(root, "tp4", tmp_path / "cpu", "--device", "cpu", *options)
    got = json.loads(harness.ok("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2, harness.BIN / "tp-reshard", root,
                                "--to", "tp4", "-o", tmp_path / "cuda", "--json", "--device", "cuda", *LITTLE, *options,
                                env=on_fake()).out)
    assert (got["device"], got["processes"]) == ("cuda", 2)
    assert (want["casts"] > 0) == ("--dtype" in options)
    assert (got["digests_equal"], got["casts"]) == (want["digests_equal"], want["casts"])
    assert_same(tmp_path / "cpu", tmp_path / "cuda")


@pytest.mark.parametrize("options", [[], ["--zstd"]], ids=["", "zstd"])
@pytest.mark.parametrize("second", ["cpu", "cuda"] if harness.LONG else ["cuda"])
def test_a_killed_run_resumes_on_either_device(tmp_path, second, options):
    root, out = make(tmp_path, "tp2"), tmp_path / "out"
    argv = ["tp-reshard", root, "--to", "tp4", "-o", out, "--journal", "0", "--jobs", "1", "--json", *LITTLE, *options]
    reshard(root, "tp4", tmp_path / "cpu", "--device", "cpu", *options)
    for _ in range(10):  # on a busy machine it may end before it is killed
        p = subprocess.Popen(harness.command([*argv, "--device", "cuda"]), env={**os.environ, **on_fake()},
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while p.poll() is None and not written(out):
            time.sleep(0.01)
        p.kill()
        if p.wait() != 0:
            break
        shutil.rmtree(out)
    assert p.returncode == -signal.SIGKILL, "it ended before it could be killed"
    result = json.loads(harness.ok(*argv, "--device", second, env=on_fake(SEED=SEED + 1)).out)
    assert result["windows_before"] > 0 and result["damaged_chunks"] == 0, (SEED, result)
    assert_same(tmp_path / "cpu", out)


@pytest.mark.parametrize("compressed", [False, True])
def test_damage_in_the_source_is_found(tmp_path, compressed):
    """In raw shards by the device, in compressed ones by the processor."""
    root = make_compressed(tmp_path, "tp2")[0] if compressed else make(tmp_path, "tp2")
    shard = sorted((root / "step-00000005").glob("rank-*.h5"))[0]
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    shard.write_bytes(bytes(damaged))
    r = harness.run("tp-reshard", root, "--to", "tp4", "-o", tmp_path / "out", "--device", "cuda", *LITTLE,
                    env=on_fake())
    assert r.rc == 3 and "CRC32C" in r.err and not (tmp_path / "out/step-00000005").exists(), (SEED, r)


REFUSED = {
    "no library": ([], {"TP_CUDA_LIBRARY": "/nowhere/libtp-cuda.so"}, 2, "/nowhere/libtp-cuda.so"),
    "no driver": ([], on_fake(DRIVER=0), 2, "no NVIDIA driver"),
    "old driver": ([], on_fake(DRIVER=12040), 2, "supports CUDA 12.4, and 13.0 is needed"),
    "no GPU": ([], on_fake(GPUS=0), 2, "no GPU that this process may use"),
    "little GPU memory": ([], on_fake(MEMORY=100000), 3, "GPU 0 is out of memory"),
    "little --device-mem": (["--device-mem", "1000"], on_fake(), 2, "--device-mem 1000 B is too little; at least 1.00 MiB"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_gpu_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, name):
    options, env, code, message = REFUSED[name]
    root = make(tmp_path, "tp2")
    r = harness.run("tp-reshard", root, "--to", "tp4", "-o", tmp_path / "out", "--device", "cuda", *options, env=env)
    errors = [line for line in r.lines if line.startswith("tp-reshard: ") and message in line]
    assert (r.rc, len(errors)) == (code, 1), r
    assert not list(tmp_path.glob("out/step-*")), "nothing is left"


@pytest.mark.parametrize("options", [[], ["--device", "auto"], ["--device", "cuda"]], ids=["default", "auto", "cuda"])
def test_threads_copy_while_the_gpu_is_opened(tmp_path, options):
    """The fake GPU opens when a part of OUT is written, and the device does the rest where it is asked for."""
    root, out, opens = make(tmp_path, "tp2", vocab_size=30011, hidden_size=40), tmp_path / "out", tmp_path / "opens"
    want = reshard(root, "tp4", tmp_path / "cpu", "--device", "cpu")
    calls = tmp_path / "calls"
    p = start_delayed(root, out, opens, *options, HOST_CALLS=calls)
    is_asked_for = options[1:] == ["cuda"]
    wait_until(lambda: written(out) > 0 or p.poll() is not None)
    assert not is_asked_for or (p.poll() is None and not calls.exists()), "the device is not open"
    opens.touch()
    got, err = p.communicate()
    assert p.returncode == 0, (SEED, err)
    result = json.loads(got)
    assert result["bytes_written"] == want["bytes_written"] and result["digests_equal"] == want["digests_equal"]
    if is_asked_for:
        assert result["device"] == "cuda" and calls.exists(), "the last tiles are the device's"
    else:  # a GPU is tried after a round of 0.2 s, which a busy machine needs sometimes
        assert re.search(r"the copy ended before it could be tried with a GPU|it copied .*s with the GPU", result["device_reason"]), result
    assert_same(tmp_path / "cpu", out)


def start_delayed(root, out, opens, *options, **more):
    return subprocess.Popen(
        harness.command(["tp-reshard", root, "--to", "tp4", "-o", out, "--json", *LITTLE, "--jobs", "1", "--journal", "0", *options]),
        env={**os.environ, **on_fake(OPENS_AFTER=opens, **more)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.002)


def written(out):
    """Bytes of the journal of the step that is being written: it grows with every round of tiles."""
    total = 0
    for journal in out.glob("step-*.tmp-*/progress"):
        with contextlib.suppress(FileNotFoundError):  # the step was just committed
            total += max(0, journal.stat().st_size - 4000)
    return total


def test_a_gpu_that_does_not_open_during_the_copy_leaves_nothing(tmp_path):
    root, out, opens = make(tmp_path, "tp2", vocab_size=30011, hidden_size=40), tmp_path / "out", tmp_path / "opens"
    p = start_delayed(root, out, opens, "--device", "cuda", MEMORY=100000)
    wait_until(lambda: written(out) > 0)
    opens.touch()
    assert "GPU 0 is out of memory" in p.communicate()[1] and p.returncode == 3, SEED
    assert not out.exists()


def test_an_interrupted_copy_resumes_although_no_gpu_opened(tmp_path):
    """Ctrl-C while the GPU is opened; then a run without a GPU, which must not remove what there is; then one that resumes."""
    root, out, opens = make(tmp_path, "tp2", vocab_size=30011, hidden_size=40), tmp_path / "out", tmp_path / "opens"
    p = start_delayed(root, out, opens, "--device", "cuda")
    wait_until(lambda: written(out) > 0)
    p.send_signal(signal.SIGINT)
    opens.touch()
    assert p.wait() == 75, p.communicate()
    p = start_delayed(root, out, opens, "--device", "cuda", BUSY=46)
    assert p.wait() == 3 and "--device cuda: " in p.communicate()[1]
    reshard(root, "tp4", tmp_path / "cpu", "--device", "cpu")
    p = start_delayed(root, out, opens, "--device", "cuda")
    assert json.loads(p.communicate()[0])["windows_before"] > 0
    assert_same(tmp_path / "cpu", out)


@pytest.mark.parametrize("what", [["--dry-run"], ["--link"], ["--from", "tp3"]], ids=["dry-run", "link", "from"])
def test_a_gpu_that_cannot_be_used_is_named_before_all_else(tmp_path, what):
    root = make(tmp_path, "tp2")
    for source in (root, tmp_path / "missing"):
        r = harness.run("tp-reshard", source, "--to", "dp2tp2" if what == ["--link"] else "tp4", "-o", tmp_path / "out", "--device",
                        "cuda", *what, env=on_fake(GPUS=0))
        assert (r.rc, r.out) == (2, "") and "no GPU that this process may use" in r.err, r
    assert not (tmp_path / "out").exists()


def test_auto_says_what_it_chose_and_why(tmp_path):
    root = make(tmp_path, "tp2")
    for number, (options, env, reason) in enumerate([
            (["--device", "auto"], on_fake(DRIVER=0), "no NVIDIA driver"),
            (["--device", "auto", "--mem", "500M"], on_fake(), "--mem is less than 1G"),
            (["--device", "auto"], on_fake(), "the copy ended before it could be tried with a GPU"),
            ([], on_fake(DRIVER=0), None)]):
        out = tmp_path / str(number)
        result = reshard(root, "tp4", out, *options, env=env)
        assert result["device"] == "cpu"
        assert (reason in result["device_reason"]) if reason else "device_reason" not in result, result
        assert_same(out, tmp_path / "0")
    text = harness.ok("tp-reshard", root, "--to", "tp4", "-o", tmp_path / "text", "--device", "auto", env=on_fake()).out
    assert "device   cpu, because the copy ended" in text
