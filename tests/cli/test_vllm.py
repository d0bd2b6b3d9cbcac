"""vLLM's sharded state, written and read: the files are those of a description of vLLM's modules that is written here
from vLLM's source, and tests/clients/test_vllm.py compares with what vLLM itself saves.

needs: tp-ckpt tp-reshard
covers: reshard/formats/vllm/vllm reshard/formats/vllm/vllm_map reshard/formats/vllm/vllm_target
"""
import json
import random
import re
import shutil
import sys

import numpy as np
import pytest

import harness
from harness import ok, run
from test_families import FAMILIES, write

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
from oracle_numpy import load_safetensors, save_safetensors  # noqa: E402

# Those that vLLM has modules of its own for, with one Llama for all rotary embeddings.
NAMES = ["llama", "llama-biases", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "granite", "gpt2", "opt"]


def layouts(name):
    """Of 8 query heads and 4 or 8 key-value heads, which ranks share where they are not one tensor with the queries."""
    return (1, 2, 4) if name == "phi3" else (1, 2, 4, 8)


@pytest.fixture
def rng():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


# ---- what vLLM has ----

def of_rank(config, weights, tp, rank):
    """{name: array} of a rank."""
    heads = config.get("num_attention_heads") or config["n_head"]
    kv = config.get("num_key_value_heads") or heads
    gpt2, out = config["model_type"] == "gpt2", {}

    def rows(a):
        return np.split(a, tp)[rank]

    def kv_rows(a):
        return rows(a) if tp <= kv else np.split(a, kv)[rank // (tp // kv)]

    def qkv(a):
        hd = len(a) // (heads + 2 * kv)
        q, k, v = np.split(a, [heads * hd, (heads + kv) * hd])
        return np.concatenate([rows(q), kv_rows(k), kv_rows(v)])

    def vocabulary(a):
        return rows(np.concatenate([a, np.zeros((-len(a) % 64, a.shape[1]), a.dtype)]))

    for name, a in weights.items():
        if gpt2 and a.ndim == 2 and ".h." in name:
            a = a.T
        module, kind = name.rsplit(".", 1)
        stem, _, last = module.rpartition(".")
        beside = [weights.get("%s.%s_proj.%s" % (stem, other, kind)) for other in ("q", "k", "v", "gate", "up")]
        if last in ("embed_tokens", "wte", "lm_head"):
            out[name] = vocabulary(a)
        elif last == "q_proj":
            out[stem + ".qkv_proj." + kind] = qkv(np.concatenate(beside[:3]))
        elif last == "gate_proj":
            out[stem + ".gate_up_proj." + kind] = np.concatenate([rows(beside[3]), rows(beside[4])])
        elif last in ("k_proj", "v_proj", "up_proj"):
            pass
        elif last in ("qkv_proj", "c_attn"):
            out[name] = qkv(a)
        elif last == "gate_up_proj":
            out[name] = np.concatenate([rows(half) for half in np.split(a, 2)])
        elif last in ("fc1", "c_fc"):
            out[name] = rows(a)
        elif last in ("o_proj", "down_proj", "out_proj", "fc2", "c_proj") and kind == "weight":
            out[name] = np.split(a, tp, axis=1)[rank]
        else:
            out[name] = a
    if "lm_head.weight" not in out and config["model_type"] != "gemma2":  # one tensor, of whose names the first is saved
        embedding = next(n for n in out if n.endswith(("embed_tokens.weight", "wte.weight")))
        out["lm_head.weight"] = out.pop(embedding)
    for name in list(out):
        found = re.fullmatch(r"(.*\.\d+\.(self_attn|attn))\.(o_proj|out_proj|c_proj)\.weight", name)
        for scale in ("k", "v", "q", "prob") if found else ():
            out["%s.attn._%s_scale" % (found[1], scale)] = np.ones((), np.float32)
    return out


def files_of(folder):
    """{(rank, part): {name: array}}"""
    return {tuple(map(int, re.findall(r"\d+", f.name))): load_safetensors(f) for f in folder.glob("model-rank-*")}


def assert_is_vllms(folder, config, weights, tp):
    found = files_of(folder)
    assert {rank for rank, _ in found} == set(range(tp))
    for rank in range(tp):
        want = of_rank(config, weights, tp, rank)
        got = {k: v for (r, _), tensors in sorted(found.items()) if r == rank for k, v in tensors.items()}
        assert sorted(got) == sorted(want)
        for name, a in want.items():
            assert got[name].shape == a.shape and got[name].tobytes() == a.astype(np.float32).tobytes(), (rank, name)


def save(folder, model, config, weights, tp, parts=1):
    """What vLLM saves, in some parts."""
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    for rank in range(tp):
        tensors = sorted(of_rank(config, weights, tp, rank).items())
        for part in range(parts):
            save_safetensors(folder / ("model-rank-%d-part-%d.safetensors" % (rank, part)), dict(tensors[part::parts]))
    return folder


class Model:
    def __init__(self, folder, name, **changes):
        self.folder = folder / "model"
        self.weights = write(self.folder, name, **changes)
        self.config = json.loads((self.folder / "config.json").read_text())

    def save(self, folder, tp, **more):
        return save(folder, self.folder, self.config, self.weights, tp, **more)


# ---- written and read ----

@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_becomes_what_vllm_saves_and_comes_back(name, tmp_path, rng):
    model = Model(tmp_path, name)
    ok("tp-ckpt", "import", model.folder, "--layout", "tp2pp2", "-o", tmp_path / "ckpt")
    tp = rng.choice(layouts(name))
    ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "vllm", "--layout", "tp%d" % tp, "-o", tmp_path / "out")
    assert_is_vllms(tmp_path / "out", model.config, model.weights, tp)
    ok("tp-ckpt", "diff", tmp_path / "out", tmp_path / "ckpt")


