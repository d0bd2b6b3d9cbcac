"""The verbs of tp-ckpt on checkpoints that tests/fixture/make_ckpt.c writes; and other readers of the
format: tests/reader/read_ckpt.py, h5py, h5dump, h5stat.

needs: tp-train tp-ckpt make_ckpt
covers: cli/ckpt/tp_ckpt cli/ckpt/cmd_ls cli/ckpt/cmd_show cli/ckpt/cmd_verify cli/ckpt/cmd_digest
    cli/ckpt/cmd_diff cli/ckpt/cmd_prune
"""
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys

import h5py
import numpy as np
import pytest

import harness
from harness import ok, run

READER = harness.REPO / "tests/reader/read_ckpt.py"
SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
LAYOUTS = ["tp1", "tp2", "tp8", "tp4dp2zero1", "tp2pp2dp2zero3"]


def make(root, config, spec, step=10, seed=1, dtype="fp32"):
    subprocess.run([harness.built("make_ckpt"), config, spec, root, str(step), str(seed),
                    dtype], check=True)
    return pathlib.Path(root)


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny):
    """{spec: root}. Each root has step 10 with the same tensors (bf16, masters, moments) at this layout."""
    top = tmp_path_factory.mktemp("made")
    return {spec: make(top / spec, tiny, spec, dtype="bf16") for spec in LAYOUTS}


@pytest.fixture
def tp4(tmp_path, tiny):
    """A root that the test may change: step 10 at tp4."""
    return make(tmp_path / "ckpt", tiny, "tp4")


def reader(step, *more):
    p = subprocess.run([sys.executable, READER, step, *more], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True)
    return p.returncode, p.stdout, p.stderr


def manifest(step):
    return json.loads((step / "manifest.json").read_text())


def sign(step, text):
    """Write the text of a manifest with the checksum that belongs to it."""
    body = text[:text.index('"checksum": ')]
    sha = hashlib.sha256(body.encode()).hexdigest()
    (step / "manifest.json").write_text(body + '"checksum": "%s"\n}\n' % sha)


def rows_of(step, shard, data=None):
    """[(tensor entry, offset, bytes)] of the rows of a shard's /index."""
    tensors = manifest(step)["tensors"]
    entry = next(e for e in manifest(step)["shards"] if e["file"] == shard)
    data = data or (step / shard).read_bytes()
    rows = []
    for i in range(entry["index_rows"]):
        row = data[entry["index_offset"] + 160 * i:][:160]
        tensor, = struct.unpack_from("<I", row)
        offset, size = struct.unpack_from("<qq", row, 112)
        rows.append((tensors[tensor], offset, size))
    return rows


# ---- other readers of the format -------------------------------------------------------------

