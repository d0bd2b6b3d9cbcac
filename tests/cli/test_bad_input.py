"""Wrong requests and damaged input: the programs print one clear sentence, exit with the code of the
contract, and change nothing.

needs: tp-train tp-reshard tp-ckpt
"""
import contextlib
import json
import os
import random
import re
import shutil
import subprocess

import pytest

import harness
from harness import REPO, TEXT, TINY, ok, run, train_args, write_config

SEED = 20240611


def assert_sentence(r, program, *words):
    """The last line on stderr must be one sentence of the program, with these words."""
    assert r.lines, "printed no message: %r" % r
    last = r.lines[-1]
    assert last.startswith(program), repr(r)
    assert len(last) < 1100 and len(last.split()) >= 3, repr(r)
    for word in words:
        assert str(word) in last, "%r is missing in the sentence: %r" % (str(word), r)


def assert_refused(r, program, *words, rc=2):
    """A wrong request must give exactly one sentence, and no output."""
    assert r.rc == rc, repr(r)
    assert_sentence(r, program, *words)
    assert len(r.lines) == 1, "more than one sentence: %r" % r
    assert r.out == "", repr(r)


def reader_commands(ckpt, out):
    """(program, argv) of every command that reads a checkpoint."""
    return [
        ("tp-reshard", ["tp-reshard", ckpt, "--to", "tp4", "-o", out]),
        ("tp-ckpt", ["tp-ckpt", "show", ckpt]),
        ("tp-ckpt", ["tp-ckpt", "verify", ckpt]),
        ("tp-ckpt", ["tp-ckpt", "digest", ckpt]),
        ("tp-ckpt", ["tp-ckpt", "diff", ckpt, ckpt]),
        ("tp-ckpt", ["tp-ckpt", "export", ckpt, "--format", "safetensors", "-o", out]),
    ]


READERS = ["reshard", "show", "verify", "digest", "diff", "export"]
# These commands read every byte, so they must find every damage.
BYTE_READERS = ["reshard", "verify", "digest", "export"]


def reader(name, ckpt, out):
    return reader_commands(ckpt, out)[READERS.index(name)]


# ---- paths that are not checkpoints -----------------------------------------------------------


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("what", ["a source folder", "an empty folder", "nothing", "a file"])
def test_a_path_that_is_not_a_checkpoint_is_named(name, what, tmp_path):
    path = tmp_path / "there"
    if what == "a source folder":
        path = REPO / "ckpt"
    elif what == "an empty folder":
        path.mkdir()
    elif what == "a file":
        path.write_text("not a checkpoint\n")
    program, argv = reader(name, path, tmp_path / "out")
    before = harness.tree(tmp_path, REPO / "ckpt")
    assert_refused(run(*argv), program, path)
    assert harness.tree(tmp_path, REPO / "ckpt") == before


def test_ls_and_prune_refuse_paths_that_are_not_roots(tmp_path):
    for verb in (["ls"], ["prune", "--keep", "1"]):
        for path in (REPO / "ckpt", tmp_path / "absent"):
            r = run("tp-ckpt", verb[0], path, *verb[1:])
            assert_refused(r, "tp-ckpt", path)


def test_a_step_that_does_not_exist_is_named(ckpt, tmp_path):
    r = run("tp-reshard", ckpt, "--to", "tp4", "--step", 77, "-o", tmp_path / "out")
    assert_refused(r, "tp-reshard", "77")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["show", "verify", "digest", "diff"])
@pytest.mark.parametrize("kind", ["step", "moved", "damaged", "dcp"])
def test_a_checkpoint_of_another_step_is_refused(verb, kind, ckpt, tmp_path):
    """Whoever asks for a step must not get the answer for another one."""
    path = ckpt / "step-00000002"
    if kind == "moved":
        path = path.rename(tmp_path / "moved")
    elif kind == "dcp":
        ok("tp-ckpt", "export", ckpt, "--format", "dcp", "-o", tmp_path / "dcp")
        path = tmp_path / "dcp"
    argv = ["tp-ckpt", verb, path] + ([path] if verb == "diff" else [])
    ok(*argv, "--step", 2)
    if kind == "damaged" and verb == "verify":
        (path / "manifest.json").write_text("{}")
    assert_refused(run(*argv, "--step", 7), "tp-ckpt", path, "step 2, but step 7 was requested")