@pytest.mark.parametrize("name", NAMES)
def test_what_vllm_saves_is_cut_for_another_tp(name, tmp_path, rng):
    model = Model(tmp_path, name)
    before, after = rng.sample(layouts(name), 2)
    src = model.save(tmp_path / "src", before, parts=rng.choice((1, 3)))
    ok("tp-reshard", src, "--to", "tp%d" % after, "--format", "vllm", "-o", tmp_path / "out")
    assert_is_vllms(tmp_path / "out", model.config, model.weights, after)
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == model.config["architectures"]
    ok("tp-reshard", src, "--to", "tp%d" % after, "-o", tmp_path / "same")
    assert [f.read_bytes() for f in sorted((tmp_path / "same").iterdir())] == \
        [f.read_bytes() for f in sorted((tmp_path / "out").iterdir())]
    ok("tp-ckpt", "verify", src)
    ok("tp-ckpt", "diff", src, model.folder)


def test_the_size_of_parts_is_limited(tmp_path):
    model = Model(tmp_path, "llama")
    ok("tp-ckpt", "import", model.folder, "-o", tmp_path / "ckpt")
    argv = ["tp-ckpt", "export", tmp_path / "ckpt", "--format", "sharded_state", "--layout", "tp2", "-o", tmp_path / "out"]
    ok(*argv, "--max-shard-size", "20K")
    assert_is_vllms(tmp_path / "out", model.config, model.weights, 2)
    found = files_of(tmp_path / "out")
    assert len(found) > 6 and all(sum(a.nbytes for a in t.values()) <= 20480 for t in found.values())
    assert json.loads(ok("tp-ckpt", "ls", tmp_path / "out", "--json").out)[0]["format"] == "vllm"


def test_an_embedding_under_its_own_name_is_read(tmp_path):
    """As vLLM's Gemma had it before its head was a module."""
    model = Model(tmp_path, "gemma")
    src = model.save(tmp_path / "src", 2)
    for file in src.glob("model-rank*"):
        tensors = dict(load_safetensors(file))
        tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
        save_safetensors(file, tensors)
    ok("tp-ckpt", "diff", src, model.folder)


def test_files_of_a_vllm_with_fewer_scales_are_read(tmp_path):
    model = Model(tmp_path, "llama")
    src = model.save(tmp_path / "src", 2)
    for file in src.glob("model-rank*"):
        save_safetensors(file, {k: v for k, v in load_safetensors(file).items() if not k.endswith("_scale")})
    ok("tp-ckpt", "diff", src, model.folder)


# ---- refused ----

def change(rank, what):
    def do(src):
        file = src / ("model-rank-%d-part-0.safetensors" % rank)
        tensors = dict(load_safetensors(file))
        what(tensors)
        save_safetensors(file, tensors)
    return do


def put(name, shape):
    return lambda tensors: tensors.update({name: np.full(shape, 2, np.float32)})


QKV = "model.layers.1.self_attn.qkv_proj.weight"


@pytest.mark.parametrize("damage,rc,words", [
    (lambda src: (src / "model-rank-1-part-0.safetensors").unlink(), 2, ["model-rank-1-part-0", "is missing", "tp2"]),
    (change(1, lambda t: t.pop(QKV)), 3, ["rank 1", QKV]),
    (change(0, lambda t: t.pop("model.embed_tokens.weight")), 3, ["rank 0", "model.embed_tokens.weight"]),
    (change(1, put(QKV, (7, 48))), 3, ["model-rank-1-part-0", QKV, "[7, 48]", "[48, 48]", "rank 1 of tp2"]),
    (change(0, put("model.embed_tokens.weight", (5, 48))), 3, ["model.embed_tokens.weight", "5 rows", "192 rows"]),
    (change(0, put("model.embed_tokens.weight", (64, 48))), 2, ["tp3", "8 query heads"]),
    (change(1, put("model.layers.0.extra", (2, 2, 2))), 2, ["model.layers.*.extra of rank 1"]),
    (lambda src: (src / "model-rank-1-part-0.safetensors").write_bytes(b"\0" * 4), 3, ["model-rank-1-part-0.safetensors"]),
    (lambda src: shutil.copy(src / "model-rank-1-part-0.safetensors", src / "model-rank-1-part-1.safetensors"), 3, ["twice"]),
    (lambda src: shutil.copy(src / "model-rank-1-part-0.safetensors", src / "model-rank-2-part-0.safetensors"), 3,
     ["model-rank-2-part-0", "tp2", "two folders"]),
    (lambda src: (src / "config.json").unlink(), 2, ["--config"])])
