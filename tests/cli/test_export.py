"""tp-ckpt export and import: the safetensors files hold exactly the tensors of the checkpoint.

needs: tp-train tp-ckpt tp-reshard make_ckpt fault/shim.so
covers: cli/ckpt/cmd_export cli/ckpt/cmd_import cli/copy_options reshard/export_job reshard/export_folder
"""
import json
import os
import random
import re
import struct
import sys

import numpy as np
import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
import naive_reshard
from test_faults import Shim
from test_reshard import make, random_config, random_spec, step_dir

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
TYPES = {"F32": "u4", "BF16": "u2", "F16": "u2"}


def read_safetensors(path):
    """{name: (dtype, bits)} of a file. Also checks the rules of the format."""
    data = path.read_bytes()
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    assert header.pop("__metadata__") == {"format": "pt"} and n % 8 == 0
    tensors, at = {}, 0
    for name, t in sorted(header.items(), key=lambda x: x[1]["data_offsets"]):
        lo, hi = t["data_offsets"]
        assert lo == at, "a gap before " + name
        at = hi
        bits = np.frombuffer(data[8 + n + lo:8 + n + hi], TYPES[t["dtype"]])
        tensors[name] = t["dtype"], bits.reshape(t["shape"])
    assert 8 + n + at == len(data)
    return tensors


