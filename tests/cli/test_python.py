"""The Python package tp_checkpoint reads checkpoints, compared with tests/reader.

needs: make_ckpt tp-reshard
"""
import copy as copying
import hashlib
import json
import os
import pathlib
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import harness

sys.path.insert(0, str(harness.REPO / "python"))
import tp_checkpoint  # noqa: E402
from tp_checkpoint import checksums  # noqa: E402

READER = harness.REPO / "tests/reader/read_ckpt.py"
SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
LAYOUTS = ["tp1", "tp8", "tp2pp2dp3zero3"]
FAMILIES = json.loads((harness.REPO / "tests/fixture/families.json").read_text())


def make(folder, config, spec, step=10, dtype="bf16"):
    subprocess.run([harness.built("make_ckpt"), config, spec, folder, str(step), "1", dtype], check=True)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """{spec: (root, {group/name: array})} of the same model, whose columns are stored in blocks; the arrays
    are those of tests/reader."""
    top = tmp_path_factory.mktemp("python")
    config, out = harness.write_config(top, vocab_size=72, hidden_size=256, intermediate_size=384, head_dim=32), {}
    for spec in LAYOUTS:
        root = make(top / spec, config, spec)
        step = root / "step-00000010"
        subprocess.run([sys.executable, READER, step, top / "out.npz"], check=True, stdout=subprocess.DEVNULL)
        with np.load(top / "out.npz") as arrays:
            out[spec] = root, dict(arrays)
    return out


def test_its_version_is_that_of_the_programs():
    version = re.search(r"^VERSION := (.*)$", (harness.REPO / "Makefile").read_text(), re.M)[1]
    assert tp_checkpoint.__version__ == version
    assert '\nversion = "%s"\n' % version in (harness.REPO / "python/pyproject.toml").read_text()


# ---- compression -----------------------------------------------------------------------------

@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """(a raw root, the same state compressed at another layout). 1031 rows are not a multiple of a chunk's."""
    top = tmp_path_factory.mktemp("packed")
    config = harness.write_config(top, vocab_size=1031, hidden_size=1024, intermediate_size=256, num_hidden_layers=1)
    subprocess.run([harness.built("make_ckpt"), config, "tp1", top / "raw", "10", str(1 + (1 << 30)), "fp32"], check=True)
    harness.ok("tp-reshard", top / "raw", "--to", "tp2", "-o", top / "zstd", "--zstd")
    return top / "raw", top / "zstd"


@pytest.mark.parametrize("library", ["libzstd", "zstandard"])
def test_compressed_checkpoints_hold_the_same_tensors(packed, library, monkeypatch):
    if library == "zstandard":  # without it, the error says what to install
        monkeypatch.setattr(tp_checkpoint.codec, "_libzstd", lambda: None)
        try:
            import zstandard  # noqa: F401
        except ImportError:
            with tp_checkpoint.open(packed[1]) as ckpt, pytest.raises(tp_checkpoint.UnsupportedError, match="pip install"):
                ckpt["model.embed_tokens.weight"].bits()
            return
    rng = random.Random(SEED)
    with tp_checkpoint.open(packed[0]) as raw, tp_checkpoint.open(packed[1]) as zstd:
        for a, b in zip(raw.tensors(), zstd.tensors()):
            assert a.bits().tobytes() == b.bits().tobytes(), a.name
            if a.ndim == 2:
                rows = slice(*sorted(rng.sample(range(a.shape[0] + 1), 2)))
                assert (a.bits((rows, 3)) == b.bits((rows, 3))).all()


def test_damage_of_a_compressed_chunk_is_found_and_hostile_frames_are_refused(packed, tmp_path):
    root = harness.copy(packed[1], tmp_path / "bad")
    with tp_checkpoint.open(root) as ckpt:
        info = ckpt.tensor("model.embed_tokens.weight").info
        row = next(r for r in ckpt._index() if r["tensor"] == info.id)
    path = harness.steps(root)[-1] / "rank-00000.h5"
    data = bytearray(path.read_bytes())
    data[int(row["offset"]) + 40] ^= 16
    path.write_bytes(data)
    with tp_checkpoint.open(root) as ckpt, pytest.raises(tp_checkpoint.DamagedError, match="embed_tokens.*CRC32C"):
        ckpt["model.embed_tokens.weight"].bits()
    frame = np.frombuffer(packed[1].joinpath(harness.steps(root)[-1].name, "rank-00000.h5").read_bytes(), np.uint8)[
        int(row["offset"]):][:int(row["stored_bytes"])]
    decode, n = tp_checkpoint.codec.decode, int(row["raw_bytes"])
    assert len(decode(2, frame, n, n, 4)) == n
    for stored, size in ((frame, n - 4), (frame, n + 4), (frame[:-1], n), (np.append(frame, np.uint8(0)), n), (frame[1:], n)):
        with pytest.raises(tp_checkpoint.codec.BadFrame):
            decode(2, stored, size, size, 4)
    with pytest.raises(tp_checkpoint.codec.BadFrame, match="not zero"):
        decode(2, frame, n - 4, n, 4)