@pytest.mark.parametrize("spec", LAYOUTS)
def test_the_independent_reader_reads_the_same_tensors_at_every_layout(spec, made):
    rc, out, err = reader(made[spec] / "step-00000010")
    assert rc == 0, err
    assert out == reader(made["tp1"] / "step-00000010")[1]
    assert len(out.splitlines()) == len(manifest(made[spec] / "step-00000010")["tensors"])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_independent_reader_agrees_with_export(dtype, tiny, tmp_path):
    root = make(tmp_path / "ckpt", tiny, "tp4", dtype=dtype)
    ok("tp-ckpt", "export", root, "--format", "safetensors", "-o", tmp_path / "hf")
    rc, _, err = reader(root / "step-00000010", tmp_path / "all.npz")
    assert rc == 0, err
    whole = np.load(tmp_path / "all.npz")
    raw = (tmp_path / "hf/model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    assert {"param/" + k for k in header} == {k for k in whole if k.startswith("param/")}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert raw[8 + n + begin:8 + n + end] == whole["param/" + name].tobytes(), name
        assert entry["shape"] == list(whole["param/" + name].shape)


@pytest.mark.parametrize("spec", LAYOUTS)
def test_h5py_h5dump_and_h5stat_read_every_shard(spec, made):
    step = made[spec] / "step-00000010"
    for entry in manifest(step)["shards"]:
        path = step / entry["file"]
        for tool in (["h5dump", "-H"], ["h5dump", "-d", "/index"], ["h5stat"]):
            p = subprocess.run([*tool, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert p.returncode == 0 and not p.stderr, p.stderr
        with h5py.File(path, "r") as f:
            assert f.attrs["format"] == b"tp-ckpt" or f.attrs["format"] == "tp-ckpt"
            assert f.attrs["rank"] == entry["rank"] and f.attrs["version"] == 2
            assert len(f["index"]) == entry["index_rows"]
            assert f["index"].id.get_offset() == entry["index_offset"]
            for row in f["index"][()]:
                t = manifest(step)["tensors"][row["tensor"]]
                name = t["name"] + ("@%d" % row["part"] if row["part"] else "")
                data = f[t["group"]][name]
                assert list(data.attrs["global_shape"]) == t["shape"]
                assert np.isfinite(data[()].astype("f8")).all()


def test_h5py_reads_bf16_as_numbers(made):
    path = made["tp2"] / "step-00000010/rank-00000.h5"
    with h5py.File(path, "r") as f:
        data = f["param/model.layers.0.mlp.up_proj.weight"]
        values, where = data[()], data.id.get_offset()
    raw = np.fromfile(path, "<u2", values.size, offset=where)
    assert np.array_equal((raw.astype("<u4") << 16).view("<f4"), values.reshape(-1).astype("<f4"))


def test_digest_is_the_formula_of_the_format(tp4):
    sys.path.insert(0, str(READER.parent))
    import read_ckpt
    step = tp4 / "step-00000010"
    lines = dict(reversed(line.split("  ")) for line in ok("tp-ckpt", "digest", tp4).out.splitlines())
    rc, _, err = reader(step, tp4.parent / "all.npz")
    assert rc == 0, err
    whole = np.load(tp4.parent / "all.npz")
    small = [t for t in manifest(step)["tensors"] if np.prod(t["shape"]) <= 4096]
    assert len(small) > 10
    for t in small:
        name = "%s/%s" % (t["group"], t["name"])
        text = "%s [%s] %016x%016x" % (t["dtype"], ", ".join(map(str, t["shape"])),
                                       *read_ckpt.digest(whole[name]))
        assert lines[name] == hashlib.sha256(text.encode()).hexdigest(), name


# ---- digest, diff ----------------------------------------------------------------------------

@pytest.mark.parametrize("spec", LAYOUTS[1:])
def test_digest_and_diff_do_not_depend_on_the_layout(spec, made):
    expected = ok("tp-ckpt", "digest", made["tp1"]).out
    assert ok("tp-ckpt", "digest", made[spec]).out == expected
    assert ok("tp-ckpt", "digest", "--index", made[spec]).out == expected
    assert "equal" in ok("tp-ckpt", "diff", made["tp1"], made[spec]).out


def test_digest_lines_are_sorted_and_the_last_is_their_sha256(made):
    lines = ok("tp-ckpt", "digest", made["tp2"]).out.splitlines(keepends=True)
    assert lines[:-1] == sorted(lines[:-1], key=lambda s: s.split("  ", 1)[1])
    assert all(re.fullmatch(r"[0-9a-f]{64}  (param|master|exp_avg|exp_avg_sq)/\S+\n", s)
               for s in lines[:-1])
    assert lines[-1] == hashlib.sha256("".join(lines[:-1]).encode()).hexdigest() + "  all\n"
    js = json.loads(ok("tp-ckpt", "digest", "--json", made["tp2"]).out)
    assert js["all"] == lines[-1].split()[0] and len(js["tensors"]) == len(lines) - 1


def test_diff_counts_and_names_what_differs(tp4, tiny, tmp_path):
    other = make(tmp_path / "other", tiny, "tp2", seed=2)
    r = run("tp-ckpt", "diff", tp4, other)
    assert r.rc == 1 and not r.err, r
    assert "param/model.embed_tokens.weight: " in r.out and "elements differ" in r.out
    assert run("tp-ckpt", "diff", tp4, other, "--atol", "1e30").rc == 0
    assert run("tp-ckpt", "diff", tp4, other, "--rtol", "1e-3").rc == 1
    js = run("tp-ckpt", "diff", tp4, other, "--json")
    assert js.rc == 1 and json.loads(js.out)["equal"] is False
    bf16 = make(tmp_path / "bf16", tiny, "tp4", dtype="bf16")
    r = run("tp-ckpt", "diff", tp4, bf16)
    assert r.rc == 1 and "compared with param of the first" in r.out and "is f32 [" in r.out and "bf16" in r.out, repr(r)


def test_an_infinity_is_near_no_number(tmp_path):
    """rtol times it is infinite, so the formula alone would hold for every number."""
    def write(name, values):
        data = np.array(values, "<f4").tobytes()
        head = json.dumps({"w": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]}}).encode()
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
        return tmp_path / name
    a, b = write("a", [1, 2, -np.inf]), write("b", [1, np.inf, -np.inf])
    near = write("near", [1.0001, np.inf, -np.inf])
    for one, other, rc in (a, b, 1), (b, a, 1), (b, near, 0), (near, b, 0):
        assert run("tp-ckpt", "diff", one, other, "--rtol", "1e-3").rc == rc, (one, other)


def test_numbers_of_64_bits_differ_in_their_last_bit(tmp_path):
    """A double does not have it."""
    for name, value in ("a", 2**62), ("b", 2**62 + 1):
        head = json.dumps({"w": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}).encode()
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(
            len(head).to_bytes(8, "little") + head + value.to_bytes(8, "little"))
    for tolerance, rc in ([], 1), (["--rtol", 0], 1), (["--atol", 1], 0):
        r = run("tp-ckpt", "diff", tmp_path / "a", tmp_path / "b", *tolerance)
        assert r.rc == rc and ("by at most 1\n" in r.out) == bool(rc), repr(r)


# ---- ls, show, choosing a step ---------------------------------------------------------------

def test_ls_shows_which_steps_are_complete_damaged_or_unfinished(tp4, tiny):
    make(tp4, tiny, "tp2", step=20)
    make(tp4, tiny, "tp2dp2zero1", step=30)
    (tp4 / "step-00000030/rank-00001.h5").unlink()
    (tp4 / "step-00000040.tmp-00112233").mkdir()
    entries = {e["name"]: e for e in json.loads(ok("tp-ckpt", "ls", "--json", tp4).out)}
    assert [e["complete"] for e in entries.values()] == [True, True, False, False]
    assert entries["step-00000020"]["layout"] == "tp2"
    assert "rank-00001.h5" in entries["step-00000030"]["reason"]
    text = ok("tp-ckpt", "ls", tp4).out
    assert len(re.findall(r"complete$", text, re.M)) == 2 and "step-00000040.tmp-" in text
    assert "step-00000010" in ok("tp-ckpt", "ls", tp4 / "step-00000010").out
    (tp4 / "step-00000010").rename(tp4 / ("long" * 60))
    assert ok("tp-ckpt", "ls", tp4 / ("long" * 60)).out.endswith("complete\n")


@pytest.mark.parametrize("verb", ["show", "verify", "digest"])
def test_a_root_whose_first_save_is_not_complete_has_no_damage(verb, tmp_path):
    """The save may be at work."""
    unfinished = tmp_path / "ckpt/step-00000040.tmp-00112233"
    unfinished.mkdir(parents=True)
    for path in str(tmp_path / "ckpt"), str(tmp_path / "ckpt") + "/":
        r = run("tp-ckpt", verb, path)
        assert r.rc == 2 and "%s: has no complete checkpoint" % (tmp_path / "ckpt") in r.err and r.out == "", repr(r)
    assert "left by an interrupted save" in ok("tp-ckpt", "ls", tmp_path / "ckpt").out
    assert run("tp-ckpt", "verify", unfinished).rc == 1  # what the user has named


def test_a_root_means_its_newest_complete_step_and_skipped_steps_are_named(tp4, tiny):
    make(tp4, tiny, "tp2", step=20)
    assert json.loads(ok("tp-ckpt", "show", "--json", tp4).out)["step"] == 20
    assert json.loads(ok("tp-ckpt", "show", "--json", tp4 / "latest").out)["step"] == 20
    assert json.loads(ok("tp-ckpt", "show", "--json", tp4, "--step", "10").out)["step"] == 10
    (tp4 / "step-00000020/rank-00001.h5").unlink()
    r = ok("tp-ckpt", "show", "--json", tp4)
    assert json.loads(r.out)["step"] == 10
    assert "rank-00001.h5" in r.err and "step-00000010" in r.err
    assert run("tp-ckpt", "show", tp4, "--step", "20").rc == 3
    assert run("tp-ckpt", "show", tp4, "--step", "30").rc == 2


@pytest.mark.parametrize("what", ["file", "link"])
def test_what_is_called_like_a_step_and_is_no_directory(what, tp4, tmp_path):
    """Such as a link to an archive that is not mounted. Nobody has removed it."""
    path = tp4 / "step-00000099"
    path.symlink_to(tmp_path / "archive") if what == "link" else path.touch()
    r = ok("tp-ckpt", "show", tp4)
    assert "step-00000099: is not a directory" in r.err and "falling back to step-00000010" in r.err, repr(r)
    r = run("tp-ckpt", "verify", tp4)
    assert r.rc == 1 and "step-00000099/manifest.json: no such file" in r.out and not "removed" in r.out + r.err, repr(r)


def test_show_as_json_has_a_config_that_is_not_json_as_a_text(tp4):
    """Other programs may write anything there: Python writes Infinity, which JSON does not have."""
    step = tp4 / "step-00000010"
    lines = (step / "manifest.json").read_text().splitlines(True)
    for config in '{"rope_scale": Infinity}', "a model":
        sign(step, "".join('"model_config": %s,\n' % json.dumps(config) if l.startswith('"model_config"') else l
                           for l in lines))
        shown = json.loads(ok("tp-ckpt", "show", "--json", tp4).out)
        assert shown["model_config"] == config and shown["step"] == 10


def test_show_prints_where_the_bytes_of_a_tensor_are(tp4):
    step = tp4 / "step-00000010"
    name = "model.layers.1.mlp.down_proj.weight"
    js = json.loads(ok("tp-ckpt", "show", "--json", tp4, "exp_avg/" + name).out)
    assert len(js["tensors"]) == 1 and len(js["boxes"]) == 4
    rc, _, err = reader(step, tp4.parent / "all.npz")
    whole = np.load(tp4.parent / "all.npz")["exp_avg/" + name]
    for b in js["boxes"]:
        values = np.fromfile(step / b["file"], "<f4", b["bytes"] // 4, offset=b["offset"])
        box = tuple(slice(lo, lo + n) for lo, n in zip(b["lo"], b["len"]))
        assert np.array_equal(values.reshape(b["len"]), whole[box])
    assert len(json.loads(ok("tp-ckpt", "show", "--json", tp4, name).out)["tensors"]) == 3
    r = run("tp-ckpt", "show", tp4, "no.such.tensor")
    assert r.rc == 2 and "no.such.tensor" in r.err


def test_every_verb_has_help(tp4):
    for verb in ["ls", "show", "verify", "digest", "diff", "export", "import", "prune"]:
        r = ok("tp-ckpt", verb, "--help")
        assert r.out.startswith("usage: tp-ckpt " + verb) and not r.err
        assert run("tp-ckpt", verb, "--nonsense").rc == 2
    r = run("tp-ckpt", "verfy")
    assert r.rc == 2 and "verfy" in r.err


def test_a_step_directory_can_be_moved_and_copied(tp4, tmp_path):
    shutil.copytree(tp4 / "step-00000010", tmp_path / "kept")
    ok("tp-ckpt", "verify", tmp_path / "kept")
    (tp4 / "step-00000010").rename(tp4 / "step-00000011")
    r = run("tp-ckpt", "verify", tp4)
    assert r.rc == 1 and "step 10" in r.out


# ---- verify ----------------------------------------------------------------------------------

def damaged(root, *words):
    """verify must exit with 1, print these words in its findings, and end with a summary."""
    r = run("tp-ckpt", "verify", root)
    assert r.rc == 1, r
    assert r.out.splitlines()[-1].startswith("damaged: "), r
    for word in words:
        assert word in r.out, r
    js = run("tp-ckpt", "verify", "--json", root)
    assert js.rc == 1 and json.loads(js.out)["findings"] and not json.loads(js.out)["ok"]
    return r


def flip(path, at, bit=0):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1 << bit]))


