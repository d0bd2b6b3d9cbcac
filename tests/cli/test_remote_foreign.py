"""Checkpoints of other frameworks on web servers and in S3: ls, show, verify, digest and diff answer as for a folder.

needs: tp-ckpt tp-reshard tp-train make_ckpt
covers: reshard/foreign_contents reshard/convert reshard/tensor_view cli/ckpt/foreign reshard/formats/foreign reshard/memory_budget
"""
import json
import re
import shutil

import pytest

import foreign_files
import harness
import neox_files
import torch_files
from object_store import Fault, ObjectStore, fails, ok, run

URL = "s3://bucket/runs/model"
KEY = "bucket/runs/model"
WRITTEN = {"safetensors": ("--max-shard-size", "200K"), "trainer": ("--max-shard-size", "200K"),
           "vllm": (), "dcp": (), "accelerate": (), "torchtitan": (),
           "megatron": ("--layout", "tp2pp2"),
           "torch_dist": ("--layout", "tp2"), "deepspeed": (), "meta": ("--layout", "tp2")}
FORMATS = [*WRITTEN, "bin", "zero1", "zero3", "parallel", "fsdp_dtensor"]


def config_of(state):
    return json.loads(state.config.read_text())


def groups_of(state):
    groups = {}
    for name in state.tensors:
        groups.setdefault(name.split("/")[0], None)
    return {g: state.group(g) for g in groups}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, bf16):
    """{format: folder}."""
    base = tmp_path_factory.mktemp("foreign")
    for format, options in WRITTEN.items():
        harness.ok("tp-ckpt", "export", bf16.root, "-o", base / format, "--format", format, *options)
    torch_files.save(base / "bin/pytorch_model.bin", {k: torch_files.Tensor(v) for k, v in bf16.group("param").items()})
    (base / "meta/config.json").unlink()  # as Meta publishes it
    foreign_files.zero1(base / "zero1", groups_of(bf16), 3, 2)
    foreign_files.zero3(base / "zero3", groups_of(bf16), 3, 2)
    neox_files.Save(config_of(bf16), groups_of(bf16), 2, 2, 1).write(base / "parallel", 3)
    (base / "parallel/config.json").write_bytes(bf16.config.read_bytes())
    foreign_files.Megatron(config_of(bf16), dp=2, engine=True).fsdp_dtensor(base / "fsdp_dtensor", groups_of(bf16), 3)
    (base / "fsdp_dtensor/config.json").write_bytes(bf16.config.read_bytes())
    return {format: base / format for format in FORMATS}


def serve(folder, **options):
    store = ObjectStore(**options)
    store.add_tree(KEY, folder)
    return store


def said(r, path):
    """Notes and errors; how fast it was is not part of it."""
    return re.sub(r" in [\d.]+ s, .*", "", r.err.replace(path, "CKPT"))


def answers(folder, url, store, *argv):
    """The same output as for the folder; returns it."""
    here = harness.run("tp-ckpt", argv[0], folder, *argv[1:])
    there = run(store, "tp-ckpt", argv[0], url, *argv[1:])
    assert there.rc == here.rc and there.out.replace(url, "CKPT") == here.out.replace(str(folder), "CKPT"), repr(there)
    assert said(there, url) == said(here, str(folder)) and (here.rc or here.out), repr(there)
    return there.out


def test_every_verb_answers_as_for_a_folder(folders):
    verbs = [["ls"], ["ls", "--json"], ["show"], ["show", "--json"], ["show", "model.norm.weight"], ["show", "absent"],
             ["verify"], ["verify", "--json"], ["digest"]]
    for format, folder in folders.items():
        with serve(folder) as s3, serve(folder, public=True) as web:
            for argv in verbs:
                answers(folder, URL, s3, *argv)
            for argv in (["ls", "--json"], ["verify"], ["digest"], ["show", "model.norm.weight", "--json"]):
                answers(folder, web.url + "/" + KEY, web, *argv)
            ok(s3, "tp-ckpt", "diff", URL, folder)
            ok(web, "tp-ckpt", "diff", folder, web.url + "/" + KEY)
            ok(s3, "tp-ckpt", "digest", URL + "//")  # as with a folder's name
            assert s3.objects.keys() == {KEY + "/" + str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}