# ---- checksums -------------------------------------------------------------------------------

def test_the_sums_of_numpy_are_those_of_the_format():
    assert checksums.crc32c_numpy(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
    rng = np.random.default_rng(SEED)
    print("TP_SEED=%d" % SEED)
    data = rng.integers(0, 256, 70000, dtype=np.uint8)
    for n in [0, 1, 255, 4096, 4097, 70000]:  # with and without lanes
        want = 0xFFFFFFFF
        for byte in data[:n].tolist():
            want = (want >> 8) ^ checksums._byte_list()[(want ^ byte) & 0xFF]
        assert checksums.crc32c_numpy(data[:n]) == want ^ 0xFFFFFFFF, n


# ---- reading ---------------------------------------------------------------------------------

@pytest.mark.parametrize("spec", LAYOUTS)
def test_any_tensor_and_any_slice_at_any_layout(made, spec):
    root, want = made[spec]
    rng = random.Random(SEED)
    print("TP_SEED=%d" % SEED)
    with tp_checkpoint.open(root) as ckpt:
        assert {t.info.full_name for t in ckpt.tensors()} == set(want)
        assert ckpt.step == 10 and ckpt.layout == spec and ckpt.model_config["hidden_size"] == 256
        for t in ckpt.tensors():
            expected = want[t.info.full_name]
            assert t.shape == expected.shape and t.nbytes == expected.nbytes
            assert np.array_equal(t.bits(), expected), t
            for _ in range(2):
                key = tuple(random_key(rng, n) for n in t.shape[:rng.randint(0, t.ndim)])
                assert np.array_equal(t.bits(key), expected[key]), (t, key)


def random_key(rng, n):
    a, b = rng.randint(-n, n), rng.randint(-n, n)
    return rng.choice([rng.randint(-n, n - 1), slice(a, b), slice(None, b), slice(a, b, rng.choice([-3, -1, 2]))])


def test_bf16_is_numbers_or_bits(made):
    root, want = made["tp8"]
    with tp_checkpoint.open(root) as ckpt:
        t = ckpt["model.norm.weight"]
        bits = want["param/model.norm.weight"]
        assert t.dtype == "bf16" and t[...].dtype == np.float32
        assert np.array_equal(t[...].view(np.uint32), bits.astype(np.uint32) << 16)
        assert np.array_equal(np.asarray(t), t[...]) and t[3] == t[...][3]


def test_only_the_chunks_of_a_slice_are_read(made, monkeypatch):
    root, _ = made["tp1"]
    read = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: read.append(n) or real(fd, n, at))
    with tp_checkpoint.open(root) as ckpt:
        t = ckpt["model.layers.1.mlp.down_proj.weight"]
        ckpt["model.norm.weight"][:1]  # reads /index
        del read[:]
        t[:1, :10]  # inside the first block of columns
        assert 0 < sum(read) <= t.nbytes // 2, (read, t.nbytes)
        few = t.bits(slice(None, None, 200))
        assert few.base.nbytes == few.nbytes, "it keeps more than it gives"


# ---- errors ----------------------------------------------------------------------------------

def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1 << SEED % 8]))


@pytest.fixture
def copy(made, tmp_path):
    return harness.copy(made["tp8"][0], tmp_path / "ckpt")


def test_a_flipped_bit_is_found_where_it_is_read_and_nowhere_else(copy):
    step = copy / "step-00000010"
    with tp_checkpoint.open(step) as ckpt:
        victim = ckpt["lm_head.weight"]
        ckpt._index()
        number = ckpt._begins[victim.info.id]
        row, shard = ckpt._rows[number], ckpt.manifest.shards[ckpt._shard_of[number]]
    flip(step / shard.file, int(row["offset"]) + SEED % int(row["stored_bytes"]))
    with tp_checkpoint.open(step) as ckpt:
        ckpt["model.norm.weight"][...]
        with pytest.raises(tp_checkpoint.DamagedError, match=r"%s: param/lm_head.weight, chunk at" % shard.file):
            ckpt["lm_head.weight"][...]
    flip(step / shard.file, shard.index_offset + SEED % (160 * shard.index_rows))
    with pytest.raises(tp_checkpoint.DamagedError, match="/index has another SHA-256"):
        tp_checkpoint.open(step)["model.norm.weight"][...]