def test_verify_prints_one_line_for_an_intact_checkpoint(made):
    for root in made.values():
        r = ok("tp-ckpt", "verify", root, "--jobs", "3")
        assert len(r.out.splitlines()) == 1 and r.out.startswith("intact: ")
    js = json.loads(ok("tp-ckpt", "verify", "--json", made["tp8"]).out)
    assert js["ok"] and js["findings"] == [] and js["shards"] == 8


def test_verify_names_every_damaged_box(tp4):
    step = tp4 / "step-00000010"
    rng = random.Random(7)
    hit = []
    for shard in ("rank-00000.h5", "rank-00003.h5"):
        tensor, offset, size = rng.choice(rows_of(step, shard))
        flip(step / shard, offset + rng.randrange(size), rng.randrange(8))
        hit += [shard, "%s/%s" % (tensor["group"], tensor["name"])]
    r = damaged(tp4, *hit, "CRC32C", "expected")
    assert "2 findings" in r.out


def test_verify_finds_a_flip_in_any_byte_of_a_shard(tp4):
    path = tp4 / "step-00000010/rank-00002.h5"
    rng = random.Random(11)
    for _ in range(40):
        at, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
        flip(path, at, bit)
        damaged(tp4, "rank-00002.h5")
        flip(path, at, bit)
    ok("tp-ckpt", "verify", tp4)