def test_a_damaged_folder_is_refused_by_name(damage, rc, words, tmp_path):
    model = Model(tmp_path, "qwen2")
    damage(model.save(tmp_path / "src", 2))
    r = run("tp-ckpt", "import", tmp_path / "src", "-o", tmp_path / "ckpt")
    assert r.rc == rc and len(r.lines) == 1 and all(w in r.err for w in words), repr(r)
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("verb", ["ls", "show", "verify", "digest"])
def test_every_verb_needs_the_model(verb, tmp_path):
    src = Model(tmp_path, "qwen2").save(tmp_path / "src", 2)
    (src / "config.json").rename(tmp_path / "config.json")
    r = run("tp-ckpt", verb, src)
    assert r.rc == 2 and len(r.lines) == 1 and "--config" in r.err, repr(r)
    ok("tp-ckpt", verb, src, "--config", tmp_path)


def test_an_embedding_and_a_head_are_not_one(tmp_path):
    model = Model(tmp_path, "gemma")
    change(0, put("model.embed_tokens.weight", (96, 48)))(model.save(tmp_path / "src", 2))
    r = run("tp-ckpt", "import", tmp_path / "src", "-o", tmp_path / "ckpt")
    assert r.rc == 3 and "twice, as the embedding and as the head" in r.err and "tie_word_embeddings" in r.err, repr(r)


def test_files_of_pipeline_stages_are_not_read(tmp_path):
    src = Model(tmp_path, "llama").save(tmp_path / "src", 1)
    (src / "model-rank-0-part-0.safetensors").rename(src / "model-pp-0-tp-0-part-0.safetensors")
    r = run("tp-ckpt", "import", src, "-o", tmp_path / "ckpt")
    assert r.rc == 2 and len(r.lines) == 1 and "model-pp-P-tp-T-part-N.safetensors) are not read" in r.err, repr(r)


def test_scales_of_a_quantized_cache_are_listed_as_left_out(tmp_path):
    model = Model(tmp_path, "llama")
    src = model.save(tmp_path / "src", 2)
    assert "left out" not in ok("tp-ckpt", "import", src, "-o", tmp_path / "a").out
    change(1, put("model.layers.0.self_attn.attn._k_scale", ()))(src)
    assert "left out 1: model.layers.*.self_attn.attn._k_scale" in ok("tp-ckpt", "import", src, "-o", tmp_path / "b").out


def test_a_type_that_is_not_read_is_named(tmp_path):
    src = Model(tmp_path, "llama").save(tmp_path / "src", 2)
    for file in src.glob("model-rank*"):
        head, at = {}, 0
        for name, a in load_safetensors(file).items():
            head[name] = {"dtype": "F8_E4M3", "shape": a.shape, "data_offsets": [at, at + a.size]}
            at += a.size
        text = json.dumps(head).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    r = run("tp-ckpt", "import", src, "-o", tmp_path / "ckpt")
    assert r.rc == 3 and len(r.lines) == 1 and "model-rank-0-part-0" in r.err and "dtype that is not supported" in r.err, repr(r)
    r = run("tp-ckpt", "verify", src)
    assert r.rc == 2 and "intact" not in r.out and "nothing of it can be verified" in r.err, repr(r)


@pytest.mark.parametrize("name", ["gpt-neox", "olmo2", "mixtral"])
def test_a_model_whose_names_are_not_known_is_refused(name, tmp_path):
    model = Model(tmp_path, name)
    ok("tp-ckpt", "import", model.folder, "-o", tmp_path / "ckpt")
    r = run("tp-ckpt", "export", tmp_path / "ckpt", "--format", "vllm", "-o", tmp_path / "out")
    assert r.rc == 2 and len(r.lines) == 1 and "not known" in r.err and "safetensors" in r.err, repr(r)
    assert model.config["architectures"][0] in r.err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout,words", [("tp2pp2", "give --layout tp2"), ("tp3", "its 8 heads")])
def test_a_layout_that_vllm_does_not_have_is_refused(layout, words, tmp_path):
    model = Model(tmp_path, "llama")
    ok("tp-ckpt", "import", model.folder, "-o", tmp_path / "ckpt")
    r = run("tp-ckpt", "export", tmp_path / "ckpt", "--format", "vllm", "--layout", layout, "-o", tmp_path / "out")
    assert r.rc == 2 and len(r.lines) == 1 and words in r.err, repr(r)
    assert not (tmp_path / "out").exists()