def test_every_flipped_bit_and_truncation_of_a_manifest_is_an_error(copy):
    path = copy / "step-00000010/manifest.json"
    whole = path.read_bytes()
    rng = random.Random(SEED)
    print("TP_SEED=%d" % SEED)
    for _ in range(200):
        bad = bytearray(whole)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(rng.choice([bytes(bad), whole[:rng.randrange(len(whole))]]))
        with pytest.raises(tp_checkpoint.DamagedError):
            tp_checkpoint.open(copy, step=10)


def test_a_damaged_step_is_passed_over_with_a_warning(made, copy):
    harness.copy(copy / "step-00000010", copy / "step-00000011")
    with pytest.warns(UserWarning, match="step-00000011.*step 10"):
        assert tp_checkpoint.open(copy).step == 10
    with pytest.raises(tp_checkpoint.DamagedError, match="its manifest is of step 10"):
        tp_checkpoint.open(copy, step=11)
    os.remove(copy / "step-00000010/rank-00003.h5")
    with pytest.raises(tp_checkpoint.DamagedError, match="rank-00003.h5"):
        tp_checkpoint.open(copy, step=10)


def test_what_does_not_exist_is_named(made, tmp_path):
    root = made["tp1"][0]
    with pytest.raises(tp_checkpoint.NotFoundError, match="there is no such directory"):
        tp_checkpoint.open(tmp_path / "none")
    with pytest.raises(tp_checkpoint.NotFoundError, match="there is no such directory"):
        tp_checkpoint.steps(tmp_path / "none")
    with pytest.raises(tp_checkpoint.NotFoundError, match="is not a checkpoint"):
        tp_checkpoint.open(tmp_path)
    with pytest.raises(tp_checkpoint.NotFoundError, match="has no step 7; it has steps 10"):
        tp_checkpoint.open(root, step=7)
    with tp_checkpoint.open(root) as ckpt:
        with pytest.raises(tp_checkpoint.NotFoundError, match="model.layers.0.mlp.up_proj.weight and"):
            ckpt["layers.0.mlp.up_proj.weight"]
        with pytest.raises(tp_checkpoint.NotFoundError, match="its groups are param, master, exp_avg, exp_avg_sq"):
            ckpt.tensor("model.norm.weight", "momentum")
        with pytest.raises(IndexError, match="out of range"):
            ckpt["model.norm.weight"][256]
        with pytest.raises(IndexError, match="has 1 axes"):
            ckpt["model.norm.weight"][0, 0]


def test_messages_have_no_control_characters_of_a_path(made, tmp_path):
    """A terminal would obey them. They are written as the C programs write them."""
    name = b"a\x1b[2J\n\xc2\x9b\xff\xc3\xa4"
    shown = "a\\x1b[2J\\n\\xc2\\x9b\\xff\u00e4"
    path = os.path.join(os.fsencode(tmp_path), name)
    with pytest.raises(tp_checkpoint.NotFoundError) as found:
        tp_checkpoint.open(path)
    assert str(found.value) == "%s/%s: there is no such directory" % (tmp_path, shown)
    harness.copy(made["tp1"][0], os.fsdecode(path))
    os.makedirs(os.path.join(path, b"step-00000011"))
    with pytest.warns(UserWarning) as warned:
        assert tp_checkpoint.open(path).step == 10
    assert str(warned[0].message).startswith("%s/%s/step-00000011: has no manifest.json" % (tmp_path, shown))


@pytest.mark.parametrize("again", [lambda c: pickle.loads(pickle.dumps(c)), copying.copy, copying.deepcopy])
def test_a_copy_has_files_of_its_own(made, again):
    """A worker process gets its checkpoint by pickle. A descriptor in it would be another file there, and closed twice."""
    root, arrays = made["tp8"]
    name = "model.norm.weight"
    with tp_checkpoint.open(root) as ckpt:
        ckpt[name][...]
        copied = again(ckpt)
        assert not copied._files and ckpt._files
        assert np.array_equal(copied[name].bits(), arrays["param/" + name])
        copied.close()
        del copied
        assert np.array_equal(again(ckpt[name]).bits(), ckpt[name].bits())
        assert np.array_equal(ckpt[name].bits(), arrays["param/" + name])