def accept_shard(step, name):
    """Write the size and checksum of a shard to the manifest after a change outside its payloads."""
    data = (step / name).read_bytes()
    entry = next(e for e in manifest(step)["shards"] if e["file"] == name)
    rest, at = hashlib.sha256(), 0
    for offset, size in sorted((offset, size) for _, offset, size in rows_of(step, name, data)):
        rest.update(data[at:offset])
        at = offset + size
    rest.update(data[at:])
    text = (step / "manifest.json").read_text()
    line = next(s for s in text.splitlines() if '"file": "%s"' % name in s)
    new = line.replace(entry["meta_sha256"], rest.hexdigest()).replace(
        '"size_bytes": %d' % entry["size_bytes"], '"size_bytes": %d' % len(data))
    sign(step, text.replace(line, new))


def test_verify_finds_a_wrong_hdf5_signature_even_with_right_checksums(tp4):
    step = tp4 / "step-00000010"
    with open(step / "rank-00001.h5", "r+b") as f:
        f.write(b"not HDF5")
    accept_shard(step, "rank-00001.h5")
    damaged(tp4, "rank-00001.h5", "HDF5 signature")


def test_the_independent_reader_finds_a_dataset_with_another_name(tp4):
    """tp-ckpt verify does not interpret HDF5 structures, as its help says; h5py does."""
    step = tp4 / "step-00000010"
    path = step / "rank-00001.h5"
    with h5py.File(path, "r+") as f:
        f["param"].move(sorted(f["param"])[0], "renamed")
    accept_shard(step, path.name)
    ok("tp-ckpt", "verify", tp4)
    rc, _, err = reader(step)
    assert rc == 1 and "missing" in err, err


