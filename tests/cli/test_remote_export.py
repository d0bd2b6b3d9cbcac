"""Exports to an S3-compatible store: the same files as in a folder, or nothing.

needs: tp-ckpt tp-reshard tp-train make_ckpt
covers: storage/upload_file reshard/formats/upload_set reshard/formats/gguf/gguf_matrix reshard/formats/gguf/gguf_vocab reshard/export_store
    reshard/formats/pieces/piece_upload
"""
import json
import os
import re
import signal
import subprocess
import time

import pytest

import harness
import test_export_gguf
from object_store import Fault, fails, interrupt, ok, run

OUT = "s3://bucket/runs/hf"
KEY = "bucket/runs/hf/"
FORMATS = {"safetensors": ("--max-shard-size", "2M"), "trainer": ("--max-shard-size", "2M"),
           "vllm": (), "dcp": (), "accelerate": (), "torchtitan": (),
           "megatron": ("--layout", "tp2pp2"),
           "torch_dist": ("--layout", "tp2"), "deepspeed": (), "gguf": (), "meta": ("--layout", "tp2")}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A checkpoint whose exports have files of several parts."""
    folder = tmp_path_factory.mktemp("export")
    config = harness.write_config(folder, hidden_size=256, intermediate_size=768, head_dim=32, vocab_size=6000)
    harness.ok(harness.built("make_ckpt"), config, "tp2", folder / "ckpt", 1, 11, "bf16")
    return folder / "ckpt"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A GPT-2 whose matrices are longer than a part of an upload."""
    folder = tmp_path_factory.mktemp("gpt2")
    (folder / "model").mkdir()
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 768, "n_layer": 3,
              "n_head": 12, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": True}
    (folder / "model/config.json").write_text(json.dumps(config))
    harness.ok(*harness.train_args(folder / "model/config.json", folder / "ckpt", steps=1))
    return folder / "ckpt"


@pytest.mark.parametrize("dtype", ("f32", "q8_0"))
@pytest.mark.parametrize("jobs", (1, 4))
def test_gguf_of_gpt2_is_transposed_on_its_way(store, gpt2, tmp_path, dtype, jobs):
    options = ("--format", "gguf", "--dtype", dtype)
    harness.ok("tp-ckpt", "export", gpt2, "-o", tmp_path / "out", *options)
    (tmp_path / "scratch").mkdir()
    command = export(gpt2, *options, "--jobs", jobs, "--json", "--mem")
    least = re.search(r"at least (\d+) MiB", run(store, *command, "20M").err)
    memory = (int(least[1]) + 1) << 20
    r = ok(store, *command, memory, TMPDIR=str(tmp_path / "scratch"))
    assert store.tree(KEY) == files(tmp_path / "out") and store.uploads == {}
    assert harness.SANITIZE or json.loads(r.out)["peak_rss_bytes"] <= memory


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def is_empty(store, key=KEY):
    assert store.tree(key) == {} and store.uploads == {}
    return True


def export(root, *more):
    return "tp-ckpt", "export", root, "-o", OUT, *more


@pytest.mark.parametrize("format", FORMATS)
def test_a_store_gets_the_same_files_as_a_folder(store, root, tmp_path, format):
    options = ("--format", format, *FORMATS[format])
    harness.ok("tp-ckpt", "export", root, "-o", tmp_path / "out", *options)
    (tmp_path / "scratch").mkdir()
    store.faults.append(Fault(503, times=2, method="PUT", path="partNumber", code="SlowDown"))
    r = ok(store, *export(root, *options, "--json", "--mem", "200M"), TMPDIR=str(tmp_path / "scratch"))
    assert store.tree(KEY) == files(tmp_path / "out") and store.uploads == {}
    changes = [p for m, p, _ in store.requests if m != "GET"]
    assert changes[-1].endswith("/config.json"), "config.json is the commit"
    assert list((tmp_path / "scratch").iterdir()) == []
    if not harness.SANITIZE:
        assert int(re.search(r'"peak_rss_bytes": (\d+)', r.out)[1]) <= 200 << 20


def test_a_conversion_to_a_store_is_that_to_a_folder(store, root, tmp_path):
    harness.ok("tp-ckpt", "export", root, "-o", tmp_path / "hf")
    harness.ok("tp-reshard", tmp_path / "hf", "--to", "tp2", "--format", "megatron", "--no-optim", "-o", tmp_path / "out")
    ok(store, "tp-reshard", tmp_path / "hf", "--to", "tp2", "--format", "megatron", "--no-optim", "-o", OUT)
    assert store.tree(KEY) == files(tmp_path / "out")


def test_a_prefix_with_objects_is_left_as_it_is(store, root):
    store.put(KEY + "notes", b"mine")
    fails(store, *export(root), says="has 1 objects but no config.json", code=2)
    store.put(KEY + "config.json", b"{}")
    fails(store, *export(root), says="exists already", code=2)
    fails(store, *export(root, "--force"), says="--force is not possible", code=2)
    assert store.tree(KEY) == {"notes": b"mine", "config.json": b"{}"}


