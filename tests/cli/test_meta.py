"""Meta's own checkpoints of Llama, params.json and consolidated.NN.pth, and Mistral's consolidated.safetensors: imported, converted,
exported, looked at, and what is refused. The files are written from random weights in Hugging Face's order; Meta's own code is asked
in tests/clients/test_meta.py.

needs: tp-ckpt tp-reshard
covers: reshard/formats/meta/meta reshard/formats/meta/meta_rank reshard/formats/meta/meta_params reshard/formats/meta/meta_config
    reshard/formats/meta/meta_target
"""
import json
import pickle
import shutil

import numpy as np
import pytest

import torch_files
from harness import ok, run

NAMES = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "output.weight"}
LAYER = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attention.wq",
         "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
         "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3"}
AXES = {"wo": 1, "w2": 1, "norm": None, "attention_norm": None, "ffn_norm": None}
PARAMS = dict(dim=64, n_layers=2, n_heads=8, n_kv_heads=4, vocab_size=96, multiple_of=32, norm_eps=1e-6, rope_theta=500000.0)
NARROW = dict(dim=16, n_layers=1, n_heads=8, n_kv_heads=8, vocab_size=32000, multiple_of=16, norm_eps=1e-5)  # Llama 2's vocabulary


def width(p):
    n = int(p.get("ffn_dim_multiplier", 1) * int(8 * p["dim"] / 3))
    return -(-n // p["multiple_of"]) * p["multiple_of"]


def config_of(p, tied=False, **changes):
    scaled = {"rope_type": "llama3", "factor": 32.0 if tied else 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": p["vocab_size"], "hidden_size": p["dim"],
            "intermediate_size": width(p), "num_hidden_layers": p["n_layers"], "num_attention_heads": p["n_heads"],
            "num_key_value_heads": p["n_kv_heads"], "rms_norm_eps": p["norm_eps"], "rope_theta": p.get("rope_theta", 10000.0),
            "rope_scaling": scaled if p.get("use_scaled_rope") else None, "tie_word_embeddings": tied, **changes}


def weights(p, rng, tied=False, dtype=np.uint16, head_dim=None, ffn=None):
    """Random weights under Hugging Face's names; bits of bf16 for u16."""
    dim, hd, ffn = p["dim"], head_dim or p["dim"] // p["n_heads"], ffn or width(p)
    shapes = {"self_attn.q_proj": (p["n_heads"] * hd, dim), "self_attn.k_proj": (p["n_kv_heads"] * hd, dim),
              "self_attn.v_proj": (p["n_kv_heads"] * hd, dim), "self_attn.o_proj": (dim, p["n_heads"] * hd), "mlp.gate_proj": (ffn, dim),
              "mlp.up_proj": (ffn, dim), "mlp.down_proj": (dim, ffn), "input_layernorm": (dim,), "post_attention_layernorm": (dim,)}
    out = {"model.embed_tokens.weight": (p["vocab_size"], dim), "model.norm.weight": (dim,),
           **({} if tied else {"lm_head.weight": (p["vocab_size"], dim)}),
           **{"model.layers.%d.%s.weight" % (i, k): v for i in range(p["n_layers"]) for k, v in shapes.items()}}
    return {k: rng.integers(0, 0x3f80, shape).astype(dtype) if dtype == np.uint16 else rng.random(shape).astype(dtype)
            for k, shape in out.items()}


def name_of(ours):
    parts = ours.removesuffix(".weight").split(".", 3)
    return NAMES.get(ours) or "layers.%s.%s.weight" % (parts[2], LAYER[parts[3]])


def theirs(w, p, ranks, columns=False, head_dim=None):
    """[{Meta's name: array}] of each rank: rows of Q and K as (pair, half), linear layers cut as by fairscale."""
    hd, out = head_dim or p["dim"] // p["n_heads"], [{} for _ in range(ranks)]
    for ours, x in w.items():
        name = name_of(ours)
        kind = name.split(".")[-2]
        axis = AXES.get(kind, 1 if columns and kind == "tok_embeddings" else 0)
        if kind in ("wq", "wk"):
            x = x.reshape(-1, 2, hd // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        if kind in ("wk", "wv") and p["n_kv_heads"] < ranks:
            x = x.reshape(p["n_kv_heads"], hd, -1).repeat(ranks // p["n_kv_heads"], 0).reshape(-1, x.shape[1])
        for rank, part in enumerate([x] * ranks if axis is None else np.split(x, ranks, axis)):
            out[rank][name] = np.ascontiguousarray(part)
    return out


def write(folder, parts, params, change=None):
    """Write the files; change(parts, params) first."""
    params = dict(params)
    if change:
        change(parts, params)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.json").write_text(json.dumps(params))
    for rank, tensors in enumerate(parts):
        torch_files.save(folder / ("consolidated.%02d.pth" % rank),
                         {k: v if isinstance(v, torch_files.Tensor) else torch_files.Tensor(v) for k, v in tensors.items()})
    return folder


def write_safetensors(path, tensors, config=None):
    header, at, kinds = {}, 0, {"f32": "F32", "bf16": "BF16", "f16": "F16"}
    for name, array in tensors.items():
        header[name] = {"dtype": kinds[torch_files.kind_of(array)], "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in tensors.values()))
    if config:
        (path.parent / "config.json").write_text(json.dumps(config))
    return path.parent


def read(folder):
    return [torch_files.load(f.read_bytes()) for f in sorted(folder.glob("*.pth"))]


def same(found, want):
    assert len(found) == len(want)
    for a, b in zip(found, want):
        assert a.keys() == b.keys()
        for k in b:
            assert a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]), k


def digest(path, *options):
    return ok("tp-ckpt", "digest", path, *options).out.splitlines()[:-1]


@pytest.fixture
def rng(request):
    seed = np.random.SeedSequence().entropy % 2**32
    print("seed", seed)
    return np.random.default_rng(seed)


# ---- read ----

SCALED = dict(PARAMS, use_scaled_rope=True, ffn_dim_multiplier=1.3)
KINDS = {"rows": (PARAMS, False), "columns": (dict(PARAMS, rope_theta=None), True), "scaled": (SCALED, False), "tied": (SCALED, False),
         "same storage": (SCALED, False), "no head": (SCALED, False)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_without_config_json_is_imported(kind, rng, tmp_path):
    """The weights and the config.json are those of the model that was written, whatever the number of files."""
    params, columns = KINDS[kind]
    tied = kind in ("tied", "same storage", "no head")
    ranks = int(rng.choice([1, 2, 4, 8]))
    params = {k: v for k, v in params.items() if v is not None}
    w = weights(params, rng, tied, rng.choice([np.uint16, np.float16]))
    parts = theirs(w, params, ranks, columns)
    for tensors in parts:
        if kind == "tied":
            tensors["output.weight"] = tensors["tok_embeddings.weight"].copy()
        if kind == "same storage":
            tensors["output.weight"] = tensors["tok_embeddings.weight"] = torch_files.Tensor(tensors["tok_embeddings.weight"])
        if kind == "rows":
            tensors["rope.freqs"] = np.ones(4, np.float32)
    said = dict(params, vocab_size=-1) if kind == "columns" else {"model": params} if kind == "rows" else params
    folder = write(tmp_path / "m", parts, said)
    r = ok("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt")
    assert ", Meta's consolidated files\n" in r.out, repr(r)
    assert ("left out 1: lm_head.weight" in r.out) == (kind in ("tied", "same storage")) == ("left out" in r.out), repr(r)
    assert ranks == 1 or ("cut by %s" % ("columns" if columns else "rows")) in r.err, repr(r)
    hf = write_safetensors(tmp_path / "hf/model.safetensors", w, config_of(params, tied))
    assert digest(tmp_path / "ckpt") == digest(hf)
    assert ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "out")
    mine, want = json.loads((tmp_path / "out/config.json").read_text()), config_of(params, tied)
    assert {k: mine[k] for k in want if want[k] is not None} == {k: v for k, v in want.items() if v is not None}
    assert ("rope_scaling" in mine) == bool(want["rope_scaling"])


@pytest.mark.parametrize("tied", [False, True])
def test_one_storage_of_all_tensors_is_read(tied, rng, tmp_path):
    """Files of Llama 1 have views of one storage, and no CRC-32 of a tensor alone."""
    w = weights(SCALED, rng, tied)
    parts = theirs(w, SCALED, 2, not tied)
    for tensors in parts:
        if tied:
            tensors["output.weight"] = tensors["tok_embeddings.weight"]
        whole, at = np.concatenate([x.reshape(-1) for x in tensors.values()]), 0
        for k, x in tensors.items():
            tensors[k] = torch_files.Tensor(None, whole, at, x.shape, [s // 2 for s in x.strides])
            at += x.size
    folder = write(tmp_path / "m", parts, SCALED)
    ok("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt")
    assert digest(tmp_path / "ckpt") == digest(write_safetensors(tmp_path / "hf/model.safetensors", w, config_of(SCALED, tied)))


def test_mistrals_own_file_is_read(rng, tmp_path):
    params = dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, hidden_dim=80, vocab_size=96, norm_eps=1e-5)
    config = config_of(dict(params, multiple_of=1), architectures=["MistralForCausalLM"], model_type="mistral", head_dim=32,
                       intermediate_size=80)
    for window, theta in ((None, 1e6), (16, 1e4)):  # as mistral-inference chooses it
        w = weights(params, rng, head_dim=32, ffn=80)
        folder = write_safetensors(tmp_path / str(window) / "consolidated.safetensors", theirs(w, params, 1, head_dim=32)[0])
        (folder / "params.json").write_text(json.dumps(dict(params, sliding_window=window)))
        hf = write_safetensors(tmp_path / ("hf%s/model.safetensors" % window), w, config)
        assert digest(folder) == digest(hf)
        ok("tp-reshard", folder, "--to", "tp1", "--format", "safetensors", "-o", tmp_path / ("out%s" % window))
        mine = json.loads((tmp_path / ("out%s" % window) / "config.json").read_text())
        assert (mine["model_type"], mine["sliding_window"], mine["rope_theta"]) == ("mistral", window, theta)


def test_files_of_hugging_face_come_first(rng, tmp_path):
    w = weights(PARAMS, rng)
    write(tmp_path / "m", theirs(w, PARAMS, 2), PARAMS)
    write_safetensors(tmp_path / "m/model.safetensors", w, config_of(PARAMS))
    assert json.loads(ok("tp-ckpt", "ls", tmp_path / "m", "--json").out)[0]["format"] == "safetensors"
    assert ", Meta's consolidated files" in ok("tp-ckpt", "import", tmp_path / "m", "--format", "meta", "-o", tmp_path / "ckpt").out
    assert [d.split()[0] for d in digest(tmp_path / "ckpt")] == [d.split()[0] for d in digest(tmp_path / "m")]


# ---- written ----

@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("start", ["meta", "checkpoint"])
def test_any_number_of_ranks_becomes_any_other(start, tied, rng, tmp_path):
    params, w = SCALED, weights(SCALED, rng, tied)
    here, there = (int(x) for x in rng.choice([1, 2, 4, 8], 2))
    print("from", here, "to", there)
    source = write(tmp_path / "m", theirs(w, params, here), params)
    if start == "meta":
        r = ok("tp-reshard", source, "--to", "tp%d" % there, "-o", tmp_path / "out")
    else:
        ok("tp-ckpt", "import", source, "-o", tmp_path / "ckpt", "--layout", "tp2pp2")
        r = ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "out", "--format", "meta", "--layout", "tp%d" % there)
    want = theirs(w, params, there)
    for tensors in want if tied else ():
        tensors["output.weight"] = tensors["tok_embeddings.weight"]
    same(read(tmp_path / "out"), want)
    said = json.loads((tmp_path / "out/params.json").read_text())
    assert said.pop("n_kv_heads") == max(4, there) and width(said) == width(params) and said["use_scaled_rope"], said
    assert {k: said[k] for k in params if k not in ("n_kv_heads", "multiple_of", "ffn_dim_multiplier")} == \
        {k: v for k, v in params.items() if k not in ("n_kv_heads", "multiple_of", "ffn_dim_multiplier")}
    assert "each of 8 ranks has one" in r.err or there < 8, repr(r)
    hf = write_safetensors(tmp_path / "hf/model.safetensors", w, config_of(params, tied))
    assert [d for d in digest(tmp_path / "out") if not tied or "lm_head" not in d] == digest(hf)


def test_the_embedding_of_llama_2_is_cut_by_columns(rng, tmp_path):
    w = weights(NARROW, rng)
    source = write_safetensors(tmp_path / "hf/model.safetensors", w, config_of(NARROW))
    r = ok("tp-reshard", source, "--to", "tp4", "--format", "meta", "-o", tmp_path / "out")
    assert "cut by columns" in r.err, repr(r)
    same(read(tmp_path / "out"), theirs(w, NARROW, 4, columns=True))
    assert "rope_theta" not in json.loads((tmp_path / "out/params.json").read_text())  # which its code does not know


def test_the_embedding_stays_cut_as_it_is(rng, tmp_path):
    """From Meta's format to itself, whatever the vocabulary: rows where its size says columns, and the other way."""
    for i, (params, columns) in enumerate([(NARROW, False), (dict(NARROW, vocab_size=96), True)]):
        w = weights(params, rng)
        folder = write(tmp_path / str(i), theirs(w, params, 2, columns), params)
        ok("tp-reshard", folder, "--to", "tp4", "-o", tmp_path / ("out%d" % i))
        same(read(tmp_path / ("out%d" % i)), theirs(w, params, 4, columns))
        assert ("rope_theta" in json.loads((tmp_path / ("out%d" % i) / "params.json").read_text())) == (not columns)
        ok("tp-reshard", folder, "--to", "tp2", "-o", tmp_path / ("out%d" % i), "--force")
        same(read(tmp_path / ("out%d" % i)), theirs(w, params, 2, columns))


def test_arguments_are_found_that_give_the_mlp_its_width(rng, tmp_path):
    for i in range(12):
        params = dict(PARAMS, dim=int(rng.choice([16, 32, 48])), n_layers=1, vocab_size=8)
        ffn = int(rng.integers(1, 300))
        hf = write_safetensors(tmp_path / str(i) / "model.safetensors", weights(params, rng, ffn=ffn),
                               config_of(params, intermediate_size=ffn))
        ok("tp-reshard", hf, "--to", "tp1", "--format", "meta", "-o", tmp_path / ("out%d" % i))
        assert width(json.loads((tmp_path / ("out%d" % i) / "params.json").read_text())) == ffn


@pytest.mark.parametrize("changes, to, words", [
    ({}, "tp3", "its 8 heads of 8 on axis 0 are not divisible by tp 3"), ({}, "tp16", "are not divisible by tp 16"),
    ({"vocab_size": 97}, "tp2", "vocab_size 97 cannot be divided among tp2"),
    ({}, "tp2pp2", "give --to tp2"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "tp1", "another rope_scaling"),
    ({"attention_bias": True}, "tp1", "biases"), ({"head_dim": 16}, "tp1", "not as wide together"),
    ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "tp1", "Llama alone")])
def test_what_metas_code_does_not_have_is_not_written(changes, to, words, rng, tmp_path):
    params = dict(PARAMS, vocab_size=changes.get("vocab_size", 96))
    w = weights(params, rng, head_dim=changes.get("head_dim"))
    for k in [k for k in w if "q_proj" in k or "k_proj" in k or "v_proj" in k]:
        if "attention_bias" in changes or "architectures" in changes:
            w[k.replace("weight", "bias")] = w[k][:, 0].copy()
    for k in [k for k in w if "o_proj" in k]:
        if "attention_bias" in changes:
            w[k.replace("weight", "bias")] = w[k][:, 0].copy()
    hf = write_safetensors(tmp_path / "hf/model.safetensors", w, config_of(params, **changes))
    r = run("tp-reshard", hf, "--to", to, "--format", "meta", "-o", tmp_path / "out")
    assert r.rc == 2 and words in r.err and len(r.lines) == 1 and not (tmp_path / "out").exists(), repr(r)


# ---- refused ----

def set_param(key, value):
    return lambda parts, params: params.__setitem__(key, value)


def set_tensor(name, change, ranks=(0, 1)):
    def apply(parts, params):
        for rank in ranks:
            parts[rank][name] = change(parts[rank][name])
    return apply


def add_tensor(name):
    return lambda parts, params: parts[0].__setitem__(name, np.zeros((2, 2), np.uint16))


WQ, W1, WO = "layers.0.attention.wq.weight", "layers.1.feed_forward.w1.weight", "layers.0.attention.wo.weight"
DAMAGED = {
    "width": (set_param("dim", 32), 3, "dim is 32, but tensor norm.weight"),
    "layers": (set_param("n_layers", 3), 3, "n_layers is 3, but"),
    "fewer layers": (set_param("n_layers", 1), 3, "has a tensor layers.1.attention.wq.weight"),
    "heads": (set_param("n_heads", 16), 3, "n_kv_heads is 4, but tensor layers.0.attention.wk.weight"),
    "no divisor": (set_param("n_heads", 7), 2, "n_heads 7, which does not divide its dim"),
    "mlp": (set_param("multiple_of", 256), 3, "multiple_of and ffn_dim_multiplier give 256"),
    "vocabulary": (set_param("vocab_size", 128), 3, "vocab_size is 128"),
    "no number": (set_param("dim", "64"), 2, 'dim "64", which is not a size'),
    "none": (lambda parts, params: params.pop("n_layers"), 2, "has no n_layers"),
    "experts": (set_param("moe", {"num_experts": 8}), 2, "import its files of Hugging Face"),
    "vision": (set_param("vision_chunk_size", 448), 2, "import its files of Hugging Face"),
    "windows": (set_param("_sliding_window", [None, 4]), 2, "import its files of Hugging Face"),
    "quantized": (set_param("quantization_args", {"spinquant": True}), 2, "import its files of Hugging Face"),
    "vision's tensors": (add_tensor("vision_model.conv1.weight"), 2, "this is a model with vision"),
    "experts' tensors": (add_tensor("layers.0.feed_forward.experts.moe_w_in_eD_F"), 2, "this is a mixture of experts"),
    "unknown": (add_tensor("layers.0.attention.other.weight"), 2, "layers.*.attention.other.weight"),
    "of one rank": (lambda parts, params: parts[1].__setitem__("layers.2.attention.wq.weight", parts[1][WQ]), 3,
                    "consolidated.01.pth: has tensor layers.2.attention.wq.weight, which neither"),
    "lost in a rank": (lambda parts, params: parts[1].pop(W1), 3, "gate_proj"),
    "lost": (lambda parts, params: [x.pop(W1) for x in parts], 3, "gate_proj"),
    "another rank": (set_tensor(W1, lambda x: x[:-1], [1]), 3, "consolidated.01.pth: tensor " + W1 + " is [95, 64]"),
    "columns": (set_tensor(WO, lambda x: x[:, :-3]), 3, "but"),
    "flat": (set_tensor(WQ, lambda x: x.reshape(-1)), 3, "consolidated.00.pth: tensor " + WQ),
    "embedding": (set_tensor("tok_embeddings.weight", lambda x: x[:, :40]), 3, "makes 80 with 2 files"),
    "head": (set_tensor("output.weight", lambda x: x[:40]), 3, "makes 80 with 2 files"),
    "no wo": (lambda parts, params: [x.pop(WO) for x in parts], 3, "has no tensor " + WO),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_what_does_not_fit_is_refused_by_name(kind, rng, tmp_path):
    change, rc, words = DAMAGED[kind]
    folder = write(tmp_path / "m", theirs(weights(PARAMS, rng), PARAMS, 2), PARAMS, change)
    for argv in (["tp-ckpt", "import", folder], ["tp-reshard", folder, "--to", "tp4"]):
        r = run(*argv, "-o", tmp_path / "out")
        assert r.rc == rc and words in r.err and not list((tmp_path / "out").glob("*")), repr(r)


def test_a_config_json_of_other_heads_is_refused(rng, tmp_path):
    """Shapes do not say how many there are, and rows of Q and K would be in another order."""
    folder = write(tmp_path / "m", theirs(weights(PARAMS, rng), PARAMS, 2), PARAMS)
    (tmp_path / "config.json").write_text(json.dumps(config_of(dict(PARAMS, n_heads=4, n_kv_heads=2))))
    r = run("tp-ckpt", "import", folder, "--config", tmp_path / "config.json", "-o", tmp_path / "out")
    assert r.rc == 3 and "params.json: has 8 heads of 8, but config.json's model has 4 of 16" in r.err and len(r.lines) == 1, repr(r)
    (folder / "params.json").unlink()
    ok("tp-ckpt", "import", folder, "--config", tmp_path / "config.json", "-o", tmp_path / "out")


@pytest.mark.parametrize("name", ["tok_embeddings.weight", "output.weight", WQ, W1])
def test_lengths_of_empty_tensors_cause_no_overflow(name, rng, tmp_path):
    def change(parts, params):
        for tensors in parts:
            tensors[name] = torch_files.Tensor(None, np.zeros(0, np.uint16), 0, (2 ** 62, 0), (1, 1))
    folder = write(tmp_path / "m", theirs(weights(PARAMS, rng), PARAMS, 2), PARAMS, change)
    r = run("tp-ckpt", "import", folder, "-o", tmp_path / "out")
    assert r.rc == 3 and "consolidated.00.pth" in r.err and name in r.err and "longer than any file" in r.err, repr(r)


def test_files_that_are_missing_or_too_many_are_named(rng, tmp_path):
    folder = write(tmp_path / "m", theirs(weights(PARAMS, rng), PARAMS, 8), PARAMS)
    (folder / "consolidated.03.pth").rename(tmp_path / "3")
    r = run("tp-ckpt", "import", folder, "-o", tmp_path / "out")
    assert r.rc == 3 and "the shapes in consolidated.00.pth are those of 8 files: " in r.err and "consolidated.03.pth" in r.err, repr(r)
    (folder / "consolidated.05.pth").unlink()
    r = run("tp-ckpt", "import", folder, "-o", tmp_path / "out")
    assert r.rc == 3 and "2 files of this checkpoint are missing: consolidated.03.pth, consolidated.05.pth" in r.err, repr(r)
    (folder / "consolidated.00.pth").rename(tmp_path / "0")
    r = run("tp-ckpt", "import", folder, "-o", tmp_path / "out")
    assert r.rc == 2 and "there is no consolidated.00.pth" in r.err, repr(r)
    more = write(tmp_path / "more", theirs(weights(PARAMS, rng), PARAMS, 2), PARAMS)
    shutil.copy(tmp_path / "0", more / "consolidated.02.pth")
    r = run("tp-ckpt", "import", more, "-o", tmp_path / "out")
    assert r.rc == 3 and "has consolidated.02.pth, but" in r.err, repr(r)
    (more / "params.json").unlink()
    r = run("tp-ckpt", "import", more, "-o", tmp_path / "out")
    assert r.rc == 2 and "params.json: there is no such file" in r.err and "--config" in r.err, repr(r)
    (more / "params.json").write_text("{")
    r = run("tp-ckpt", "import", more, "-o", tmp_path / "out")
    assert r.rc == 2 and "params.json: is not a JSON object" in r.err, repr(r)
    r = run("tp-ckpt", "import", more / "consolidated.00.pth", "-o", tmp_path / "out")
    assert r.rc == 2 and "name that folder" in r.err, repr(r)
    (more / "consolidated.00.pth").write_bytes(pickle.dumps(0x1950a86a20f9469cfc6c, 2) + pickle.dumps(1001, 2))
    r = run("tp-ckpt", "import", more, "--config", more, "-o", tmp_path / "out")
    assert r.rc in (2, 3), repr(r)


def test_files_of_before_torch_1_6_are_named(rng, tmp_path):
    folder = write(tmp_path / "m", theirs(weights(PARAMS, rng), PARAMS, 1), PARAMS)
    (folder / "consolidated.00.pth").write_bytes(pickle.dumps(0x1950a86a20f9469cfc6c, 2) + pickle.dumps(1001, 2) + bytes(200))
    r = run("tp-ckpt", "import", folder, "-o", tmp_path / "out")
    assert r.rc == 3 and "consolidated.00.pth" in r.err and "of before torch 1.6, which is not read; load it with torch and save it again" in r.err, repr(r)


def test_heads_that_ranks_share_must_be_equal(rng, tmp_path):
    w = weights(PARAMS, rng)
    folder = write(tmp_path / "m", theirs(w, PARAMS, 8), PARAMS)
    hf = write_safetensors(tmp_path / "hf/model.safetensors", w, config_of(PARAMS))
    assert digest(folder) == digest(hf)
    # as Meta has published Llama 3.1 405B for 16 ranks: params.json says that there are as many heads
    write(tmp_path / "more", theirs(w, PARAMS, 8), dict(PARAMS, n_kv_heads=8))
    assert digest(tmp_path / "more", "--config", hf) == digest(hf)
    shown = json.loads(ok("tp-ckpt", "show", tmp_path / "more", "--json").out)["tensors"]
    assert {t["shape"][0] for t in shown if "k_proj" in t["name"]} == {64}
    folder = write(tmp_path / "bad", theirs(w, PARAMS, 8), PARAMS, lambda parts, _: parts[5].update({
        "layers.1.attention.wv.weight": parts[5]["layers.1.attention.wv.weight"] + np.uint16(1)}))
    r = run("tp-ckpt", "import", folder, "-o", tmp_path / "out")
    assert r.rc == 3 and "consolidated.05.pth: tensor layers.1.attention.wv.weight differs" in r.err, repr(r)


def test_a_flipped_bit_is_found(rng, tmp_path):
    folder = write(tmp_path / "m", theirs(weights(PARAMS, rng), PARAMS, 2), PARAMS)
    verified = json.loads(ok("tp-ckpt", "verify", folder, "--json").out)
    assert verified["ok"] and verified["bytes_checked"] and not verified["bytes_without_checksum"]
    piece = json.loads(ok("tp-ckpt", "show", folder, "model.layers.1.mlp.down_proj.weight", "--json").out)["pieces"][1]
    with open(piece["file"], "r+b") as f:
        f.seek(piece["byte"] + 7)
        byte = f.read(1)[0]
        f.seek(piece["byte"] + 7)
        f.write(bytes([byte ^ 4]))
    assert run("tp-ckpt", "verify", folder).rc == 1
    r = run("tp-ckpt", "import", folder, "-o", tmp_path / "out")
    assert r.rc == 3 and "consolidated.01.pth" in r.err and "CRC" in r.err, repr(r)