def test_verify_finds_shards_of_another_step(tp4, tiny):
    make(tp4, tiny, "tp4", step=20, seed=2)
    a, b = (tp4 / s / "rank-00001.h5" for s in ("step-00000010", "step-00000020"))
    shutil.copy(a, b)
    damaged(tp4, "rank-00001.h5", "another save")


def test_verify_finds_extra_and_missing_shards(tp4):
    step = tp4 / "step-00000010"
    shutil.copy(step / "rank-00001.h5", step / "rank-00009.h5")
    damaged(tp4, "rank-00009.h5")
    (step / "rank-00009.h5").unlink()
    (step / "README.txt").write_text("other files are ignored\n")
    ok("tp-ckpt", "verify", tp4)
    (step / "rank-00001.h5").unlink()
    damaged(tp4, "rank-00001.h5", "missing")


def test_a_shard_that_the_manifest_does_not_list_leaves_boxes_missing(tp4):
    step = tp4 / "step-00000010"
    m = manifest(step)
    text = (step / "manifest.json").read_text()
    line = next(s for s in text.splitlines() if '"file": "rank-00002.h5"' in s)
    sign(step, text.replace(line + "\n", ""))
    assert len(manifest(step)["shards"]) == len(m["shards"]) - 1
    damaged(tp4, "are in no shard", "rank-00002.h5")
    assert run("tp-ckpt", "diff", tp4, tp4).rc == 3