@pytest.mark.parametrize("argv", [
    ["tp-reshard", "CKPT", "--to", "tp4", "-o", "STEP"],
    ["tp-reshard", "CKPT", "--to", "tp4", "-o", "STEP", "--force"],
    ["tp-reshard", "CKPT", "--to", "tp4", "-o", "STEP", "--dry-run"],
    ["tp-ckpt", "import", "HF", "-o", "STEP"],
    ["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "3", "--ckpt", "STEP"],
    ["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "3", "--ckpt", "STEP", "--resume"],
], ids=lambda argv: " ".join(argv[:2] + argv[-1:]))
@pytest.mark.parametrize("name", ["step-00000002", "latest"])
def test_nothing_is_written_into_a_step(argv, name, ckpt, tiny, tmp_path):
    run("tp-ckpt", "export", ckpt, "-o", tmp_path / "hf")
    stand = {"CKPT": ckpt, "STEP": ckpt / name, "HF": tmp_path / "hf", "CONFIG": tiny}
    before = harness.tree(tmp_path)
    assert_refused(run(*[stand.get(a, a) for a in argv]), argv[0], ckpt / name, "is one step")
    assert harness.tree(tmp_path) == before


@pytest.mark.parametrize("argv", [
    ["tp-reshard", "CKPT", "--to", "tp4", "-o", "ROOT"],
    ["tp-reshard", "CKPT", "--to", "tp4", "-o", "ROOT/"],
    ["tp-ckpt", "import", "HF", "-o", "ROOT"],
    ["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "3", "--ckpt", "ROOT"],
], ids=lambda argv: " ".join(argv[:2] + argv[-1:]))
def test_a_root_must_not_have_the_name_of_a_step(argv, ckpt, tiny, tmp_path):
    """Readers take it for a step, so what was written would not be found."""
    run("tp-ckpt", "export", ckpt, "-o", tmp_path / "hf")
    root = "%s/new/step-00000005" % tmp_path
    stand = {"CKPT": ckpt, "ROOT": root, "ROOT/": root + "/", "HF": tmp_path / "hf", "CONFIG": tiny}
    assert_refused(run(*[stand.get(a, a) for a in argv]), argv[0], root, "has the name of a step")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("what", ["folder", "fifo"])
def test_logits_replaces_only_files(what, tiny, tmp_path):
    out = tmp_path / "out"
    out.mkdir() if what == "folder" else os.mkfifo(out)
    before = harness.tree(tmp_path)
    r = run("tp-train", "--model", tiny, "--data", TEXT, "--steps", 1, "--logits", out)
    assert_refused(r, "tp-train", "--logits", out)
    assert harness.tree(tmp_path) == before


@pytest.mark.parametrize("flag", ["--log", "--logits"])
@pytest.mark.parametrize("data, out", [
    ("text", "text"), ("bytes:text", "./text"), ("text", "link"), ("pair", "pair.bin"), ("pair.bin", "pair.idx"),
    ("text", "config.json")])
def test_what_is_trained_on_is_not_overwritten(flag, data, out, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("text", "pair.bin", "pair.idx"):
        shutil.copy(TEXT, name)
    shutil.copy(tiny, "config.json")
    os.link("text", "link")
    before = harness.tree(tmp_path)
    r = run("tp-train", "--model", "config.json", "--data", data, "--steps", 2, flag, out)
    assert_refused(r, "tp-train", "%s %s: is a file of --" % (flag, out))
    assert harness.tree(tmp_path) == before


@pytest.mark.parametrize("out", ["hf/model.safetensors", "./hf//config.json", "hf/model-00001-of-00002.safetensors", "link", "hard",
                                 "model.safetensors"])
@pytest.mark.parametrize("flag", ["--log", "--logits"])
def test_files_in_the_folder_of_a_model_are_not_overwritten(flag, out, ckpt, tmp_path, monkeypatch):
    run("tp-ckpt", "export", ckpt, "-o", tmp_path / "hf")
    os.symlink("hf/model.safetensors", tmp_path / "link")
    os.link(tmp_path / "hf/model.safetensors", tmp_path / "hard")
    monkeypatch.chdir(tmp_path if out != "model.safetensors" else tmp_path / "hf")
    model = "hf" if out != "model.safetensors" else "."
    before = harness.tree(tmp_path)
    r = run("tp-train", "--model", model, "--data", TEXT, "--steps", 1, flag, out)
    assert_refused(r, "tp-train", "%s %s: is a file of --model" % (flag, out))
    assert harness.tree(tmp_path) == before


def test_other_files_in_the_folder_of_a_model_may_be_written(ckpt, tmp_path):
    run("tp-ckpt", "export", ckpt, "-o", tmp_path / "hf")
    for _ in range(2):
        harness.ok("tp-train", "--model", tmp_path / "hf", "--data", TEXT, "--steps", 1, "--seq", 16, "--log", tmp_path / "hf/steps.jsonl",
                   "--logits", tmp_path / "hf/logits.safetensors")


# ---- wrong command lines ----------------------------------------------------------------------

WRONG_LINES = [
    (["tp-train", "--colour"], "--colour"),
    (["tp-train", "--model"], "--model"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT], "--steps"),
    (["tp-train", "--data", TEXT, "--steps", "1"], "--model"),
    (["tp-train", "--model", "CONFIG", "--steps", "1"], "--data"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "many"], "many"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "-3"], "-3"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "surplus"], "surplus"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--ckpt", ""], "--ckpt: the path of the checkpoint is empty"),
    (["tp-train", "--model", "CONFIG", "--data", "s3://b/text", "--steps", "1"], "--data s3://b/text: must be a local file"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--log", "s3://b/log"], "--log s3://b/log: must be a local file"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--log", "out", "--logits", "out"], "--log and --logits out:"),
    (["tp-reshard", "CKPT", "--to", "tp1", "-o", ""], "the path of the checkpoint is empty"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--lr", "nan"], "nan"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--eps", "1e-50"], "--eps 1e-50 must be more than 0"),
    *[(["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--" + option, "1e39"],
       "--%s 1e+39 is too large: fp32 ends at 3.40282e+38" % option) for option in ("lr", "min-lr", "eps", "weight-decay", "clip")],
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "2", "--ckpt", "x", "--exit-step", "0"],
     "--exit-step 0 stops after no step: give 1 or more, or leave it out"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--lr", "1e300"], "--lr 1e+300 is too large"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--lr", "1e38"], "divided by (1 - --beta1 0.9)"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--lr", "1e20", "--weight-decay", "1e20"],
     "times --weight-decay 1e+20"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--beta1", "0.99999999999"], "--beta1 0.99999999999 and --beta2 0.95 must be in [0, 1) in fp32"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--mem", "12Q"], "12Q"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--dtype", "f8"], "f8"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--device", "tpu"], "tpu"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--seq", "0"], "seq"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--batch", "0"], "batch"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--batch", "7",
      "--micro", "2"], "micro"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--keep", "2"], "--ckpt"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--ckpt-zstd"], "--ckpt-zstd need --ckpt"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--threads", "99999"], "between 1 and 1024"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--logits", "."], "--logits: .: exists"),
    (["tp-train", "--model", "CONFIG", "--data", TEXT, "--steps", "1", "--ckpt", TEXT], "not a directory"),
    (["tp-reshard"], "CKPT"),
    (["tp-train"], "--model"),
    (["tp-reshard", "CKPT"], "--to"),
    (["tp-reshard", "CKPT", "--to"], "--to"),
    (["tp-reshard", "CKPT", "--to", "--json"], "--to needs a value, but '--json' follows"),
    (["tp-ckpt", "export", "CKPT", "-o", "--force"], "--out needs a value, but '--force' follows"),
    (["tp-train", "--model", "CONFIG", "--data", "--steps", "1"], "--data needs a value, but '--steps' follows"),
    (["tp-reshard", "CKPT", "--to", "tp4", "--bogus"], "--bogus"),
    (["tp-reshard", "CKPT", "--to", "tp4", "--mem", "-1G"], "-1G"),
    (["tp-reshard", "CKPT", "--to", "tp4", "--dtype", "int4"], "int4"),
    (["tp-reshard", "CKPT", "--to", "tp4", "--step", "x"], "x"),
    (["tp-ckpt", "frobnicate", "CKPT"], "frobnicate"),
    (["tp-ckpt", "prune", "CKPT", "--keep", "1", "--jobs", "0"], "--jobs"),
    (["tp-ckpt", "show"], "CKPT"),
    (["tp-ckpt", "show", ""], "CKPT is empty"),
    (["tp-ckpt", "import", "", "-o", "OUT"], "SRC is empty"),
    (["tp-reshard", "CKPT", "--to", "tp1", "--from-format", "nope", "-o", "OUT"], "unknown format 'nope'"),
    (["tp-ckpt", "verify", "CKPT", "--quickly"], "--quickly"),
    (["tp-ckpt", "export", "CKPT", "-o", "OUT", "--format", "pickle"], "pickle"),
    (["tp-ckpt", "export", "CKPT", "--format", "safetensors"], "-o"),
    (["tp-ckpt", "diff", "CKPT"], ""),
    (["tp-ckpt", "diff", "CKPT", "CKPT", "--atol", "-1"], "-1"),
    (["tp-ckpt", "export", "CKPT", "-o", "OUT", "--assets", "absent"], "absent: no such folder"),
    (["tp-reshard", "CKPT", "--to", "tp4", "--jobs", "99999"], "between 1 and 1024"),
    (["tp-ckpt", "verify", "CKPT", "--jobs", "99999"], "between 1 and 1024"),
    (["tp-ckpt", "digest", "CKPT", "--jobs", "0"], "between 1 and 1024"),
    (["tp-ckpt", "export", "CKPT", "-o", "OUT", "--jobs", "99999"], "between 1 and 1024"),
    (["tp-ckpt", "show", "CKPT", "no.such.tensor"], "no.such.tensor"),
]