def test_formats_and_layouts_are_compared_across_places(folders, bf16, store):
    store.add_tree(KEY, folders["dcp"])
    store.add_tree("bucket/hf", folders["safetensors"])
    store.add_tree("bucket/ckpt", bf16.root)
    assert "equal" in ok(store, "tp-ckpt", "diff", "s3://bucket/hf", "s3://bucket/ckpt", "--group", "param").out
    assert "equal" in ok(store, "tp-ckpt", "diff", bf16.root, "s3://bucket/hf", "--group", "param").out
    digest = ok(store, "tp-ckpt", "digest", "s3://bucket/hf").out.splitlines()[:-1]
    assert digest == bf16.digests("param")
    key = "bucket/hf/" + next(f.name for f in sorted(folders["safetensors"].glob("*.safetensors")))
    data = store.objects[key][0]
    store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    r = run(store, "tp-ckpt", "diff", "s3://bucket/ckpt", "s3://bucket/hf", "--group", "param", "--json")
    found = json.loads(r.out)
    assert r.rc == 1 and [d["b"]["file"] for d in found["differences"]] == ["s3://" + key], repr(r)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_config_and_a_file_alone_may_be_urls(folders, bf16, store, tmp_path, name):
    folder = harness.copy(folders["torchtitan"], tmp_path / "model")
    (folder / "config.json").unlink()
    store.add_tree(KEY, folder)
    store.put("bucket/other/config.json", bf16.config.read_bytes())
    if name == "config.json":
        for config in ("s3://bucket/other/config.json", bf16.config):
            there = ok(store, "tp-ckpt", "digest", URL, "--config", config).out
            assert there == harness.ok("tp-ckpt", "digest", folders["torchtitan"]).out
        fails(store, "tp-ckpt", "ls", URL, says="has no config.json.*--config", code=2)
        return
    one = sorted(folders["safetensors"].glob("*.safetensors"))[0]
    store.put("bucket/one.safetensors", one.read_bytes())
    assert answers(one, "s3://bucket/one.safetensors", store, "digest")


@pytest.mark.parametrize("place", ["store", "web server"])
def test_tp_reshard_names_the_format_that_must_be_given(place, folders, bf16, tmp_path):
    for format, folder in folders.items():
        with serve(folder, public=place != "store") as store:
            url = "s3://" + KEY if place == "store" else store.url + "/" + KEY
            argv = "tp-reshard", url, "--to", "tp1", "-o", tmp_path / "out"
            for more in ((), ("--format", "dcp")):
                name = {"zero1": "deepspeed", "zero3": "deepspeed", "parallel": "deepspeed"}.get(format, format)
                fails(store, *argv, *more, says="give --from-format %s" % name, code=2)
            fails(store, "tp-reshard", url + "/none", "--to", "tp1", "-o", tmp_path / "out", says="another framework, give --from-format", code=2)
    with serve(bf16.root) as store:
        store.add_tree(KEY, folders["safetensors"])
        r = run(store, "tp-reshard", "s3://" + KEY, "--to", "tp1", "--step", 99, "-o", tmp_path / "out")
        assert r.rc == 2 and "has no step 99" in r.err and "--from-format" not in r.err, repr(r)


def test_a_folder_named_like_a_step_of_ours_is_read(folders, bf16, store):
    """As torchtitan names them; and a checkpoint of this project stays one, whatever lies beside it."""
    store.add_tree("bucket/outputs/step-00000010", folders["dcp"])
    assert answers(folders["dcp"], "s3://bucket/outputs/step-00000010", store, "digest")
    store.add_tree("bucket/ckpt", bf16.root)
    for url in ("s3://bucket/ckpt", "s3://bucket/ckpt/" + harness.steps(bf16.root)[0].name):
        assert "layout" in ok(store, "tp-ckpt", "show", url).out


@pytest.mark.parametrize("kind", ["safetensors", "dcp"])
@pytest.mark.parametrize("place", ["store", "web server"])
def test_steps_come_before_files_of_another_framework_beside_them(kind, place, folders, bf16, tmp_path):
    """As in a folder (test_foreign_place.py)."""
    both = harness.copy(bf16.root, tmp_path / "both")
    shutil.copytree(folders[kind], both, dirs_exist_ok=True)
    with serve(both, public=place != "store") as store:
        url = URL if place == "store" else store.url + "/" + KEY
        step = store.objects[KEY + "/" + harness.steps(both)[0].name + "/manifest.json"][0]
        store.put(KEY + "/latest/manifest.json", step)  # a web server follows the link
        assert ok(store, "tp-ckpt", "digest", url).out == harness.ok("tp-ckpt", "digest", bf16.root).out
        assert "layout" in ok(store, "tp-ckpt", "show", url).out
        for source, env in ((url, store.environment()), (both, None)):
            r = harness.run("tp-ckpt", "import", source, "-o", tmp_path / "out", env=env)
            assert r.rc == 2 and "%s: has steps of tp-train" % source in r.err and len(r.lines) == 1, repr(r)
            assert "move them into a folder of their own" in r.err and not (tmp_path / "out").exists(), repr(r)


def test_a_server_that_forbids_what_is_not_there_has_a_readable_model(folders, store, tmp_path):
    """As public buckets do: 403 instead of 404, and no listing."""
    with serve(folders["safetensors"], public=True) as web:
        web.faults += [Fault(403, times=10**6, method=m, path="manifest|latest") for m in ("GET", "HEAD")]
        answers(folders["safetensors"], web.url + "/" + KEY, web, "digest")


