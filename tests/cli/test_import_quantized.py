"""Weights in FP8 and MXFP4 with scales become bf16 when they are imported, converted or trained.

What must come out follows from the definitions of e4m3 (arXiv:2209.05433) and e2m1 (OCP Microscaling Formats) and is computed
by numpy; tests/clients compares with torch and transformers.

needs: tp-train tp-ckpt tp-reshard make_ckpt
covers: reshard/formats/safetensors/quantized
"""
import json
import os
import random

import numpy as np
import pytest

import harness
from harness import ok, run, train_args
from object_store import ObjectStore
from test_import import configure, rewrite
from test_reshard import make

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
# No axis but the vocabulary's is a multiple of 128, so blocks of 128 are cut off.
CONFIG = {"hidden_size": 192, "intermediate_size": 416, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 256}


def e4m3(byte):
    """The number that a byte of e4m3fn is."""
    sign, exponent, mantissa = -1.0 if byte & 128 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    return sign * (mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


NUMBERS = np.array([e4m3(b) for b in range(256)], np.float32)


def bf16(x):
    """Rounded to nearest even, as its 16 bits."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def blocks(rows, cols, kind):
    """(rows and columns of a block, type of scales, name's end)"""
    return {"block": (128, 128, "F32", "_scale_inv"), "row": (1, cols, "BF16", "_scale"), "tensor": (rows, cols, "F32", "_scale"),
            "mx": (1, 32, "F8_E8M0", "_scale_inv"), "bytes": (1, 32, "U8", "_scale_inv"), "64": (64, 32, "F16", "_scale_inv")}[kind]


def make_scales(rng, shape, dtype):
    """(scales, their bytes)"""
    if dtype in ("F8_E8M0", "U8"):
        exponents = rng.integers(100, 140, shape).astype(np.uint8)
        return 2.0 ** (exponents.astype(np.float32) - 127), exponents.tobytes()
    scales = rng.uniform(2 ** -10, 2, shape)
    if dtype == "BF16":
        bits = bf16(scales)
        return (bits.astype(np.uint32) << 16).view(np.float32), bits.tobytes()
    scales = scales.astype({"F32": np.float32, "F16": np.float16}[dtype])
    return scales.astype(np.float32), scales.tobytes()


def quantize(folder, kind, words=("proj",)):
    """Give the matrices with these words in their names random elements and scales. Returns {name: bits of bf16}."""
    rng, want = np.random.default_rng(SEED), {}

    def change(tensors):
        for name in [n for n in tensors if any(w in n for w in words) and len(tensors[n][1]) == 2]:
            rows, cols = tensors[name][1]
            block_rows, block_cols, dtype, end = blocks(rows, cols, kind)
            elements = rng.integers(0, 256, (rows, cols)).astype(np.uint8)
            elements[(elements & 127) == 127] = 0  # numbers only; NaN is for the unit test
            scales, content = make_scales(rng, (-(-rows // block_rows), -(-cols // block_cols)), dtype)
            tensors[name] = "F8_E4M3", (rows, cols), elements.tobytes()
            tensors[name + end] = dtype, () if kind == "tensor" else scales.shape, content
            spread = scales.repeat(block_rows, 0)[:rows].repeat(block_cols, 1)[:, :cols]
            want[name] = bf16(NUMBERS[elements] * spread)

    rewrite(folder, change)
    configure(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    return want


def bits(folder, names):
    found = {}
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    for name in names:
        begin, end = header[name]["data_offsets"]
        assert header[name]["dtype"] == "BF16", header[name]
        found[name] = np.frombuffer(data[8 + size + begin:8 + size + end], np.uint16).reshape(header[name]["shape"])
    assert not [n for n in header if "_scale" in n]
    return found


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    ok("tp-ckpt", "export", make(folder / "made", "tp1", CONFIG), "--format", "safetensors", "-o", folder / "hf")
    return folder / "hf"


@pytest.fixture
def hf(published, tmp_path):
    print("TP_SEED=%d" % SEED)
    return harness.copy(published, tmp_path / "hf")


def seen_as_imported(source, ckpt, env=None):
    """ls, verify, digest and diff see what an import reads."""
    r = ok("tp-ckpt", "diff", source, ckpt, env=env)
    assert r.out.startswith("equal: ") and "quantized weights are read as bf16" in r.err and "left out" not in r.err, repr(r)
    params = [line for line in ok("tp-ckpt", "digest", ckpt).out.splitlines() if "  param/" in line]
    assert ok("tp-ckpt", "digest", source, env=env).out.splitlines()[:-1] == params
    assert json.loads(ok("tp-ckpt", "ls", source, "--json", env=env).out)[0]["tensors"] == len(params)


@pytest.mark.parametrize("kind", ["block", "row", "tensor", "mx", "bytes", "64"])
def test_weights_in_fp8_are_imported_as_bf16(kind, hf, tmp_path):
    if kind in ("mx", "bytes", "64"):
        words = ("q_proj", "o_proj")  # whose axes such blocks divide
    else:
        words = ("proj",)
    want = quantize(hf, kind, words)
    r = ok("tp-ckpt", "import", hf, "--layout", "tp2", "-o", tmp_path / "ckpt", "--jobs", 2)
    assert "%d quantized weights are read as bf16, and config.json without quantization_config" % len(want) in r.err, repr(r)
    ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "out")
    got = bits(tmp_path / "out", want)
    assert all(np.array_equal(got[n], want[n]) for n in want)
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    seen_as_imported(hf, tmp_path / "ckpt")


def test_verify_compares_decoded_weights_with_the_config(hf, tmp_path):
    names = list(quantize(hf, "block"))
    stored = (hf / "model.safetensors").stat().st_size
    found = json.loads(ok("tp-ckpt", "verify", hf, "--json").out)
    assert found["ok"] and not [n for n in found["not_proved"] if "shapes" in n], found
    assert stored - 2 ** 16 < found["bytes_without_checksum"] < stored, (found, stored)
    rows = json.loads(ok("tp-ckpt", "show", hf, names[0], "--json").out)
    assert rows["dtype"] == "bf16" and [p["strides"] for p in rows["pieces"]] == [None], rows
    assert " - " in ok("tp-ckpt", "show", hf, names[0]).out
    configure(hf, intermediate_size=400)
    r = run("tp-ckpt", "verify", hf)
    assert r.rc == 1 and "[416, 192], but config.json says [400, 192]" in r.out, repr(r)


def test_a_conversion_and_the_trainer_decode_them_too(hf, tmp_path):
    want = quantize(hf, "block")
    ok("tp-reshard", hf, "--to", "tp2", "--format", "dcp", "-o", tmp_path / "dcp")
    ok("tp-reshard", tmp_path / "dcp", "--to", "tp1", "--format", "safetensors", "-o", tmp_path / "out")
    got = bits(tmp_path / "out", want)
    assert all(np.array_equal(got[n], want[n]) for n in want)
    for folder, name in ((hf, "a"), (tmp_path / "out", "b")):
        r = ok(*train_args(folder, tmp_path / name, steps=2, layout="tp2", log=tmp_path / (name + ".log")))
        told = "tp-train: %d quantized weights are read as bf16, and config.json without quantization_config\n" % len(want)
        assert (r.out + r.err).count(told) == (1 if name == "a" else 0), repr(r)
    assert harness.losses(tmp_path / "a.log") == harness.losses(tmp_path / "b.log")
    ok("tp-ckpt", "export", tmp_path / "a", "-o", tmp_path / "trained")
    assert "quantization_config" not in json.loads((tmp_path / "trained/config.json").read_text())


def test_a_remote_model_in_fp8_is_read(hf, tmp_path):
    want = quantize(hf, "block")
    with ObjectStore() as store:
        store.add_tree("models/hf", hf)
        ok("tp-ckpt", "import", "s3://models/hf", "--layout", "tp2", "-o", tmp_path / "ckpt", env=store.environment())
        seen_as_imported("s3://models/hf", tmp_path / "ckpt", store.environment())
    ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "out")
    got = bits(tmp_path / "out", want)
    assert all(np.array_equal(got[n], want[n]) for n in want)


def test_scales_that_do_not_divide_a_weight_are_refused(hf, tmp_path):
    quantize(hf, "block")
    name = "model.layers.1.mlp.up_proj.weight"

    def spoil(tensors):
        tensors[name + "_scale_inv"] = "F32", (3, 2), bytes(24)

    rewrite(hf, spoil)
    r = run("tp-ckpt", "import", hf, "-o", tmp_path / "ckpt")
    assert r.rc == 3 and len(r.lines) == 1 and not (tmp_path / "ckpt").exists(), repr(r)
    words = "tensor %s is [416, 192] in FP8, and its scales %s_scale_inv are [3, 2]" % (name, name)
    assert words in r.err, repr(r)
    r = run("tp-ckpt", "verify", hf)
    assert r.rc == 1 and words in r.out, repr(r)


def test_scales_of_integers_are_refused(hf, tmp_path):
    quantize(hf, "block")
    (hf / "config.json").write_text((hf / "config.json").read_text().replace("quantization_config", "comment"))
    name = "model.layers.0.mlp.up_proj.weight_scale_inv"
    rewrite(hf, lambda tensors: tensors.update({name: ("I32", (4, 2), bytes(32))}))
    r = run("tp-ckpt", "import", hf, "-o", tmp_path / "ckpt")
    assert r.rc == 3 and name in r.err and "supported are F32" in r.err, repr(r)


def test_rules_take_weights_in_fp8(hf, tmp_path):
    """As those of DeepSeek-V3, which have no table."""
    want = quantize(hf, "block")
    configure(hf, architectures=["MyModel"])
    names = sorted(json.loads((hf / "model.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}"))
    rules = sorted({n.replace("layers.0", "layers.*") for n in names if "layers.1" not in n and "_scale" not in n and n[0] != "_"},
                   key=lambda n: (n == "lm_head.weight" or n == "model.norm.weight", n))
    (tmp_path / "rules").write_text("".join("%s -\n" % n for n in rules))
    argv = ["tp-ckpt", "import", hf, "--rules", tmp_path / "rules", "-o", tmp_path / "ckpt"]
    ok(*argv)
    ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "safetensors", "-o", tmp_path / "out")
    got = bits(tmp_path / "out", want)
    assert all(np.array_equal(got[n], want[n]) for n in want)
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    (tmp_path / "rules").write_text("".join("%s -\n" % n for n in rules[1:]))
    r = run(*argv, "--force")
    assert r.rc == 2 and rules[0] in r.err and "quantized" not in r.err, repr(r)


# ---- MXFP4, as gpt-oss is published -------------------------------------------------------------------

HALVES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6] + [-0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
RULES = "embed.weight 0 pad\nlayers.*.experts.up_proj 2 unit=2\nlayers.*.experts.up_proj_bias 1 unit=2\nlayers.*.experts.down_proj 1\n"


def pack(rng, experts, rows, groups):
    """(blocks, scales, bits of bf16 of the weight that they are: [experts, 32 groups, rows])"""
    blocks = rng.integers(0, 256, (experts, rows, groups, 16)).astype(np.uint8)
    scales = rng.integers(100, 140, (experts, rows, groups)).astype(np.uint8)
    halves = np.stack([HALVES[blocks & 15], HALVES[blocks >> 4]], -1).reshape(experts, rows, groups, 32)
    numbers = halves * (2.0 ** (scales.astype(np.float32) - 127))[..., None]
    return blocks, scales, bf16(numbers.reshape(experts, rows, groups * 32).transpose(0, 2, 1))


def mxfp4_model(folder):
    """Experts in MXFP4, and other tensors that are not quantized. Returns {name: bits of bf16}."""
    rng, want, tensors = np.random.default_rng(SEED), {}, {}
    for layer in range(2):
        for name, rows, groups in (("up_proj", 40, 3), ("down_proj", 96, 2)):
            base = "layers.%d.experts.%s" % (layer, name)
            blocks, scales, want[base] = pack(rng, 3, rows, groups)
            tensors[base + "_blocks"] = "U8", blocks.shape, blocks.tobytes()
            tensors[base + "_scales"] = "U8", scales.shape, scales.tobytes()
        want["layers.%d.experts.up_proj_bias" % layer] = bf16(rng.standard_normal((3, 40)))
    want["embed.weight"] = bf16(rng.standard_normal((50, 96)))
    tensors.update({n: ("BF16", want[n].shape, want[n].tobytes()) for n in want if n.endswith(("bias", "weight"))})
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "config.json").write_text(json.dumps({"architectures": ["MyModel"], "quantization_config": {"quant_method": "mxfp4"}}))
    rewrite(folder, lambda t: t.update(tensors))
    return want


@pytest.mark.parametrize("where", ["local", "store"])
def test_experts_in_mxfp4_are_imported_as_bf16(where, tmp_path):
    print("TP_SEED=%d" % SEED)
    want = mxfp4_model(tmp_path / "hf")
    (tmp_path / "rules").write_text(RULES)
    with ObjectStore() as store:
        store.add_tree("models/hf", tmp_path / "hf")
        source = tmp_path / "hf" if where == "local" else "s3://models/hf"
        r = ok("tp-ckpt", "import", source, "--rules", tmp_path / "rules", "--layout", "tp2pp2", "-o", tmp_path / "ckpt", "--jobs", 2,
               env=store.environment())
        seen_as_imported(source, tmp_path / "ckpt", store.environment())
    assert "4 quantized weights are read as bf16, and" in r.err, repr(r)
    ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "safetensors", "-o", tmp_path / "out")
    got = bits(tmp_path / "out", want)
    assert all(np.array_equal(got[n], want[n]) for n in want)
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