@pytest.mark.parametrize("line,word", WRONG_LINES, ids=[" ".join(w[0]) for w in WRONG_LINES])
def test_a_wrong_command_line_gives_one_sentence(line, word, ckpt, tiny, tmp_path):
    stand = {"CONFIG": tiny, "CKPT": ckpt, "OUT": tmp_path / "out"}
    # "CKPT" in `word` is the name of a missing argument, not a path
    argv = [stand.get(a, a) for a in line]
    before = harness.tree(tmp_path)
    r = run(*argv, cwd=tmp_path)
    assert r.rc == 2, repr(r)
    assert_sentence(r, line[0], word)
    assert harness.tree(tmp_path) == before


def test_without_a_verb_the_usage_is_printed(tmp_path):
    r = run("tp-ckpt")
    assert r.rc == 2 and r.out == "" and "usage: tp-ckpt" in r.err, repr(r)


@pytest.mark.parametrize("spec", [
    "", "tp", "tp0", "tp-2", "xp4", "tp8tp4", "tp8,tp4", "tp=", "tp2pp", "zero9", "8",
    "tp99999999999999999999", "tp2147483648dp2147483648", "ep2", "tp2\n", "t" * 5000])
def test_a_wrong_spec_is_refused(spec, ckpt, tiny, tmp_path):
    before = harness.tree(tmp_path)
    assert_refused(run("tp-reshard", ckpt, "--to", spec, "-o", tmp_path / "out"), "tp-reshard")
    assert_refused(run(*train_args(tiny, layout=spec)), "tp-train")
    assert harness.tree(tmp_path) == before