def read_folder(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, t in read_safetensors(path).items():
            assert name not in tensors
            tensors[name] = t
    return tensors


def weights(root, group="param"):
    _, types, whole, _ = naive_reshard.assemble(step_dir(root))
    return {name: (types[g, name], bits) for (g, name), bits in whole.items() if g == group}


def export(root, out, *more):
    return json.loads(harness.ok("tp-ckpt", "export", root, "-o", out, "--json", *more).out)


def assert_same(got, want):
    assert list(sorted(got)) == list(sorted(want))
    for name in want:
        assert got[name][0].lower() == want[name][0]
        assert np.array_equal(got[name][1], want[name][1]), name


@pytest.mark.parametrize("n", range(20 if harness.LONG else 4))
def test_any_layout_exports_the_same_whole_tensors(n, tmp_path):
    rng = random.Random(SEED + n)
    config = random_config(rng)
    spec = random_spec(rng, config)
    print("TP_SEED=%d: %s of %s" % (SEED + n, spec, config))
    root = make(tmp_path, spec, config, seed=n, dtype=rng.choice(["bf16", "fp32"]))
    before = harness.tree(root)
    size = rng.choice([1, 1000, 10000, 5 << 30])
    result = export(root, tmp_path / "hf", "--max-shard-size", size)
    assert_same(read_folder(tmp_path / "hf"), weights(root))
    assert result["digests_equal"] == result["tensors"]
    assert harness.tree(root) == before

    spec = random_spec(rng, config)
    harness.ok("tp-ckpt", "import", tmp_path / "hf", "--layout", spec, "-o", tmp_path / "again")
    harness.ok("tp-ckpt", "verify", tmp_path / "again")
    export(tmp_path / "again", tmp_path / "hf2", "--max-shard-size", size)
    for path in (tmp_path / "hf").iterdir():
        assert path.read_bytes() == (tmp_path / "hf2" / path.name).read_bytes(), path.name


def test_many_files_have_an_index_that_names_every_tensor(tmp_path):
    root = make(tmp_path, "tp2")
    out = tmp_path / "hf"
    result = export(root, out, "--max-shard-size", "20k")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(p.name for p in out.glob("*.safetensors"))
    assert files == ["model-%05d-of-%05d.safetensors" % (i + 1, len(files))
                     for i in range(len(files))]
    assert len(files) == result["files"] > 2
    total = 0
    for name in files:
        tensors = read_safetensors(out / name)
        size = sum(bits.nbytes for _, bits in tensors.values())
        assert size <= 20 << 10 or len(tensors) == 1
        total += size
        for tensor in tensors:
            assert index["weight_map"].pop(tensor) == name
    assert not index["weight_map"] and index["metadata"]["total_size"] == total


def test_f32_weights_are_the_masters(tmp_path):
    root = make(tmp_path, "tp4", dtype="bf16")
    export(root, tmp_path / "hf", "--dtype", "f32")
    assert_same(read_folder(tmp_path / "hf"), weights(root, "master"))


def test_a_cast_is_a_cast_of_the_trained_weights(tmp_path):
    root = make(tmp_path, "tp4", dtype="bf16")
    export(root, tmp_path / "hf", "--dtype", "f16")
    got = read_folder(tmp_path / "hf")
    for name, (_, bits) in weights(root).items():
        with np.errstate(over="ignore"):
            want = (bits.astype("u4") << 16).view("f4").astype("f2").view("u2")
        assert np.array_equal(got[name][1], want), name


def test_config_has_the_members_of_transformers_4_and_5(tmp_path):
    root = make(tmp_path, "tp2", {"rope_theta": 500000.0}, dtype="bf16")
    export(root, tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    given = json.loads((tmp_path / "config.json").read_text())
    assert {k: config[k] for k in given} == given
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert config["rope_parameters"] == {"rope_theta": 500000.0, "rope_type": "default"}
    export(root, tmp_path / "hf32", "--dtype", "f32")
    assert json.loads((tmp_path / "hf32/config.json").read_text())["dtype"] == "float32"


def test_assets_are_copied_unchanged(tmp_path):
    root = make(tmp_path, "tp2")
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja", "tekken.json"):
        (assets / name).write_bytes(os.urandom(100))
    (assets / "config.json").write_text("{}")
    (assets / "model.safetensors").write_text("not this one")
    more = assets / "additional_chat_templates"
    more.mkdir()
    for name in ("rag.jinja", "tool_use.jinja", "notes.txt"):
        (more / name).write_bytes(os.urandom(100))
    export(root, tmp_path / "hf", "--assets", assets)
    assert sorted(p.name for p in (tmp_path / "hf" / more.name).iterdir()) == ["rag.jinja", "tool_use.jinja"]
    for name in ("rag.jinja", "tool_use.jinja"):
        assert (tmp_path / "hf" / more.name / name).read_bytes() == (more / name).read_bytes()
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja", "tekken.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (assets / name).read_bytes()
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == "llama"
    assert len(read_folder(tmp_path / "hf")) > 3
    r = harness.run("tp-ckpt", "export", root, "-o", tmp_path / "none", "--assets", root)
    assert r.rc == 2 and "tokenizer" in r.err
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("none")]


def test_a_folder_of_links_is_a_model(tmp_path):
    """In the cache of Hugging Face, a snapshot is a folder of links to the files in `blobs`."""
    root = make(tmp_path, "tp2")
    export(root, tmp_path / "blobs", "--max-shard-size", 4096)
    (tmp_path / "blobs/tokenizer.json").write_text("{}")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (snapshot / path.name).symlink_to("../blobs/" + path.name)
    (tmp_path / "text").symlink_to(harness.TEXT)
    harness.ok("tp-ckpt", "import", snapshot, "-o", tmp_path / "in", "--layout", "tp2")
    export(tmp_path / "in", tmp_path / "again", "--assets", snapshot)
    assert_same(read_folder(tmp_path / "again"), weights(root))
    assert not (tmp_path / "again/tokenizer.json").is_symlink()
    losses = []
    for n, folder in enumerate((snapshot, tmp_path / "blobs")):
        log = tmp_path / str(n)
        harness.ok("tp-train", "--model", folder, "--data", tmp_path / "text", "--steps", 1,
                   "--seq", 8, "--log", log)
        losses.append(harness.losses(log))
    assert losses[0] == losses[1]


def test_force_replaces_an_export_and_nothing_else(tmp_path):
    root = make(tmp_path, "tp2")
    out = tmp_path / "hf"
    export(root, out)
    before = harness.tree(out)
    r = harness.run("tp-ckpt", "export", root, "-o", out)
    assert r.rc == 2 and "exists already; --force replaces it" in r.err, repr(r)
    assert harness.tree(out) == before
    export(root, out, "--force", "--dtype", "f32")
    assert harness.tree(out) != before
    assert not list(tmp_path.glob("*.tmp*"))


def test_force_does_not_replace_the_source(tmp_path):
    hf = tmp_path / "hf"
    export(make(tmp_path, "tp2"), hf)
    (hf / "notes").write_text("not in any output")
    (tmp_path / "link").symlink_to(hf)
    before = harness.tree(hf)
    for source, out in (hf, hf), (hf, tmp_path / "link"), (tmp_path / "link", hf):
        for form in "safetensors", "dcp":
            r = harness.run("tp-reshard", source, "--to", "tp1", "--format", form, "-o", out, "--force")
            assert r.rc == 2 and "is the source" in r.err, repr(r)
            assert harness.tree(hf) == before
    harness.ok("tp-reshard", hf, "--to", "tp1", "-o", tmp_path / "hf2")
    harness.ok("tp-reshard", hf, "--to", "tp1", "-o", tmp_path / "hf2", "--force")


@pytest.mark.parametrize("files,says", [
    (["thesis.tex"], "has no config.json, .* it has thesis.tex;"),
    (["model.safetensors", "thesis.tex"], "has no config.json, .* it has model.safetensors, thesis.tex;"),
    (["config.json", "src.c", "notes", "a", "e\x1b[1m"],
     r"has config.json but no weights, .* it has a, config.json, e\?\[1m and 2 more;"),
    ([".safetensors", "config.json"], "has config.json but no weights"),
], ids=["no model", "weights alone", "a program with config.json", "an extension alone"])
def test_force_does_not_replace_what_is_not_a_models_folder(files, says, tmp_path):
    root, home = make(tmp_path, "tp1"), tmp_path / "home"
    home.mkdir()
    for name in files:
        (home / name).write_text("years of work")
    before = harness.tree(home)
    for force in ["--force"], []:  # without it, it is not offered
        r = harness.run("tp-ckpt", "export", root, "-o", home, *force)
        assert r.rc == 2 and re.search(says, r.err) and "--force does not replace it" in r.err, repr(r)
    assert harness.tree(home) == before and not list(tmp_path.glob("*.tmp*"))


def test_force_does_not_replace_a_file(tmp_path):
    root = make(tmp_path, "tp1")
    (tmp_path / "out").write_text("years of work")
    for force in ["--force"], []:
        r = harness.run("tp-ckpt", "export", root, "-o", tmp_path / "out", *force)
        assert r.rc == 2 and "is not a folder" in r.err and (tmp_path / "out").read_text() == "years of work"


def test_a_config_of_another_model_is_an_error_that_names_the_tensor(tmp_path):
    root = make(tmp_path, "tp2")
    export(root, tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    config["num_hidden_layers"] += 1
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    r = harness.run("tp-ckpt", "import", tmp_path / "hf", "-o", tmp_path / "b")
    assert r.rc == 3 and "model.layers.2." in r.err and "missing" in r.err
    config["num_hidden_layers"] -= 2
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    r = harness.run("tp-ckpt", "import", tmp_path / "hf", "-o", tmp_path / "b")
    assert r.rc == 2 and "9 tensors are of layers" in r.err and "config.json, which has 1 layer: " in r.err, repr(r)
    config["num_hidden_layers"] += 1
    config["hidden_size"] = 128
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    r = harness.run("tp-ckpt", "import", tmp_path / "hf", "-o", tmp_path / "b")
    assert r.rc == 3 and "is [256, 64], but the model of config.json has [256, 128]" in r.err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("format", ["onnx", "nonsense"])
def test_unknown_formats_are_refused(format, tmp_path):
    root = make(tmp_path, "tp1")
    r = harness.run("tp-ckpt", "export", root, "-o", tmp_path / "x", "--format", format)
    assert r.rc == 2 and format in r.err and not (tmp_path / "x").exists()
    r = harness.run("tp-ckpt", "import", root, "-o", tmp_path / "x", "--format", format)
    assert r.rc == 2 and format in r.err


def test_an_unknown_format_is_refused_with_the_list(tmp_path):
    r = harness.run("tp-ckpt", "export", make(tmp_path, "tp1"), "-o", tmp_path / "out", "--format", "onnx")
    assert r.rc == 2 and "unknown format 'onnx'" in r.err and "safetensors" in r.err
    assert not (tmp_path / "out").exists()


def test_killed_exports_and_imports_leave_nothing_behind_the_next_run(tmp_path, figure):
    """Kill each at a change of a file; then a run into the same output removes what was left."""
    rng = random.Random(SEED)
    print("TP_SEED=%d" % SEED)
    root = make(tmp_path / "source", "tp2")
    work = tmp_path / "work"
    work.mkdir()
    left = 0
    for name, argv, out in (
            ("export", ["tp-ckpt", "export", root, "-o", work / "hf", "--force"], work / "hf"),
            ("import", ["tp-ckpt", "import", tmp_path / "hf", "-o", work / "again", "--force"],
             work / "again")):
        shim = Shim(tmp_path, work)
        harness.ok("tp-ckpt", "export", root, "-o", tmp_path / "hf", "--force")
        status, err = shim.run(argv)
        assert status == 0, err
        points = range(1, len(shim.points()) + 1)
        before = sorted(p.name for p in out.iterdir() if p.name != "lock")
        for at in points if harness.LONG else rng.sample(points, 5):
            shim.run(argv, at, "kill")
            left += sum(".tmp-" in str(p) for p in work.rglob("*"))
            harness.ok(*argv)
            found = [p for p in work.rglob("*") if ".tmp" in p.name or p.name == "progress"]
            assert not found, "%s killed at point %d: %s" % (name, at, found)
            assert sorted(p.name for p in out.iterdir() if p.name != "lock") == before
    assert left > 0
    figure("files that killed exports and imports left, and the next run removed", left)


@pytest.mark.parametrize("exists", [True, False])
def test_an_export_whose_new_name_may_not_be_on_the_disk_keeps_what_was_there(tmp_path, exists):
    """The last fsync, of the folder above, fails."""
    work, out = tmp_path / "work", tmp_path / "work" / "hf"
    work.mkdir()
    argv = ["tp-ckpt", "export", make(tmp_path / "new", "tp2", seed=2), "-o", out, "--force"]
    if exists:
        harness.ok("tp-ckpt", "export", make(tmp_path / "old", "tp2", seed=1), "-o", out)
    before = harness.tree(work)
    shim = Shim(tmp_path, work)
    assert shim.run(argv)[0] == 0
    last = [line.split(" ", 2) for line in shim.log.read_text().splitlines()
            if line.split(" ", 2)[1:] == ["fsync", str(work)]][-1]
    harness.ok("rm", "-rf", out)
    if exists:
        harness.ok("tp-ckpt", "export", tmp_path / "old" / "ckpt", "-o", out)
    status, err = shim.run(argv, int(last[0]), "eio")
    assert status == 3 and "fsync failed" in err
    assert harness.tree(work) == before


def test_a_sync_of_a_file_or_folder_that_fails_leaves_nothing(tmp_path):
    """Of a format with a folder for each tensor: its files and folders are synced by several threads."""
    work, rng = tmp_path / "work", random.Random(SEED)
    print("TP_SEED=%d" % SEED)
    work.mkdir()
    argv = ["tp-ckpt", "export", make(tmp_path, "tp2"), "-o", work / "out", "--format", "deepspeed"]
    shim = Shim(tmp_path, work)
    assert shim.run(argv)[0] == 0
    calls = [line.split(" ", 2) for line in shim.log.read_text().splitlines()]
    syncs = {path: int(number) for number, call, path in calls if call == "fsync"}
    folders = {os.path.dirname(path) for path in syncs if path.endswith(".pt")}
    assert len(folders) > 5 and folders < set(syncs), "each folder of a file is synced"
    for path in (rng.choice(sorted(set(syncs) - folders)), rng.choice(sorted(folders))):
        harness.ok("rm", "-rf", work / "out")
        status, err = shim.run(argv, syncs[path], "eio")
        assert status == 3 and "fsync failed" in err and not list(work.iterdir()), (path, err)


def test_every_checked_line_says_what_was_proved(tmp_path):
    root = make(tmp_path, "tp2", dtype="bf16")
    n = len(weights(root))

    def checked(*argv):
        line, = [x for x in harness.ok(*argv).out.splitlines() if x.startswith("checked")]
        return " ".join(line.split())

    assert checked("tp-ckpt", "export", root, "-o", tmp_path / "same") == (
        "checked every checksum of the source; %d tensors, digests equal" % n)
    assert checked("tp-ckpt", "export", root, "-o", tmp_path / "cast", "--dtype", "f16") == (
        "checked every checksum of the source; %d tensors cast, digests equal to the cast of what "
        "was read" % n)
    assert checked("tp-ckpt", "import", tmp_path / "same", "-o", tmp_path / "i") == (
        "checked %d tensors, digests equal (SRC has no checksums)" % n)
    assert "%d tensors cast, digests equal to the cast of what was read (" % n in checked(
        "tp-ckpt", "import", tmp_path / "same", "-o", tmp_path / "j", "--dtype", "f32")
    line = checked("tp-reshard", root, "--to", "tp4", "-o", tmp_path / "k", "--dtype", "f32")
    assert line == ("checked every checksum of the source; %d tensors, digests equal; %d tensors "
                    "cast, digests equal to the cast of what was read" % (3 * n, n))
    result = json.loads(harness.ok("tp-reshard", root, "--to", "tp1", "-o", tmp_path / "l",
                                   "--dtype", "f32", "--json").out)
    assert result["casts"] == n and result["digests_equal"] == 3 * n