@pytest.mark.parametrize("old,new,word", [
    ('"rank-00000.h5"', '"../rank-00000.h5"', "../rank-00000.h5"),
    ('"rank-00000.h5"', '"/etc/passwd"', "/etc/passwd"),
    ('"version": 2', '"version": 7', "version 7"),
    ('"index_rows": ', '"index_rows": 99999999', "index_rows"),
    ('"size_bytes": ', '"size_bytes": 1', "bytes"),
    ('"step": 10', '"step": 11', "step"),
])
def test_false_members_in_a_manifest_with_the_right_checksum_are_refused(old, new, word, tp4):
    step = tp4 / "step-00000010"
    text = (step / "manifest.json").read_text()
    assert old in text
    sign(step, text.replace(old, new, 1))
    damaged(tp4, word)
    for verb in ["show", "digest"]:
        r = run("tp-ckpt", verb, tp4)
        assert r.rc == 3 and word in r.err and len(r.lines) == 1, r


def test_a_checkpoint_of_version_1_is_read(tp4):
    step = tp4 / "step-00000010"
    before = ok("tp-ckpt", "digest", tp4).out
    sign(step, (step / "manifest.json").read_text().replace('"version": 2', '"version": 1', 1))
    assert manifest(step)["version"] == 1
    ok("tp-ckpt", "verify", tp4)
    assert ok("tp-ckpt", "digest", tp4).out == before
    assert reader(step)[0] == 0


@pytest.mark.parametrize("what", ["fifo", "link", "folder"])
def test_a_shard_that_is_not_a_regular_file_is_refused_without_blocking(what, tp4):
    path = tp4 / "step-00000010/rank-00001.h5"
    moved = path.rename(tp4 / "moved.h5")
    if what == "fifo":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to(moved)
    else:
        path.mkdir()
    r = run("tp-ckpt", "verify", tp4, timeout=20)
    assert r.rc == 1 and "rank-00001.h5" in r.out
    r = run("tp-ckpt", "digest", tp4, timeout=20)
    assert r.rc == 3 and "rank-00001.h5" in r.err


def test_a_folder_that_is_not_a_checkpoint_is_refused_and_unchanged(tmp_path):
    folder = harness.copy(harness.REPO / "ckpt", tmp_path / "ckpt")
    before = harness.tree(folder)
    for argv in (["ls"], ["show"], ["verify"], ["digest"], ["prune", "--keep", "1"]):
        r = run("tp-ckpt", argv[0], folder, *argv[1:])
        assert r.rc == 2 and len(r.lines) == 1 and str(folder) in r.err, r
    assert harness.tree(folder) == before