@pytest.mark.parametrize("method, path", (("POST", "uploads"), ("PUT", "partNumber"), ("POST", "uploadId"),
                                          ("PUT", "config.json")))
def test_after_an_error_nothing_has_appeared(store, root, method, path):
    store.faults.append(Fault(403, times=99, method=method, path=path, code="AccessDenied"))
    fails(store, *export(root, "--max-shard-size", "2M"), says="AccessDenied")
    assert is_empty(store)


def test_of_two_writers_the_second_removes_only_its_own_files(store, root):
    """Another export of another format commits right before this one does."""
    def commit(s):
        s.put(KEY + "config.json", b"other")

    store.faults.append(Fault(commit, method="PUT", path="config.json"))
    fails(store, *export(root), says="another writer was faster", code=2)
    assert store.tree(KEY) == {"config.json": b"other"} and store.uploads == {}


def test_a_lost_reply_to_the_commit_is_no_error(store, root):
    store.faults.append(Fault("lost reply", method="PUT", path="config.json"))
    ok(store, *export(root))
    assert {"config.json", "model.safetensors"} == set(store.tree(KEY))


def test_a_signal_leaves_nothing(store, root, tmp_path):
    store.delay = 0.15
    p = subprocess.Popen(harness.command(export(root, "--jobs", 1)), stderr=subprocess.PIPE, text=True,
                         env={**os.environ, **store.environment(TMPDIR=str(tmp_path))})
    deadline = time.monotonic() + 60
    while not any("partNumber" in path for _, path, _ in store.requests) and time.monotonic() < deadline:
        time.sleep(0.02)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 75 and "nothing is kept" in err, err
    assert is_empty(store) and list(tmp_path.iterdir()) == []


def test_a_signal_while_the_store_does_not_take_parts_leaves_nothing(store, root, tmp_path):
    store.faults.append(Fault(503, times=10 ** 6, method="PUT", path="partNumber"))
    code, err, seconds = interrupt(store, export(root), TMPDIR=str(tmp_path))
    assert code == 75 and "run the same command again" in err and seconds < 20, err
    assert is_empty(store) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ("gguf", "dcp"))
def test_a_signal_while_the_source_cannot_be_read_ends_an_export(store, root, tmp_path, format):
    """gguf keeps nothing of what was written."""
    ok(store, "tp-reshard", root, "--to", "tp1", "--out", "s3://bucket/ckpt")
    store.faults.append(Fault(503, times=10 ** 6, path="step-.*rank-0", after=2))
    code, err, seconds = interrupt(store, ("tp-ckpt", "export", "s3://bucket/ckpt", "-o", tmp_path / "out", "--format", format))
    assert code == 75 and "run the same command again" in err and seconds < 20, err
    assert not (tmp_path / "out").exists()


def test_too_little_memory_is_said_before_anything_is_sent(store, root):
    fails(store, *export(root, "--mem", "20M"), says="--mem 20.0 MiB is too little", code=2)
    assert is_empty(store)


def test_a_web_server_is_not_written_to(store, root):
    fails(store, "tp-ckpt", "export", root, "-o", store.url + "/bucket/x", says="a web server cannot be written to", code=2)


# ---- reading ----

@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    harness.ok(harness.built("make_ckpt"), harness.write_config(folder), "tp2", folder / "ckpt", 1, 11, "bf16")
    return folder / "ckpt"


def imported(folder):
    return {p.name: p.read_bytes() for p in folder.glob("step-*/*.h5")}


@pytest.mark.parametrize("format", [f for f in FORMATS if f != "gguf"])
def test_an_import_from_a_store_reads_what_it_reads_from_a_folder(store, small, tmp_path, format):
    harness.ok("tp-ckpt", "export", small, "-o", tmp_path / "out", "--format", format, *FORMATS[format])
    more = ("--no-optim",) if format in ("megatron", "torch_dist") else ()  # the masters of make_ckpt are random
    store.add_tree(KEY[:-1], tmp_path / "out")
    harness.ok("tp-ckpt", "import", tmp_path / "out", "--layout", "tp2", "-o", tmp_path / "local", "--step", 1, *more)
    store.faults += [Fault("drop", times=2, path=KEY), Fault(503, after=5, code="SlowDown"), Fault("truncate", after=9)]
    ok(store, "tp-ckpt", "import", OUT, "--layout", "tp2", "-o", tmp_path / "remote", "--step", 1, *more)
    assert imported(tmp_path / "remote") == imported(tmp_path / "local") != {}