def test_threads_share_a_checkpoint(made):
    root, arrays = made["tp2pp2dp3zero3"]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with tp_checkpoint.open(root) as ckpt, ThreadPoolExecutor(8) as pool:
            names = ckpt.keys() * 2
            for name, found in zip(names, pool.map(lambda n: ckpt[n].bits(), names)):
                assert np.array_equal(found, arrays["param/" + name])
            assert len(ckpt._files) == len(ckpt.manifest.shards)
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_that_is_forked_while_a_thread_reads_can_read(made, monkeypatch):
    real, reads, forked = tp_checkpoint.Checkpoint._rows_of, threading.Event(), threading.Event()

    def rows_of(self, number):
        reads.set()
        forked.wait()
        return real(self, number)

    monkeypatch.setattr(tp_checkpoint.Checkpoint, "_rows_of", rows_of)
    with tp_checkpoint.open(made["tp1"][0]) as ckpt:
        t = ckpt.tensors()[0]
        thread = threading.Thread(target=lambda: t[...])
        thread.start()
        reads.wait()
        pid = os.fork()
        if pid == 0:
            forked.set()
            signal.alarm(60)
            os._exit(len(t[...]) != len(t))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        forked.set()
        thread.join()
    assert code == 0


def test_more_shards_than_a_process_may_open(tmp_path):
    """Each of 300 ranks has a row of the embedding's moments."""
    root = make(tmp_path / "many", harness.write_config(tmp_path, vocab_size=300, hidden_size=8, num_hidden_layers=1), "dp300zero1", dtype="fp32")
    name, soft = "model.embed_tokens.weight", resource.getrlimit(resource.RLIMIT_NOFILE)
    with tp_checkpoint.open(root) as ckpt:
        assert len(ckpt.manifest.shards) == 300
        wanted = ckpt.tensor(name, "exp_avg")[...]
    first = os.open(os.devnull, os.O_RDONLY)
    os.close(first)
    try:
        with tp_checkpoint.open(root) as ckpt:
            resource.setrlimit(resource.RLIMIT_NOFILE, (first + 280, soft[1]))
            assert (ckpt.tensor(name, "exp_avg")[...] == wanted).all() and (ckpt.tensor(name, "exp_avg")[-3:] == wanted[-3:]).all()
        with tp_checkpoint.open(root) as ckpt, pytest.raises(tp_checkpoint.CheckpointError, match="Too many open files.*ulimit -n") as e:
            resource.setrlimit(resource.RLIMIT_NOFILE, (first + 20, soft[1]))
            ckpt.tensor(name, "exp_avg")[...]
        assert e.type is tp_checkpoint.CheckpointError  # and not that a file is damaged
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)


def test_it_is_used_like_a_dict_of_the_parameters(made):
    with tp_checkpoint.open(made["tp1"][0]) as ckpt:
        names = [t.name for t in ckpt.tensors("param")]
        assert list(ckpt) == ckpt.keys() == names and dict(ckpt)["model.norm.weight"].shape == (256,)
        for bad in 0, None, ("param", names[0]):
            with pytest.raises(TypeError, match="a tensor has a name, such as 'model.embed_tokens.weight'"):
                ckpt[bad]
        for bad in True, None, np.bool_(False), [1], np.array([1, 2]), 1.0:
            with pytest.raises(TypeError, match="an index is a number, a slice or ..., not"):
                ckpt[names[0]][bad]


def test_a_url_or_a_step_that_is_none_is_named(made):
    for bad in "s3://bucket/prefix", "https://host/ckpt", "S3:/bucket", "gs://bucket":
        with pytest.raises(tp_checkpoint.UnsupportedError, match="is a URL, and this package reads and writes folders only"):
            tp_checkpoint.open(bad)
    root = made["tp1"][0]
    with pytest.raises(tp_checkpoint.NotFoundError, match="is a file; give the folder"):
        tp_checkpoint.open(root / "step-00000010/manifest.json")
    for bad in "10", True, 1.5:
        with pytest.raises(tp_checkpoint.CheckpointError, match="expected a whole number"):
            tp_checkpoint.open(root, step=bad)