# ---- prune -----------------------------------------------------------------------------------

def test_prune_keeps_the_newest_steps_and_every_kth(tp4, tiny):
    for step in (20, 30, 40, 50):
        make(tp4, tiny, "tp1", step=step)
    (tp4 / "step-00000045.tmp-dead").mkdir()
    before = harness.tree(tp4)
    assert ok("tp-ckpt", "prune", tp4, "--keep", 1, "--keep-every", 20, "--dry-run").out.count(
        "would delete") == 3
    assert harness.tree(tp4) == before
    r = ok("tp-ckpt", "prune", tp4, "--keep", 1, "--keep-every", 20)
    assert "kept 3 intact steps" in r.out and r.err == "", repr(r)  # progress is of one step, so it is not a result
    assert [p.name for p in harness.steps(tp4)] == [
        "step-00000020", "step-00000040", "step-00000050"]
    assert not list(tp4.glob("*.tmp-*"))
    for bad in (["--keep", "0"], []):
        assert run("tp-ckpt", "prune", tp4, *bad).rc == 2


def flip_payload(step, seed):
    """Flip a bit of a random payload of a step. Returns the name of the shard."""
    rng = random.Random(seed)
    shard = rng.choice(manifest(step)["shards"])["file"]
    _, offset, size = rng.choice(rows_of(step, shard))
    data = bytearray((step / shard).read_bytes())
    data[offset + rng.randrange(size)] ^= 1 << rng.randrange(8)
    (step / shard).write_bytes(data)
    return shard


def test_prune_never_removes_the_last_intact_step(tp4, tiny):
    print("TP_SEED=%d" % SEED)
    for step in (20, 30, 40):
        make(tp4, tiny, "tp4", step=step)
    shards = {step: flip_payload(tp4 / ("step-%08d" % step), SEED + step) for step in (20, 30, 40)}
    for argv in (["--dry-run"], []):
        r = ok("tp-ckpt", "prune", tp4, "--keep", 1, *argv)
        for step in (20, 30, 40):
            line, = [x for x in r.out.splitlines() if x.startswith("damaged step-%08d" % step)]
            assert shards[step] in line and "does not count" in line
        assert "kept 1 intact step: every checksum verified" in r.out
        assert r.out.splitlines()[-1].startswith("0 entries")
    assert [p.name for p in harness.steps(tp4)] == ["step-%08d" % s for s in (10, 20, 30, 40)]
    make(tp4, tiny, "tp4", step=50)
    make(tp4, tiny, "tp4", step=60)
    flip_payload(tp4 / "step-00000060", SEED)
    r = ok("tp-ckpt", "prune", tp4, "--keep", 1)  # 60 is damaged; 50 is kept; nobody needs to read 10
    assert "delete step-00000010\n" in r.out and "damaged step-00000060" in r.out
    assert "step-00000010" not in [p.name for p in harness.steps(tp4)]
    ok("tp-ckpt", "verify", tp4 / "step-00000050")


def test_prune_without_an_intact_step_deletes_nothing(tp4, tiny):
    make(tp4, tiny, "tp4", step=20)
    (tp4 / "step-00000045.tmp-dead").mkdir()
    for step in (10, 20):
        flip_payload(tp4 / ("step-%08d" % step), SEED + step)
    before = harness.tree(tp4)
    r = run("tp-ckpt", "prune", tp4, "--keep", 1)
    assert r.rc == 3 and "no step is intact, so nothing was deleted" in r.err
    assert r.out.count("damaged step-") == 2
    r = run("tp-ckpt", "prune", tp4, "--keep", 1, "--json")
    assert json.loads(r.out)["exit"] == 3 and r.err.count(" is damaged: ") == 2
    assert harness.tree(tp4) == before


