"""Files that were made to mislead use at most 64 MiB more memory than honest ones.

The peak of each program is what wait4 reports (ru_maxrss).

needs: tp-train tp-reshard tp-ckpt
"""
import hashlib
import json

import pytest

import harness

MIB = 1 << 20
SIZE = (64 if harness.LONG else 4) * MIB
ALLOWED = 64 * MIB


def sign(body):
    """A manifest with its right checksum."""
    return body + b'"checksum": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode()


def fill(unit, separator=b",", size=None):
    n = (size or SIZE) // len(unit + separator)
    return separator.join([unit] * n)


def manifests(honest):
    """Texts before the checksum, from that of an honest manifest."""
    whole = json.loads(honest)
    del whole["checksum"]

    def with_raw(key, raw):
        rest = {k: v for k, v in whole.items() if k != key}
        return json.dumps(rest).encode()[:-1] + b', "%s": %s,\n' % (key.encode(), raw)

    tensor = json.dumps(whole["tensors"][0]).encode()
    layout = json.dumps(whole["layout"]).encode()
    train = json.dumps(whole["train"]).encode()
    return {
        "tensors that are empty objects": with_raw("tensors", b"[" + fill(b"{}") + b"]"),
        "a tensor of many parts": with_raw("tensors", b"[" + tensor[:-1] + b', "x": [' + fill(b"{}") + b"]}]"),
        "shards that are lists": with_raw("shards", b"[" + fill(b"[]") + b"]"),
        "a member that no reader knows": with_raw("other", b"[" + fill(b"[[]]") + b"]"),
        "many members": with_raw("a", b"0, " + fill(b'"b": {}', b", ")),
        "many stages": with_raw("layout", layout[:-1] + b', "x": [' + fill(b"0") + b"]}"),
        "large options": with_raw("train", train[:-1] + b', "x": {"y": [' + fill(b'{"z":{}}') + b"]}}"),
        "a large config": with_raw("model_config", json.dumps(
            "[" + fill(b"{}", size=min(SIZE, 3 * MIB)).decode() + "]").encode()),
        "a long name": with_raw("tensors", b'[{"name": "' + fill(b"n", b"") + b'"}]'),
        "nested lists": with_raw("other", b"[" * SIZE),
    }


@pytest.fixture(scope="module")
def manifest_of(trained):
    return (harness.steps(trained)[-1] / "manifest.json").read_bytes()


@pytest.mark.parametrize("program", ["verify", "show", "reshard", "train"])
def test_a_hostile_manifest_uses_no_more_memory(program, ckpt, tiny, tmp_path, manifest_of, figure):
    step = harness.steps(ckpt)[-1]
    argv = {"verify": ["tp-ckpt", "verify", step], "show": ["tp-ckpt", "show", step, "--json"],
            "reshard": ["tp-reshard", step, "--to", "tp1", "--mem", "64M", "-o", tmp_path / "out"],
            "train": harness.train_args(tiny, ckpt, steps=3, layout="tp1", resume="must"),
            }[program]
    code, honest, _, said = harness.measure(tmp_path, *argv)
    assert code == 0, said
    if program == "train":
        step = harness.steps(ckpt)[-1]
    worst = 0
    for name, body in manifests(manifest_of).items():
        for s in harness.steps(ckpt):
            (s / "manifest.json").write_bytes(sign(body))
        code, peak, _, said = harness.measure(tmp_path, *argv)
        assert code in (1, 2, 3), (name, code, said)
        # a sanitizer keeps what is freed
        assert harness.SANITIZE or peak <= honest + ALLOWED, "%s: %d MiB, honest %d" % (name, peak / MIB, honest / MIB)
        worst = max(worst, peak)
    figure("MiB of %s with an honest manifest, and with hostile ones of %d MiB" % (program, SIZE / MIB),
           "%d, at most %d" % (honest / MIB, worst / MIB))


def headers():
    """JSON texts of safetensors headers, and whether such a file is valid without tensors."""
    size = SIZE if harness.LONG else 4 * MIB
    return {
        "tensors that are empty objects": b"{" + b",".join(b'"%x":{}' % i for i in range(size // 12)) + b"}",
        "a tensor of many parts": b'{"a": {"x": [' + fill(b"{}", size=size) + b"]}}",
        "large metadata": b'{"__metadata__": {"x": [' + fill(b"{}", size=size) + b"]}}",
        "nested lists": b'{"a":' + b"[" * size,
        "a long name": b'{"' + fill(b"n", b"", size) + b'": {}}',
    }


def test_a_hostile_safetensors_header_uses_no_more_memory(ckpt, tmp_path, figure):
    hf = tmp_path / "hf"
    harness.ok("tp-ckpt", "export", ckpt, "-o", hf)
    code, honest, _, said = harness.measure(tmp_path, "tp-ckpt", "import", hf, "-o", tmp_path / "honest")
    assert code == 0, said
    worst = 0
    for name, header in headers().items():
        (hf / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        code, peak, _, said = harness.measure(tmp_path, "tp-ckpt", "import", hf, "-o", tmp_path / "out")
        assert code == 3, (name, code, said)
        # a sanitizer keeps what is freed
        assert harness.SANITIZE or peak <= honest + ALLOWED, "%s: %d MiB, honest %d" % (name, peak / MIB, honest / MIB)
        worst = max(worst, peak)
    figure("MiB of import with an honest header, and with hostile ones",
           "%d, at most %d" % (honest / MIB, worst / MIB))


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_other_hostile_json_of_a_model_uses_no_more_memory(file, ckpt, tmp_path):
    hf = tmp_path / "hf"
    harness.ok("tp-ckpt", "export", ckpt, "-o", hf)
    code, honest, _, said = harness.measure(tmp_path, "tp-ckpt", "import", hf, "-o", tmp_path / "honest")
    assert code == 0, said
    if file != "config.json":
        (hf / "model.safetensors").rename(hf / "other.safetensors")
    for text in (b"[" + fill(b"{}") + b"]", b'{"weight_map": {' + fill(b'"a": "b.safetensors"') + b"}}",
                 b'{"weight_map": {"a": [' + fill(b"{}") + b"]}}", b'{"a": [' + fill(b"{}") + b"]}"):
        (hf / file).write_bytes(text)
        code, peak, _, said = harness.measure(tmp_path, "tp-ckpt", "import", hf, "-o", tmp_path / "out")
        assert code in (2, 3), (code, said)
        assert peak <= honest + ALLOWED, "%d MiB, honest %d" % (peak / MIB, honest / MIB)