def test_a_web_server_and_a_store_are_read_by_tp_reshard(store, small, tmp_path):
    harness.ok("tp-ckpt", "export", small, "-o", tmp_path / "hf")
    (tmp_path / "hf/tokenizer.json").write_text("{}")
    (tmp_path / "hf/additional_chat_templates").mkdir()
    (tmp_path / "hf/additional_chat_templates/rag.jinja").write_text("{{ x }}")
    store.add_tree(KEY[:-1], tmp_path / "hf")
    argv = "--to", "tp1", "--from-format", "safetensors", "--format", "dcp", "--no-optim"
    harness.ok("tp-reshard", tmp_path / "hf", *argv, "-o", tmp_path / "dcp")
    ok(store, "tp-reshard", OUT, *argv, "-o", "s3://bucket/dcp")  # from the store to the store
    assert store.tree("bucket/dcp/") == files(tmp_path / "dcp")
    assert "additional_chat_templates/rag.jinja" in files(tmp_path / "dcp")
    store.faults.append(Fault(403, times=100, path="list-type", code="AccessDenied"))  # who may read may not always list
    ok(store, "tp-reshard", OUT, *argv, "-o", tmp_path / "unlisted")
    assert (tmp_path / "unlisted/tokenizer.json").exists() and not (tmp_path / "unlisted/additional_chat_templates").exists()
    store.faults.clear()
    store.public = True
    ok(store, "tp-ckpt", "import", store.url + "/" + KEY[:-1], "-o", tmp_path / "http")
    harness.ok("tp-ckpt", "import", tmp_path / "hf", "-o", tmp_path / "local")
    assert imported(tmp_path / "http") == imported(tmp_path / "local") != {}


@pytest.mark.parametrize("kind", ["tokenizer.json", "tokenizer.model"])
@pytest.mark.parametrize("place", ["store", "web server"])
def test_a_gguf_gets_its_tokenizer_from_a_url_too(place, kind, store, tmp_path):
    config = harness.write_config(tmp_path, vocab_size=362)
    harness.ok(harness.built("make_ckpt"), config, "tp2", tmp_path / "ckpt", 1, 11, "bf16")
    assets = tmp_path / "tok"
    if kind == "tokenizer.json":
        test_export_gguf.tokenizer(assets)
        (assets / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    else:
        test_export_gguf.pieces_file(assets, (harness.REPO / "tests/fixture/sentencepiece.model").read_bytes(),
                                     added_tokens={"<extra>": 360})
    (assets / "chat_template.jinja").write_text("{{ messages }}")
    store.add_tree("bucket/tok", assets)
    store.public = place != "store"
    url = "s3://bucket/tok" if place == "store" else store.url + "/bucket/tok"
    argv = "tp-ckpt", "export", tmp_path / "ckpt", "--format", "gguf"
    harness.ok(*argv, "--assets", assets, "-o", tmp_path / "local")
    r = ok(store, *argv, "--assets", url, "-o", tmp_path / "remote")
    assert "tokenizer" not in r.err and files(tmp_path / "remote") == files(tmp_path / "local")
    assert b"{{ messages }}" in files(tmp_path / "remote")["model.gguf"]
    store.faults.append(Fault(403, times=99, path="/" + kind, code="AccessDenied"))
    fails(store, *argv, "--assets", url, "-o", tmp_path / "forbidden", says=kind)
    assert not (tmp_path / "forbidden").exists()


def test_a_file_without_bytes_is_read(store, small, tmp_path):
    """A store says 416 to any range of it, and nginx 200."""
    for name, data in (("tokenizer.json", b"{}"), ("merges.txt", b"")):
        store.put("bucket/tok/" + name, data)
    ok(store, "tp-ckpt", "export", small, "--assets", "s3://bucket/tok", "-o", tmp_path / "store")
    store.public = store.is_nginx = True
    ok(store, "tp-ckpt", "export", small, "--assets", store.url + "/bucket/tok", "-o", tmp_path / "nginx")
    assert files(tmp_path / "nginx") == files(tmp_path / "store") and files(tmp_path / "store")["merges.txt"] == b""


def test_what_cannot_be_read_is_said(store, small, tmp_path):
    argv = "tp-ckpt", "import", OUT, "-o", tmp_path / "ckpt"
    fails(store, *argv, says="config.json", code=2)
    fails(store, *argv, says="AWS_ACCESS_KEY_ID is not", code=2, AWS_ACCESS_KEY_ID="")
    harness.ok("tp-ckpt", "export", small, "-o", tmp_path / "hf")
    store.add_tree(KEY[:-1], tmp_path / "hf")
    store.faults.append(Fault("etag", times=99, path="model.safetensors", after=2))
    fails(store, *argv, says="another program replaced it")
    store.faults[:] = [Fault(403, times=99, path="model.safetensors", code="AccessDenied")]
    fails(store, *argv, says="AccessDenied")
    assert not (tmp_path / "ckpt").exists() or imported(tmp_path / "ckpt") == {}