def test_prune_verifies_what_keep_every_keeps(tp4, tiny):
    for step in (20, 30, 40):
        make(tp4, tiny, "tp4", step=step)
    flip_payload(tp4 / "step-00000020", SEED)
    r = ok("tp-ckpt", "prune", tp4, "--keep", 1, "--keep-every", 20)
    assert "damaged step-00000020" in r.out and "kept 1 intact step" in r.out
    assert [p.name for p in harness.steps(tp4)] == ["step-00000020", "step-00000040"]


def test_prune_without_verification_says_so(tp4, tiny):
    for step in (20, 30):
        make(tp4, tiny, "tp4", step=step)
    flip_payload(tp4 / "step-00000020", SEED)
    os.truncate(tp4 / "step-00000030/rank-00001.h5", 5000)
    r = ok("tp-ckpt", "prune", tp4, "--keep", 1, "--no-verify")
    assert "kept 1 intact step: not verified (--no-verify)" in r.out
    assert "damaged step-00000030" in r.out and "delete step-00000010" in r.out


def damage_step(rng, step):
    """Damage a step in one of four ways. Returns which."""
    kind = rng.choice(["flipped payload", "flipped manifest", "truncated shard", "missing shard"])
    shard = rng.choice(sorted(step.glob("rank-*.h5")))
    if kind == "flipped payload":
        flip_payload(step, rng.random())
    elif kind == "flipped manifest":
        data = bytearray((step / "manifest.json").read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (step / "manifest.json").write_bytes(data)
    elif kind == "truncated shard":
        os.truncate(shard, rng.randrange(shard.stat().st_size))
    else:
        shard.unlink()
    return kind


def test_prune_keeps_an_intact_step_whatever_is_damaged(tp4, tiny, tmp_path, figure):
    """Five steps of which any are damaged: exactly the newest intact ones that --keep asks for remain."""
    rng, tries = random.Random(SEED), 200 if harness.LONG else 20
    print("TP_SEED=%d" % SEED)
    for step in (20, 30, 40, 50):
        make(tp4, tiny, "tp4", step=step)
    for i in range(tries):
        root = harness.copy(tp4, tmp_path / ("try-%d" % i))
        names, keep = [s.name for s in harness.steps(root)], rng.randint(1, 3)
        what = {n: damage_step(rng, root / n) for n in names if rng.random() < 0.5}
        intact = [n for n in names if n not in what]
        r = run("tp-ckpt", "prune", root, "--keep", keep, "--json")
        left = [s.name for s in harness.steps(root)]
        assert r.rc == (0 if intact else 3), (i, what, repr(r))
        assert [n for n in left if n in intact] == intact[-keep:], (i, keep, what, left)
        o = json.loads(r.out)
        if intact:
            assert o["kept"] == len(intact[-keep:]) and sorted(o["deleted"] + left) == names, (i, what, o)
            assert {d["name"] for d in o["damaged"]} <= set(what)
        else:
            assert o["exit"] == 3 and "no step is intact" in o["error"] and left == names
        shutil.rmtree(root)
    figure("roots with damaged steps that prune left with their newest intact steps", "%d of %d" % (tries, tries))


# ---- manifests that contradict the shards ------------------------------------------------------

def test_resume_refuses_a_contradiction_in_tensors_that_it_does_not_read(tiny, tmp_path):
    """In bf16 the masters are read, not the weights. verify and resume refuse the same."""
    root = tmp_path / "ckpt"
    harness.train(tiny, root, steps=2, layout="tp2", dtype="bf16")
    step = root / "step-00000002"
    text = (step / "manifest.json").read_text()
    line, = [x for x in text.splitlines() if '"name": "model.norm.weight"' in x and '"group": "param"' in x]
    sign(step, text.replace(line, line.replace('"shape": [64]', '"shape": [65]')))
    assert manifest(step)["tensors"] != json.loads(text)["tensors"]
    damaged(root, "param/model.norm.weight")
    before = harness.tree(step)
    r = run(*harness.train_args(tiny, root, steps=4, layout="tp2", dtype="bf16", resume=True))
    assert r.rc == 3 and "param/model.norm.weight has 64 elements" in r.err, r
    assert harness.tree(step) == before