def test_damage_is_found(folders, store):
    store.add_tree(KEY, folders["dcp"])
    key = max((k for k in store.objects if k.endswith(".distcp")), key=lambda k: len(store.objects[k][0]))
    data = bytearray(store.objects[key][0])
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))
    r = run(store, "tp-ckpt", "verify", URL)
    assert r.rc == 1 and "CRC-32" in r.out and key[len("bucket/"):] in r.out and "damaged" in r.out, repr(r)
    fails(store, "tp-ckpt", "digest", URL, says="CRC-32")
    del store.objects[key]
    assert run(store, "tp-ckpt", "verify", URL).rc in (1, 2, 3)


def test_what_cannot_be_read_is_said(folders, store):
    for verb in ("ls", "show", "verify", "digest"):
        fails(store, "tp-ckpt", verb, URL, says="no checkpoint of tp-train, nor of another framework", code=2)
        fails(store, "tp-ckpt", verb, URL, says="AWS_ACCESS_KEY_ID is not", code=2, AWS_ACCESS_KEY_ID="")
    fails(store, "tp-ckpt", "diff", URL, folders["dcp"], says="nor of another framework", code=2)
    store.add_tree(KEY, folders["dcp"])
    fails(store, "tp-ckpt", "ls", URL + "?versionId=1", says="no checkpoint", code=2)
    store.faults.append(Fault(403, times=99, path=".distcp", code="AccessDenied"))
    fails(store, "tp-ckpt", "digest", URL, says="AccessDenied")
    store.faults[:] = [Fault("etag", times=99, path="__0_0.distcp", after=1), Fault("etag", times=99, path="__RANK_0", after=1)]
    fails(store, "tp-ckpt", "digest", URL, says="another program replaced it")
    store.faults[:] = [Fault(403, times=99, path="config.json", code="AccessDenied")]
    fails(store, "tp-ckpt", "ls", URL, says="AccessDenied")
    store.faults.clear()
    del store.requests[:]
    ok(store, "tp-ckpt", "digest", URL)
    asked = sum(path.endswith("/config.json") for _, path, _ in store.requests)
    store.faults.append(Fault(403, times=99, path="/config.json", after=asked - 1, code="AccessDenied"))  # names depend on the model
    fails(store, "tp-ckpt", "digest", URL, says="/config.json: .*AccessDenied")
    fails(store, "tp-ckpt", "ls", URL, AWS_ENDPOINT_URL="http://127.0.0.1:1", TP_REMOTE_TIMEOUT="1", says="tries in")


def test_faults_that_pass_change_nothing(folders, store):
    store.add_tree(KEY, folders["megatron"])
    store.faults += [Fault("drop", times=2, path=KEY), Fault(503, after=5, code="SlowDown"), Fault("truncate", after=9)]
    assert ok(store, "tp-ckpt", "digest", URL).out == harness.ok("tp-ckpt", "digest", folders["megatron"]).out


def fetched(store):
    """Bytes of the ranges that were asked for."""
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", {k.lower(): v for k, v in h.items()}.get("range", "")) for _, _, h in store.requests]
    return sum(int(r[2]) + 1 - int(r[1]) for r in ranges if r)


MEM = "192M" if harness.SANITIZE else "96M"  # a sanitizer's own memory counts


def test_a_large_one_is_read_in_long_ranges_within_the_memory(tmp_path, store, monkeypatch, figure):
    config = harness.write_config(tmp_path, hidden_size=512, intermediate_size=1536, head_dim=64, vocab_size=20000)
    harness.ok(harness.built("make_ckpt"), config, "tp1", tmp_path / "ckpt", 1, 5)
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "dcp", "--format", "dcp")
    store.add_tree(KEY, tmp_path / "dcp")
    size = sum(f.stat().st_size for f in (tmp_path / "dcp").rglob("*"))
    assert size > 150 << 20
    for name, value in store.environment().items():
        monkeypatch.setenv(name, value)
    for argv in (["verify", URL], ["digest", URL], ["diff", URL, str(tmp_path / "ckpt")]):
        del store.requests[:]
        code, peak, _, out = harness.measure(tmp_path, "tp-ckpt", *argv, "--mem", MEM)
        sent, bytes_ = len(store.requests), fetched(store)
        figure("%s in a store: requests, bytes fetched / bytes, peak MiB" % argv[0], (sent, round(bytes_ / size, 2), peak >> 20))
        assert code == 0, out
        assert harness.SANITIZE or peak <= 96 << 20, argv
        assert sent < size / (512 << 10) and bytes_ < 1.3 * size, argv
    del store.requests[:]
    ok(store, "tp-ckpt", "ls", URL)
    figure("ls in a store: requests, bytes fetched / bytes", (len(store.requests), round(fetched(store) / size, 3)))
    assert fetched(store) < size / 10, "headers only"
    if not harness.SANITIZE:
        fails(store, "tp-ckpt", "digest", URL, "--mem", "20M", says="--mem 20.0 MiB is too little", code=2)