def signed(step, change):
    """Change the manifest and write it with the right checksum."""
    path = step / "manifest.json"
    root = json.loads(path.read_text())
    del root["checksum"]
    change(root)
    body = json.dumps(root, indent=1)[:-2].encode() + b",\n"
    path.write_bytes(body + b'"checksum": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode())


@pytest.mark.parametrize("change, message", [
    (lambda m: m.update(version=4), "install a newer one"),
    (lambda m: m["tensors"][0].update(shape=[1 << 40, 1 << 40]), "2\\^58"),
    (lambda m: m["tensors"][0].update(shape=[True]), "shape"),
    (lambda m: m["tensors"][0].update(name="../x"), "not a valid name"),
    (lambda m: m["tensors"][0].update(dtype="f8"), "unknown dtype"),
    (lambda m: m["tensors"].append(dict(m["tensors"][0], id=len(m["tensors"]))), "occurs twice"),
    (lambda m: m["shards"][0].update(file="../rank-00000.h5"), "is named"),
    (lambda m: m["shards"][0].update(index_rows=1 << 40), "index_rows"),
    (lambda m: m["train"].update(step=11), "another one"),
    (lambda m: m["train"].update(options=7), "options"),
    (lambda m: m.pop("layout"), "'layout' is missing"),
    (lambda m: m.update(tensors=7), "another kind"),
])
def test_a_hostile_manifest_is_an_error(copy, change, message):
    signed(copy / "step-00000010", change)
    with pytest.raises(tp_checkpoint.CheckpointError, match=message):
        tp_checkpoint.open(copy / "step-00000010")


@pytest.mark.parametrize("more", [1, 1 << 50])
def test_a_tensor_that_is_larger_than_its_boxes_is_found_before_there_is_memory_for_it(copy, more):
    step = copy / "step-00000010"

    def grow(m):
        t = next(t for t in m["tensors"] if t["name"] == "model.norm.weight")
        t["shape"][0] += more

    signed(step, grow)
    with pytest.raises(tp_checkpoint.DamagedError, match="do not contain each element once"):
        tp_checkpoint.open(step)["model.norm.weight"][...]


def test_boxes_that_overlap_are_found(made, monkeypatch):
    """The same chunk twice, and another one not at all: the number of elements is right."""
    with tp_checkpoint.open(made["tp8"][0]) as ckpt:
        t = ckpt["lm_head.weight"]
        rows = ckpt._index().copy()
        begin = ckpt._begins[t.info.id]
        assert rows[begin]["len"].tolist() == rows[begin + 1]["len"].tolist()
        rows[begin] = rows[begin + 1]
        monkeypatch.setattr(ckpt, "_rows", rows)
        with pytest.raises(tp_checkpoint.DamagedError, match="do not contain each element once"):
            t[...]


def change_anything(rng, value):
    """Replace a value somewhere inside."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    if not keys:
        return
    k = rng.choice(keys)
    if isinstance(value[k], (dict, list)) and rng.random() < 0.85:
        change_anything(rng, value[k])
    else:
        value[k] = rng.choice([None, -1, 0, 1 << 62, 1 << 70, "", "x", [], {}, True, 1.5, [1] * 7])


def test_files_that_were_made_to_mislead_give_values_or_errors_of_this_package(tmp_path):
    """Their checksums are right: only the checks of each member and of each row are left."""
    print("TP_SEED=%d" % SEED)
    rng, seen = random.Random(SEED), set()
    step = pathlib.Path(tp_checkpoint.save(tmp_path / "ckpt", 1, {
        "x": np.ones((64, 300), np.float32), "bits": np.zeros(5, np.uint16), "scalar": np.array(1.0)}))
    shard, sound = step / "rank-00000.h5", (step / "manifest.json").read_bytes()
    data = shard.read_bytes()

    def mislead(m):
        info, rows = m["shards"][0], bytearray(data)
        begin, n = info["index_offset"], 160 * info["index_rows"]
        for _ in range(rng.randint(1, 2)):
            at = begin + rng.randrange(n // 8) * 8
            rows[at:at + 8] = rng.choice([b"\xff" * 8, bytes(8), bytes(7) + b"\x80", b"\xff" * 7 + b"\x7f",
                                          rows[at:at + 7] + b"\1", b"\1" + rows[at + 1:at + 8]])
        shard.write_bytes(rows if rng.random() < 0.6 else data)
        info["index_sha256"] = hashlib.sha256(shard.read_bytes()[begin:begin + n]).hexdigest()
        if shard.read_bytes() == data:
            change_anything(rng, m)

    for _ in range(5000 if harness.LONG else 150):
        (step / "manifest.json").write_bytes(sound)
        signed(step, mislead)
        try:
            with tp_checkpoint.open(step) as ckpt:
                assert ckpt.model_config is None or isinstance(ckpt.model_config, dict)
                seen.add(all(np.size(t[...]) == t.size for t in ckpt.tensors()))
        except tp_checkpoint.CheckpointError as e:
            seen.add(type(e))
    assert {True, tp_checkpoint.DamagedError} <= seen and False not in seen, seen