@pytest.mark.parametrize("program", ["tp-train", "tp-reshard", "tp-ckpt"])
def test_help_and_version_are_printed_on_stdout(program):
    for flag in ("--help", "--version"):
        r = run(program, flag)
        assert r.rc == 0 and r.out and not r.err, repr(r)


def test_version_of_tp_train_says_which_kernels_multiply():
    said = run("tp-train", "--version").out.splitlines()
    assert len(said) == 4 and said[1] == "fp32 products: oneDNN" and said[2].startswith("bf16 products: "), said
    flags = re.search(r"^(?:flags|Features)\s*: (.*)", open("/proc/cpuinfo").read(), re.M)[1].split()
    own, amx = "avx512_bf16" in flags, "avx512_bf16" in flags and "amx_bf16" in flags
    assert ("own kernels" in said[2]) == ("own kernels" in said[3]) == own, said
    assert ("AMX" in said[2]) == ("AMX" in said[3]) == amx, said


# ---- layouts that do not fit -------------------------------------------------------------------

UNDIVIDED = [
    ({"num_attention_heads": 6, "num_key_value_heads": 6, "hidden_size": 48}, "tp4", "self_attn"),
    ({"intermediate_size": 100}, "tp8", "mlp."),
    ({"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 96}, "tp4", "self_attn"),
]


@pytest.mark.parametrize("changes,spec,tensor", UNDIVIDED, ids=["heads", "features", "kv heads"])
def test_a_layout_that_does_not_divide_the_model_names_the_tensor(changes, spec, tensor, tmp_path):
    config = write_config(tmp_path / "model", **changes)
    root = tmp_path / "ckpt"
    harness.train(config, root, layout="tp1", steps=1)
    before = harness.tree(tmp_path)
    assert_refused(run(*train_args(config, tmp_path / "other", layout=spec)), "tp-train", tensor)
    r = run("tp-reshard", root, "--to", spec, "-o", tmp_path / "out")
    assert_refused(r, "tp-reshard", tensor)
    assert_refused(run(*train_args(config, root, layout=spec, steps=2, resume=True)), "tp-train",
                   tensor)
    assert harness.tree(tmp_path) == before


def test_from_that_does_not_match_names_both_layouts(ckpt, tmp_path):
    before = harness.tree(tmp_path)
    r = run("tp-reshard", ckpt, "--from", "tp8", "--to", "tp4", "-o", tmp_path / "out")
    assert_refused(r, "tp-reshard", "tp8", "tp2")
    assert harness.tree(tmp_path) == before


def test_another_number_of_ranks_than_the_layout_has_is_refused(tiny, tmp_path):
    r = run("mpirun", "-n", 3, str(harness.BIN / "tp-train"),
            *train_args(tiny, tmp_path / "ckpt", layout="tp2")[1:])
    messages = [x for x in r.lines if x.startswith("tp-train")]
    assert r.rc == 2 and len(messages) == 1, repr(r)
    assert "3" in messages[0] and "tp2" in messages[0], repr(r)
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("flags", [["--layout", "tp2"], ["--layout", "tp3", "--batch", "x"]])
def test_of_many_ranks_the_first_prints_even_if_it_is_the_last_to_know(tiny, tmp_path, flags):
    """mpirun ends all ranks when one exits with an error, so the others wait for the first."""
    late = 'if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then sleep 1; fi; exec "$@"'
    r = run("mpirun", "-n", 3, "sh", "-c", late, "sh", str(harness.BIN / "tp-train"),
            *train_args(tiny, tmp_path / "ckpt")[1:], *flags)
    messages = [x for x in r.lines if x.startswith("tp-train")]
    assert r.rc == 2 and messages, repr(r)


@pytest.mark.parametrize("flags", [["--bogus"], ["--zstd=99"], ["--device", "x"], []])
def test_of_many_processes_that_reshard_one_prints_what_is_wrong(ckpt, tmp_path, flags):
    r = run("mpirun", "-n", 3, "tp-reshard", ckpt, *(flags and ["--to", "tp4"]), *flags, "--json", "-o", tmp_path / "out")
    assert r.rc == 2 and len([x for x in r.lines if x.startswith("tp-reshard")]) == 1, repr(r)
    assert json.loads(r.out)["exit"] == 2, repr(r)


# ---- damage -----------------------------------------------------------------------------------


def shards(root):
    return sorted(harness.steps(root)[-1].glob("*.h5"))


def assert_damage_found(name, ckpt, tmp_path, *words):
    """A reader must exit with 3 (verify: 1), name the file, and change nothing."""
    out = tmp_path / "out"
    before = harness.tree(tmp_path)
    program, argv = reader(name, ckpt, out)
    r = run(*argv, timeout=60)
    assert r.rc == (1 if name == "verify" else 3), repr(r)
    for word in words:
        assert str(word) in r.err + r.out, repr(r)
    if name != "verify":
        assert_sentence(r, program, *words)
    assert harness.tree(tmp_path) == before


@pytest.mark.parametrize("name", BYTE_READERS)
def test_a_missing_shard_is_named(name, ckpt, tmp_path):
    shards(ckpt)[1].unlink()
    assert_damage_found(name, ckpt, tmp_path, "rank-00001.h5")


@pytest.mark.parametrize("name", BYTE_READERS)
@pytest.mark.parametrize("part", [0, 0.01, 0.5, 0.999])
def test_a_truncated_shard_is_named(name, part, ckpt, tmp_path):
    shard = shards(ckpt)[0]
    os.truncate(shard, int(shard.stat().st_size * part))
    assert_damage_found(name, ckpt, tmp_path, shard.name)


@pytest.mark.parametrize("name", BYTE_READERS)
@pytest.mark.parametrize("what", ["fifo", "folder", "link"])
def test_a_shard_that_is_not_a_file_is_refused_without_blocking(name, what, ckpt, tmp_path):
    shard = shards(ckpt)[0]
    aside = tmp_path / "aside.h5"
    shard.rename(aside)
    if what == "fifo":
        os.mkfifo(shard)
    elif what == "folder":
        shard.mkdir()
    else:
        shard.symlink_to(aside)
    assert_damage_found(name, ckpt, tmp_path, shard.name)


def flip(path, rng):
    """Flip one random bit of a file. Returns its number."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)
    return at


@pytest.mark.parametrize("n", range(2))
def test_a_flipped_bit_in_the_manifest_is_found(n, ckpt, tmp_path):
    rng = random.Random(SEED + n)
    step = harness.steps(ckpt)[-1]
    at = flip(step / "manifest.json", rng)
    print("seed", SEED + n, "bit", at)
    for name in READERS:
        assert_damage_found(name, step, tmp_path, "manifest.json")


@pytest.mark.parametrize("part", [0, 0.3, 0.99])
def test_a_truncated_manifest_is_found(part, ckpt, tmp_path):
    step = harness.steps(ckpt)[-1]
    manifest = step / "manifest.json"
    os.truncate(manifest, int(manifest.stat().st_size * part))
    for name in READERS:
        assert_damage_found(name, step, tmp_path, "manifest.json")


def test_a_step_without_a_manifest_is_not_a_checkpoint(ckpt, tmp_path):
    (harness.steps(ckpt)[-1] / "manifest.json").unlink()
    before = harness.tree(tmp_path)
    for name in READERS:
        program, argv = reader(name, ckpt, tmp_path / "out")
        r = run(*argv)
        if name == "verify":
            assert r.rc == 1 and "manifest.json" in r.out, repr(r)
        else:
            assert_refused(r, program, ckpt)
    assert harness.tree(tmp_path) == before


@pytest.mark.parametrize("damage", ["shard missing", "shard flipped", "manifest cut"])
def test_resume_refuses_a_damaged_checkpoint(damage, ckpt, tiny, tmp_path):
    step = harness.steps(ckpt)[-1]
    if damage == "shard missing":
        shards(ckpt)[0].unlink()
    elif damage == "shard flipped":
        shard = shards(ckpt)[0]
        data = bytearray(shard.read_bytes())
        data[len(data) * 3 // 4] ^= 4
        shard.write_bytes(data)
    else:
        os.truncate(step / "manifest.json", 100)
    before = harness.tree(tmp_path, but=("lock", "epoch"))
    r = run(*train_args(tiny, ckpt, steps=4, layout="tp4", resume="must"))
    assert r.rc in (2, 3), repr(r)
    assert any(line.startswith("tp-train") for line in r.lines), repr(r)
    assert harness.tree(tmp_path, but=("lock", "epoch")) == before


# ---- targets that cannot be written -----------------------------------------------------------


@contextlib.contextmanager
def mounted(at, options):
    """Mount a file system in memory at a new folder. This needs root or a user namespace."""
    at.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", at],
                          capture_output=True, text=True)
    if made.returncode:
        pytest.skip("mounting a file system needs root: " + made.stderr.strip())
    yield at
    subprocess.run(["umount", at], check=True)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    with mounted(tmp_path / "small", "size=256k") as at:
        yield at


def test_a_save_on_a_full_disk_fails_and_leaves_nothing(tiny, small_disk, ckpt):
    root = small_disk / "ckpt"
    r = run(*train_args(tiny, root, steps=2, layout="tp2"))
    assert r.rc == 3, repr(r)
    assert_sentence(r, "tp-train", "space")
    assert harness.steps(root) == [] if root.exists() else True
    left = [p for p in harness.tree(root) if ".tmp" in p] if root.exists() else []
    assert left == [], "files were left: %s" % left


def test_a_run_goes_on_without_heartbeats_where_there_is_no_room_for_them(tiny, small_disk):
    """As with /dev/shm of a container, which other programs fill."""
    heartbeats = small_disk / "heartbeats"
    heartbeats.mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        (small_disk / "full").write_bytes(bytes(512 << 10))
    r = ok(*train_args(tiny, layout="tp2"), env={"TP_PROGRESS_DIR": str(heartbeats)})
    assert "warning: %s: rank 0 has no room for its heartbeat file: " % heartbeats in r.err and "No space left" in r.err, repr(r)
    assert os.listdir(heartbeats) == []


@pytest.mark.parametrize("name", ["reshard", "export"])
def test_a_copy_on_a_full_disk_fails_and_leaves_nothing(name, small_disk, ckpt):
    (small_disk / "mine").write_text("was here before\n")
    program, argv = reader(name, ckpt, small_disk / "out")
    before = harness.tree(ckpt, small_disk)
    r = run(*argv)
    assert r.rc == 3, repr(r)
    assert_sentence(r, program, "space")
    assert harness.tree(ckpt, small_disk) == before


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_when_the_report_is_lost_the_error_says_that_the_result_is_complete(json, ckpt, tmp_path):
    for argv, check in ((["tp-reshard", ckpt, "--to", "tp4", "-o", tmp_path / "a"], "verify"),
                        (["tp-ckpt", "export", ckpt, "-o", tmp_path / "hf"], "show"),
                        (["tp-reshard", tmp_path / "hf", "--to", "tp1", "--format", "dcp", "-o", tmp_path / "b"], "show"),
                        (["tp-ckpt", "import", tmp_path / "hf", "-o", tmp_path / "c"], "verify")):
        r = run("sh", "-c", 'exec "$@" > /dev/full', "sh", *argv, *json)
        assert r.rc == 3, repr(r)
        assert_sentence(r, argv[0], "%s is complete, but its report is lost: standard output: No space" % argv[-1])
        assert run("tp-ckpt", check, argv[-1]).rc == 0
    r = run("sh", "-c", 'exec "$@" > /dev/full', "sh", "tp-reshard", ckpt, "--to", "tp4", "--dry-run", *json)
    assert r.rc == 3 and "complete" not in r.err, repr(r)


def test_a_reader_that_ends_does_not_kill_what_writes(ckpt, tmp_path):
    """Neither that of the messages, which must not end the work, nor that of the report."""
    lost = {"out": "%s is complete, but its report is lost: standard output: Broken pipe", "err": ""}
    for stream, says in lost.items():
        for argv in (["tp-reshard", ckpt, "--to", "tp4", "-o", tmp_path / stream / "a"],
                     ["tp-ckpt", "export", ckpt, "--format", "dcp", "-o", tmp_path / stream / "b"],
                     ["tp-ckpt", "import", tmp_path / stream / "b", "-o", tmp_path / stream / "c"]):
            reader, writer = os.pipe()
            os.close(reader)
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "std" + stream: writer}
            p = subprocess.run(harness.command(argv), stdin=subprocess.DEVNULL, text=True, timeout=300, **streams)
            os.close(writer)
            r = harness.Result(argv, p.returncode, p.stdout or "", p.stderr or "")
            assert r.rc == (3 if says else 0), repr(r)
            if says:
                assert_sentence(r, argv[0], says % argv[-1])
            ok("tp-ckpt", "verify", argv[-1])


@pytest.fixture
def locked(tmp_path):
    """A read-only folder. Root may write to any folder, so for root it is a read-only file system."""
    at = tmp_path / "locked"
    if os.geteuid():
        at.mkdir(0o555)
        yield at
        at.chmod(0o755)
        return
    with mounted(at, "ro,size=64k"):
        yield at


def test_a_read_only_folder_is_named(locked, tiny, ckpt):
    before = harness.tree(ckpt)
    for program, argv in [
            ("tp-train", train_args(tiny, locked / "out", steps=1)),
            ("tp-reshard", ["tp-reshard", ckpt, "--to", "tp4", "-o", locked / "out"]),
            ("tp-ckpt", ["tp-ckpt", "export", ckpt, "--format", "safetensors", "-o",
                         locked / "out"])]:
        r = run(*argv)
        assert r.rc == 3, repr(r)
        assert_sentence(r, program, locked)
    assert harness.tree(ckpt) == before


def test_an_existing_output_is_replaced_only_by_force(ckpt, tmp_path):
    out = tmp_path / "out"
    harness.ok("tp-reshard", ckpt, "--to", "tp4", "-o", out)
    before = harness.tree(tmp_path)
    assert_refused(run("tp-reshard", ckpt, "--to", "tp1", "-o", out), "tp-reshard", out, "--force")
    assert harness.tree(tmp_path) == before
    harness.ok("tp-reshard", ckpt, "--to", "tp1", "-o", out, "--force")
    assert harness.digest(out) == harness.digest(ckpt)


@pytest.mark.parametrize("argv", [["tp-reshard", "CKPT", "--to", "tp1"], ["tp-ckpt", "import", "HF", "--step", "STEP"]])
def test_force_does_not_replace_a_folder_of_somebody_else(argv, ckpt, tmp_path):
    step = harness.steps(ckpt)[-1].name
    harness.ok("tp-ckpt", "export", ckpt, "--format", "safetensors", "-o", tmp_path / "hf")
    there = tmp_path / "out" / step
    there.mkdir(parents=True)
    (there / "results.csv").write_text("1")
    before = harness.tree(tmp_path)
    names = {"CKPT": ckpt, "HF": tmp_path / "hf", "STEP": int(step[5:])}
    argv = [names.get(x, x) for x in argv] + ["-o", tmp_path / "out", "--force"]
    assert_refused(run(*argv), argv[0], there, "is not a checkpoint of this project")
    assert harness.tree(tmp_path) == before
    (there / "results.csv").unlink()
    harness.ok(*argv)


def test_an_export_into_a_folder_with_files_is_refused(ckpt, tmp_path):
    out = tmp_path / "hf"
    argv = ["tp-ckpt", "export", ckpt, "--format", "safetensors", "-o", out]
    harness.ok(*argv)
    before = harness.tree(tmp_path)
    assert_refused(run(*argv), "tp-ckpt", out)
    assert harness.tree(tmp_path) == before


# ---- data and models --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 32])
def test_data_that_is_too_short_is_refused_with_both_lengths(size, tiny, tmp_path):
    data = tmp_path / "data"
    data.write_bytes(b"x" * size)
    argv = train_args(tiny, tmp_path / "ckpt")
    argv[argv.index(TEXT)] = data
    before = harness.tree(tmp_path)
    assert_refused(run(*argv), "tp-train", data, "33")
    assert harness.tree(tmp_path) == before


@pytest.mark.parametrize("what", ["absent", "folder", "fifo"])
def test_data_that_is_not_a_file_is_refused(what, tiny, tmp_path):
    data = tmp_path / "data"
    if what == "folder":
        data.mkdir()
    elif what == "fifo":
        os.mkfifo(data)
    argv = train_args(tiny, tmp_path / "ckpt")
    argv[argv.index(TEXT)] = data
    r = run(*argv, timeout=60)
    assert r.rc in (2, 3), repr(r)
    assert_sentence(r, "tp-train", data)
    assert len(r.lines) == 1 and not (tmp_path / "ckpt").exists(), repr(r)


BAD_CONFIGS = [
    (key, value) for key, values in {
        "hidden_size": [None, 0, -64, 1 << 40, 1 << 62, 63.5, "64", [], True],
        "num_hidden_layers": [None, 0, -1, 1 << 31, 1 << 62],
        "num_attention_heads": [None, 0, -8, 1 << 31, 7],
        "num_key_value_heads": [0, 3, 16, -4],
        "intermediate_size": [None, 0, -1, 1 << 50],
        "vocab_size": [None, 0, -256, 1 << 60],
        "head_dim": [0, 7, -8, 1 << 40],
        "rms_norm_eps": [-1, "small"],
        "rope_theta": [0, -5.0, "big"],
        "architectures": [["MambaForCausalLM"]],
        "hidden_act": ["relu"],
        "is_causal": [False],
        "rope_scaling": [{"rope_type": "longrope", "factor": 4.0}, {"rope_type": "yarn", "factor": -1}, 7],
    }.items() for value in values]


@pytest.mark.parametrize("key,value", BAD_CONFIGS, ids=["%s=%s" % c for c in BAD_CONFIGS])
def test_a_missing_or_wrong_value_in_the_config_is_named(key, value, tmp_path):
    config = write_config(tmp_path / "model", **{key: value})
    before = harness.tree(tmp_path)
    r = run(*train_args(config, tmp_path / "ckpt", layout="tp1"), timeout=60)
    assert r.rc in (2, 3), repr(r)
    assert_sentence(r, "tp-train", "config.json")
    assert key in r.lines[-1] or str(value) in r.lines[-1], repr(r)
    assert len(r.lines) == 1, repr(r)
    assert harness.tree(tmp_path) == before


def test_bytes_outside_the_vocabulary_are_refused(tmp_path):
    config = write_config(tmp_path / "model", vocab_size=100)
    r = run(*train_args(config, tmp_path / "ckpt", layout="tp1"))
    assert_refused(r, "tp-train", TEXT, "100")
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", "{}", "\0\0\0\0", "[" * 100000, '{"a":' * 100000,
    json.dumps(TINY) + "x", json.dumps(TINY)[:-20], '{"hidden_size": 1e999}',
    json.dumps(TINY).replace("64", "9" * 400)],
    ids=["empty", "brace", "list", "null", "no keys", "zeros", "deep list", "deep object",
         "tail", "cut", "infinite", "long number"])
def test_a_file_that_is_not_a_config_is_refused(text, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(text)
    r = run(*train_args(config, tmp_path / "ckpt", layout="tp1"), timeout=60)
    assert r.rc in (2, 3), repr(r)
    assert_sentence(r, "tp-train", "config.json")
    assert len(r.lines) == 1 and not (tmp_path / "ckpt").exists(), repr(r)


def test_a_model_folder_with_damaged_weights_is_refused(ckpt, tmp_path):
    model = tmp_path / "hf"
    harness.ok("tp-ckpt", "export", ckpt, "--format", "safetensors", "-o", model)
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    n_header = int.from_bytes(whole[:8], "little")
    damaged = {
        "empty": b"",
        "short": whole[:-5],
        "header of 2^63": (1 << 63).to_bytes(8, "little") + whole[8:],
        "header not JSON": whole[:8] + b"#" * n_header + whole[8 + n_header:],
        "shape": whole.replace(b'"shape":[256,64]', b'"shape":[255,64]', 1),
        "dtype": whole.replace(b'"F32"', b'"F33"', 1),
    }
    for what, data in damaged.items():
        assert data != whole, what
        weights.write_bytes(data)
        r = run(*train_args(model, tmp_path / "new", layout="tp2"))
        assert r.rc in (2, 3), "%s: %r" % (what, r)
        assert_sentence(r, "tp-train", model)
        assert not (tmp_path / "new").exists()


def test_resume_with_another_model_is_refused(ckpt, tmp_path):
    other = write_config(tmp_path / "other", intermediate_size=128)
    before = harness.tree(ckpt)
    r = run(*train_args(other, ckpt, steps=4, resume="must"))
    assert r.rc == 2, repr(r)
    assert_sentence(r, "tp-train")
    assert harness.tree(ckpt) == before


def test_resume_must_on_an_empty_root_is_refused(tiny, tmp_path):
    r = run(*train_args(tiny, tmp_path / "none", resume="must"))
    assert_refused(r, "tp-train", tmp_path / "none")
    assert not (tmp_path / "none").exists()
