"""tp-ckpt export --format gguf: model.gguf has llama.cpp's names, order and types of tensors, its keys and the
tokenizer, bit by bit. tests/clients/test_gguf.py loads it in llama.cpp and transformers.

needs: tp-ckpt tp-reshard fault/shim.so
covers: reshard/formats/gguf/gguf_target reshard/formats/gguf/gguf_merges reshard/formats/gguf/gguf_header reshard/formats/gguf/gguf_tensors reshard/formats/gguf/gguf_model reshard/formats/gguf/gguf_bytes
    reshard/formats/gguf/gguf_vocab reshard/formats/gguf/gguf_tokenizer reshard/formats/gguf/gguf_sentencepiece reshard/formats/gguf/gguf_pre reshard/formats/gguf/gguf_q8_0
"""
import json
import struct

import numpy as np
import pytest

import gguf_file
import harness
import test_families
from gguf_file import BF16, F16, F32, Q8_0
from harness import ok, run

FAMILIES = [n for n in test_families.FAMILIES if n != "opt"]
CHANGES = {"gemma2": dict(query_pre_attn_scalar=8), "gemma3": dict(query_pre_attn_scalar=8), "qwen3-moe": dict(norm_topk_prob=True)}
KIND = {"f32": F32, "f16": F16, "bf16": BF16, "q8_0": Q8_0}


def made(name, tmp_path, layout="tp2pp2", **changes):
    """(weights, config, checkpoint) of a small model."""
    weights = test_families.write(tmp_path / "model", name, **{**CHANGES.get(name, {}), **changes})
    ok("tp-ckpt", "import", tmp_path / "model", "--layout", layout, "-o", tmp_path / "ckpt")
    return weights, json.loads((tmp_path / "model/config.json").read_text()), tmp_path / "ckpt"


def export(ckpt, out, *more):
    return ok("tp-ckpt", "export", ckpt, "--format", "gguf", "-o", out, *more)


def stays_f32(name, array):
    return array.ndim == 1 or name.startswith("position_embd") or "ffn_gate_inp" in name


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_llama_cpps_tensors(name, tmp_path):
    weights, config, ckpt = made(name, tmp_path)
    export(ckpt, tmp_path / "g")
    keys, found = gguf_file.read(tmp_path / "g/model.gguf")
    want = gguf_file.expected(weights, config)
    assert keys["general.architecture"] == gguf_file.ARCH[config["model_type"]]
    factors = found.pop("rope_freqs.weight", None)
    assert (factors is not None) == (name == "llama-llama3")
    assert sorted(found) == sorted(want)
    for key, array in want.items():
        assert found[key] == (F32, array.shape, array.tobytes()), key


def test_factors_are_keys(tmp_path):
    _, _, ckpt = made("granite", tmp_path, residual_multiplier=None)
    export(ckpt, tmp_path / "g")
    keys, _ = gguf_file.read(tmp_path / "g/model.gguf")
    want = {"attention.scale": 0.2, "embedding_scale": 12, "residual_scale": 1, "logit_scale": 2}
    assert {k: keys["granite." + k] for k in want} == pytest.approx(want)


@pytest.mark.parametrize("dtype", KIND)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_types(name, dtype, tmp_path):
    """Rows of 48 elements have no Q8_0, so they become F16; those of 40 and 192 likewise or not."""
    weights, config, ckpt = made(name, tmp_path, "tp4")
    r = export(ckpt, tmp_path / "g", "--dtype", dtype, "--mem", "64M", "--jobs", "2")
    keys, found = gguf_file.read(tmp_path / "g/model.gguf")
    assert dtype in r.out and keys["general.file_type"] == {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}[dtype]
    for key, array in gguf_file.expected(weights, config).items():
        kind = F32 if stays_f32(key, array) else KIND[dtype]
        if kind == Q8_0 and array.shape[-1] % 32:
            kind = F16
        assert found[key] == (kind, array.shape, gguf_file.stored(array, kind)), key


def resized(name, tmp_path, changes, sizes, change=None):
    """(weights, checkpoint) of a family with other sizes: {size of an axis: size}. `change` changes the weights."""
    rng = np.random.Generator(np.random.Philox(3))
    weights = {k: rng.standard_normal([sizes.get(n, n) for n in shape], np.float32)
               for k, shape in test_families.FAMILIES[name]["tensors"].items()}
    if change:
        change(weights)
    test_families.oracle_numpy.save_model(tmp_path / "model", {**test_families.FAMILIES[name]["config"], **changes}, weights)
    ok("tp-ckpt", "import", tmp_path / "model", "--layout", "tp4", "-o", tmp_path / "ckpt")
    return weights, tmp_path / "ckpt"


WIDE_LLAMA = dict(hidden_size=64, head_dim=8, intermediate_size=96), {48: 64, 40: 96}
WIDE_GPT2 = dict(n_embd=64), {48: 64, 144: 192, 192: 256}


@pytest.mark.parametrize("name,sizes", [("llama", WIDE_LLAMA), ("gpt2", WIDE_GPT2)])
def test_q8_0_of_every_matrix(name, sizes, tmp_path):
    def change(weights):
        matrix = next(k for k in weights if "c_fc.weight" in k or "down_proj" in k)
        weights[matrix][:, :32] = weights[matrix][:32, :] = 0  # blocks of zeros

    weights, ckpt = resized(name, tmp_path, *sizes, change)
    export(ckpt, tmp_path / "g", "--dtype", "q8_0")
    _, found = gguf_file.read(tmp_path / "g/model.gguf")
    config = json.loads((tmp_path / "model/config.json").read_text())
    for key, array in gguf_file.expected(weights, config).items():
        kind = F32 if stays_f32(key, array) else Q8_0
        assert found[key] == (kind, array.shape, gguf_file.stored(array, kind)), key


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e38])
def test_values_that_q8_0_does_not_have_are_named(value, tmp_path):
    name = "model.layers.1.mlp.down_proj.weight"
    _, ckpt = resized("llama", tmp_path, *WIDE_LLAMA, lambda weights: weights[name].__setitem__((3, 5), value))
    r = run("tp-ckpt", "export", ckpt, "--format", "gguf", "--dtype", "q8_0", "-o", tmp_path / "g")
    assert r.rc == 3 and name in r.err and "infinite" in r.err and not (tmp_path / "g").exists(), repr(r)


def test_the_file_does_not_depend_on_the_layout(tmp_path):
    _, _, ckpt = made("llama-biases", tmp_path, "tp1")
    ok("tp-reshard", ckpt, "--to", "tp4pp2", "-o", tmp_path / "tp4")
    for number, (root, dtype) in enumerate([(ckpt, "f16"), (tmp_path / "tp4", "f16")]):
        export(root, tmp_path / ("g%d" % number), "--dtype", dtype)
    assert (tmp_path / "g0/model.gguf").read_bytes() == (tmp_path / "g1/model.gguf").read_bytes()


def test_keys(tmp_path):
    _, config, ckpt = made("llama-llama3", tmp_path)
    export(ckpt, tmp_path / "g")
    keys, tensors = gguf_file.read(tmp_path / "g/model.gguf")
    rope = config["rope_parameters"]
    want = {"block_count": 2, "context_length": 64, "embedding_length": 48, "feed_forward_length": 40, "attention.head_count": 8,
            "attention.head_count_kv": 4, "attention.key_length": 6, "attention.value_length": 6, "vocab_size": 131,
            "rope.dimension_count": 6, "rope.freq_base": rope["rope_theta"],
            "attention.layer_norm_rms_epsilon": np.float32(config["rms_norm_eps"])}
    assert {k: keys["llama." + k] for k in want} == want
    low, high = (rope["original_max_position_embeddings"] / rope[k] for k in ("low_freq_factor", "high_freq_factor"))
    factors = []
    for i in range(3):
        wave = 2 * np.pi * rope["rope_theta"] ** (2 * i / 6)
        smooth = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"])
        factors.append(1 if wave < high else rope["factor"] if wave > low else 1 / ((1 - smooth) / rope["factor"] + smooth))
    kind, shape, data = tensors["rope_freqs.weight"]
    assert (kind, shape) == (F32, (3,)) and np.allclose(np.frombuffer(data, np.float32), factors, rtol=1e-6)


@pytest.mark.parametrize("name,more", [
    ("llama-linear", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    ("llama-yarn", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}),
    ("mixtral", {"expert_count": 4, "expert_used_count": 2}),
    ("qwen3-moe", {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}),
    ("gemma2", {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention.sliding_window": 4096}),
    ("olmo3", {"attention.sliding_window": 8, "rope.freq_base": 500.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}),
    ("smollm3", {"rope.freq_base": 2e6, "rope.scaling.type": None, "attention.sliding_window": None}),
    ("gpt-neox", {"use_parallel_residual": True, "rope.dimension_count": 2})])
def test_keys_of_families(name, more, tmp_path):
    _, config, ckpt = made(name, tmp_path, "tp1")
    export(ckpt, tmp_path / "g")
    keys, _ = gguf_file.read(tmp_path / "g/model.gguf")
    arch = gguf_file.ARCH[config["model_type"]] + "."
    assert {k: keys.get(arch + k) for k in more} == more


LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
DEFAULT = dict(rope_type="default", rope_theta=500.0)


@pytest.mark.parametrize("name,change,word", [
    ("opt", {}, "OPTForCausalLM"), ("gemma3", dict(query_pre_attn_scalar=99), "query_pre_attn_scalar"),
    ("gemma2", dict(query_pre_attn_scalar=8, layer_types=["full_attention", "full_attention"]), "layer_types"),
    ("gemma3", dict(query_pre_attn_scalar=8, rope_parameters=None, rope_local_base_freq=9.0), "rope_local_base_freq"),
    ("gemma3", dict(query_pre_attn_scalar=8, rope_parameters=dict(
        full_attention=dict(rope_type="longrope", rope_theta=1e6, factor=2.0),
        sliding_attention=dict(rope_type="default", rope_theta=1e4))), "rotary embedding"),
    ("olmo3", dict(layer_types=4 * ["full_attention"]), "layer_types"),
    ("olmo3", dict(rope_parameters=dict(full_attention=DEFAULT, sliding_attention=dict(DEFAULT, rope_theta=9.0))),
     "sliding_attention"),
    ("olmo3", dict(rope_parameters=dict(full_attention=DEFAULT, sliding_attention=dict(DEFAULT, rope_type="linear", factor=2.0))),
     "sliding_attention"),
    ("olmo3", dict(rope_parameters=dict(full_attention=LLAMA3, sliding_attention=DEFAULT)), "llama3"),
    ("smollm3", dict(rope_parameters=LLAMA3), "llama3"), ("smollm3", dict(no_rope_layers=[1, 0, 1, 0]), "no_rope_layers"),
    ("smollm3", dict(sliding_window=8, layer_types=["full_attention", "full_attention", "full_attention", "sliding_attention"]),
     "layer_types"),
    ("smollm3", dict(sliding_window=8, layer_types=None, use_sliding_window=True), "layer_types"),
    ("qwen3-moe", dict(norm_topk_prob=False), "norm_topk_prob"), ("llama", dict(hidden_act="gelu"), "another activation"),
    ("gemma", dict(hidden_activation="relu"), "another activation"), ("mistral", dict(is_causal=False), "is_causal false"),
    ("qwen2", dict(use_sliding_window=True), "use_sliding_window true"),
    ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx true"),
    ("phi3", dict(rope_parameters=test_families.LONGROPE), "rotary embedding"),
    ("llama", dict(rope_parameters=dict(rope_type="longrope", rope_theta=1e4, factor=2.0)), "rotary embedding")])
def test_what_llama_cpp_does_not_compute_is_refused(name, change, word, tmp_path):
    _, _, ckpt = made(name, tmp_path, "tp1", **change)
    r = run("tp-ckpt", "export", ckpt, "--format", "gguf", "-o", tmp_path / "g")
    assert r.rc == 2 and word in r.err and "ckpt" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("key,modules", [("mlp_bias", ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]), (
    "attention_bias", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"])])
def test_biases_that_llama_cpp_does_not_have_are_refused(key, modules, tmp_path):
    def change(weights):
        for i in range(4):
            for module in modules:
                name = "model.layers.%d.%s" % (i, module)
                weights[name + ".bias"] = weights[name + ".weight"][:, 0]

    _, ckpt = resized("smollm3", tmp_path, {key: True}, {}, change)
    r = run("tp-ckpt", "export", ckpt, "--format", "gguf", "-o", tmp_path / "g")
    assert r.rc == 2 and key in r.err and len(r.lines) == 1 and not (tmp_path / "g").exists(), repr(r)


def test_q8_0_is_for_gguf_only(tmp_path):
    _, _, ckpt = made("llama", tmp_path, "tp1")
    r = run("tp-ckpt", "export", ckpt, "--dtype", "q8_0", "-o", tmp_path / "hf")
    assert r.rc == 2 and "gguf" in r.err and not (tmp_path / "hf").exists(), repr(r)


# ---- tokenizers ----

def byte_letters():
    """GPT-2's letter for each byte."""
    keep = [*range(33, 127), *range(0xa1, 0xad), *range(0xae, 0x100)]
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


WORDS = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
         "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
SPECIAL = [{"id": 128, "content": "<|end|>", "special": True}, {"id": 129, "content": "<tool>", "special": False}]


def split(regex):
    return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"},
                                                  {"type": "ByteLevel", "use_regex": False}]}


def tokenizer(folder, change=None, **more):
    """A byte-level tokenizer of 128 tokens, as letters and merges."""
    letters = byte_letters()
    vocab = {letters[32 + i]: i for i in range(95)}
    vocab.update({"he": 95, "hel": 96, "\u0120he": 97})
    root = {"version": "1.0", "added_tokens": SPECIAL, "normalizer": None, "pre_tokenizer": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "he l", "\u0120 he"], **more.pop("model", {})}, **more}
    if change:
        change(root)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(root))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": None, "eos_token": {"content": "<|end|>"}, "chat_template": "{{ messages }}"}))
    return vocab


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return made("llama", tmp_path_factory.mktemp("small"), "tp2")[2]


def tokenizer_keys(small, tmp_path, *more):
    export(small, tmp_path / "g", "--assets", tmp_path / "tok", *more)
    keys, _ = gguf_file.read(tmp_path / "g/model.gguf")
    return {k.replace("tokenizer.ggml.", ""): v for k, v in keys.items() if k.startswith("tokenizer.")}


def test_a_byte_level_tokenizer(small, tmp_path):
    vocab = tokenizer(tmp_path / "tok")
    keys = tokenizer_keys(small, tmp_path)
    assert keys["model"] == "gpt2" and keys["pre"] == "gpt-2" and keys["merges"] == ["h e", "he l", "\u0120 he"]
    tokens = {i: t for t, i in vocab.items()}
    assert keys["tokens"] == [tokens.get(i) or {128: "<|end|>", 129: "<tool>"}.get(i) or "[PAD%d]" % i for i in range(131)]
    assert keys["token_type"] == [1 if i in tokens else {128: 3, 129: 4}.get(i, 5) for i in range(131)]
    assert keys["eos_token_id"] == 128 and "bos_token_id" not in keys and keys["add_bos_token"] is False
    assert keys["tokenizer.chat_template"] == "{{ messages }}" and "scores" not in keys


@pytest.mark.parametrize("pre,more,name", [
    (split(WORDS % "{1,3}"), dict(ignore_merges=True), "llama-bpe"), (split(WORDS % "{1,3}"), {}, "dbrx"), (split(WORDS % ""), {}, "qwen2"),
    ({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}]}, {}, "starcoder")])
def test_the_rule_that_cuts_text_into_words(pre, more, name, small, tmp_path):
    tokenizer(tmp_path / "tok", pre_tokenizer=pre, model=more)
    assert tokenizer_keys(small, tmp_path)["pre"] == name


def test_settings_have_a_number_beyond_64_bits(small, tmp_path):
    """int(1e30), which transformers writes for a tokenizer without a limit."""
    tokenizer(tmp_path / "tok")
    (tmp_path / "tok/tokenizer_config.json").write_text(json.dumps({"eos_token": "<tool>", "model_max_length": int(1e30)}))
    assert tokenizer_keys(small, tmp_path)["eos_token_id"] == 129


def test_byte_fallback(small, tmp_path):
    def change(root):
        root["model"] = {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "merges": [["h", "e"], ["\u2581", "he"]],
                         "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "h": 3, "e": 4, "\u2581": 5, "he": 6, "\u2581he": 7}}
        root["pre_tokenizer"] = None
        root["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]}
        root["added_tokens"] = [{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "<s>", "special": True}]
        root["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}

    tokenizer(tmp_path / "tok", change)
    (tmp_path / "tok/tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    keys = tokenizer_keys(small, tmp_path)
    assert keys["model"] == "llama" and keys["token_type"][:9] == [2, 3, 6, 1, 1, 1, 1, 1, 5] and len(keys["tokens"]) == 131
    assert keys["scores"][:8] == [0, 0, 0, 0, 0, 0, -1, -2] and "merges" not in keys
    assert keys["bos_token_id"] == 1 and keys["add_bos_token"] is True and keys["add_space_prefix"] is True


# ---- SentencePiece ----

@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    """(checkpoint of a model of 362 tokens, what the sentencepiece package says of the fixture's 360)."""
    truth = json.loads((harness.REPO / "tests/fixture/sentencepiece.json").read_text())
    return resized("llama", tmp_path_factory.mktemp("pieces"), dict(vocab_size=362), {131: 362})[1], truth["pieces"]


def pieces_file(folder, data, **more):
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(data)
    for name, content in more.items():
        (folder / (name + ".json")).write_text(json.dumps(content))


def field(number, data):
    """A field of a Protocol Buffers message: a message or text, a float, or a whole number."""
    if isinstance(data, bytes):
        return bytes([number << 3 | 2]) + varint(len(data)) + data
    if isinstance(data, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", data)
    return varint(number << 3) + varint(data)


def varint(n):
    return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])


def piece(text, score=0.0, kind=1):
    return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))


def byte_pieces():
    return b"".join(piece("<0x%02X>" % i, kind=6) for i in range(256))


def trainer(kind):
    return field(2, field(3, kind))


def test_a_sentencepiece_model(sentencepiece, tmp_path):
    ckpt, want = sentencepiece
    pieces_file(tmp_path / "tok", (harness.REPO / "tests/fixture/sentencepiece.model").read_bytes(), added_tokens={"<extra>": 360},
                tokenizer_config={"bos_token": "<s>", "added_tokens_decoder": {
                    "1": {"content": "<s>", "special": True}, "300": {"content": want[300][0], "special": True}}})
    keys = tokenizer_keys(ckpt, tmp_path)
    assert keys["model"] == "llama" and keys["pre"] == "default" and "merges" not in keys
    # llama.cpp finds symbols of the user in the text, where spaces are spaces
    assert [t[0] for t in want[4:6]] == ["\u2581\u2581", "<tool>"] and keys["tokens"][4:6] == ["  ", "<tool>"]
    assert keys["token_type"][4:6] == [4, 4]
    rest = [i for i in range(360) if i not in (4, 5, 300)]
    assert [keys["tokens"][i] for i in rest] == [want[i][0] for i in rest]
    assert [keys["scores"][i] for i in rest] == [want[i][1] for i in rest]
    assert [keys["token_type"][i] for i in rest] == [want[i][2] for i in rest]
    assert (keys["tokens"][300], keys["token_type"][300], keys["scores"][300]) == (want[300][0], 3, -1000)
    assert (keys["tokens"][360:], keys["token_type"][360:], keys["scores"][360:]) == (["<extra>", "[PAD361]"], [4, 5], [-1000, -10000])
    assert keys["bos_token_id"] == 1 and keys["add_bos_token"] is True and keys["add_space_prefix"] is True


def test_a_tokenizer_json_is_preferred(small, tmp_path):
    tokenizer(tmp_path / "tok")
    (tmp_path / "tok/tokenizer.model").write_bytes(b"no model")
    assert tokenizer_keys(small, tmp_path)["model"] == "gpt2"


@pytest.mark.parametrize("data,code,word", [
    (byte_pieces() + piece("a") + trainer(1), 2, "not of type BPE"), (byte_pieces() + piece("a"), 2, "not of type BPE"),
    (piece("a") + trainer(2), 2, "byte_fallback"), (byte_pieces() + 107 * piece("a") + trainer(2), 3, "362 rows"),
    (b"IQ== 0\nIg== 1\n", 3, "not a SentencePiece model"), (b"", 3, "not a SentencePiece model"), (trainer(2), 3, "not a SentencePiece model"),
    (byte_pieces()[:-1], 3, "damaged"), (piece("a", kind=7), 3, "damaged"), (field(1, field(2, 0.0)), 3, "damaged"),
    (piece("a\0b"), 3, "damaged"), (b"\x0a" + b"\xff" * 9 + b"\x01", 3, "damaged"), (b"\x0a" + b"\xff" * 20, 3, "damaged"),
    (b"\x0b\x0c", 3, "damaged")])
def test_a_sentencepiece_model_that_cannot_be_written_is_refused(data, code, word, sentencepiece, tmp_path):
    pieces_file(tmp_path / "tok", data)
    r = run("tp-ckpt", "export", sentencepiece[0], "--format", "gguf", "-o", tmp_path / "g", "--assets", tmp_path / "tok")
    assert r.rc == code and word in r.err and "tokenizer.model" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("name,content", [("added_tokens", {"a": -1}), ("added_tokens", {"a": "1"}),
                                          ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "a"}}}),
                                          ("tokenizer_config", {"added_tokens_decoder": {"1": {}}})])
def test_added_tokens_that_do_not_fit_are_refused(name, content, sentencepiece, tmp_path):
    pieces_file(tmp_path / "tok", byte_pieces() + piece("a") + trainer(2), **{name: content})
    r = run("tp-ckpt", "export", sentencepiece[0], "--format", "gguf", "-o", tmp_path / "g", "--assets", tmp_path / "tok")
    assert r.rc == 3 and "tokenizer.model" in r.err and len(r.lines) == 1, repr(r)


@pytest.mark.parametrize("kind", ["tokenizer.json", "tokenizer.model"])
def test_added_tokens_without_a_row_are_left_out(kind, small, sentencepiece, tmp_path):
    """Gemma 3's tokenizer has <image_soft_token>, which is the first number after the rows of its text models."""
    if kind == "tokenizer.json":
        tokenizer(tmp_path / "tok", lambda root: root.update(added_tokens=SPECIAL + [{"id": 131, "content": "<soft>", "special": True}]))
    else:
        pieces_file(tmp_path / "tok", byte_pieces() + piece("a") + trainer(2), added_tokens={"<soft>": 362}, tokenizer_config={
            "added_tokens_decoder": {"362": {"content": "<soft>", "special": True}}})
    source, rows = (small, 131) if kind == "tokenizer.json" else (sentencepiece[0], 362)
    r = export(source, tmp_path / "g", "--assets", tmp_path / "tok")
    keys, _ = gguf_file.read(tmp_path / "g/model.gguf")
    assert len(keys["tokenizer.ggml.tokens"]) == rows and "<soft>" not in keys["tokenizer.ggml.tokens"]
    assert "%d rows, and added tokens with higher numbers, such as <soft>, are left out" % rows in r.err, repr(r)


def test_without_a_tokenizer(small, tmp_path):
    r = export(small, tmp_path / "g")
    keys, _ = gguf_file.read(tmp_path / "g/model.gguf")
    assert keys["tokenizer.ggml.model"] == "none" and "--assets" in r.err, repr(r)
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/generation_config.json").write_text("{}")
    r = export(small, tmp_path / "g2", "--assets", tmp_path / "tok")
    assert "no tokenizer.json" in r.err, repr(r)


def beyond(root):
    root["model"]["vocab"]["zz"] = 131


@pytest.mark.parametrize("change,code,word", [
    (lambda root: root.update(pre_tokenizer=split("\\w+")), 2, "\\w+"), (lambda root: root["model"].update(type="Unigram"), 2, "type BPE"),
    (lambda root: root.update(pre_tokenizer=None), 2, "byte_fallback"), (beyond, 3, "131 rows"),
    (lambda root: root["model"].update(merges=["he"]), 3, "merge"), (lambda root: root.pop("model"), 3, "no model"),
    (lambda root: root["model"].update(vocab=[1]), 3, "vocabulary"), (lambda root: root.update(added_tokens=[{"id": 1}]), 3, "content")])
def test_a_tokenizer_that_cannot_be_written_is_refused(change, code, word, small, tmp_path):
    tokenizer(tmp_path / "tok", change)
    r = run("tp-ckpt", "export", small, "--format", "gguf", "-o", tmp_path / "g", "--assets", tmp_path / "tok")
    assert r.rc == code and word in r.err and "tokenizer.json" in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("cut", [1, 40, 300, 900])
def test_a_tokenizer_that_is_cut_off_is_refused(cut, small, tmp_path):
    tokenizer(tmp_path / "tok")
    file = tmp_path / "tok/tokenizer.json"
    file.write_bytes(file.read_bytes()[:-cut])
    r = run("tp-ckpt", "export", small, "--format", "gguf", "-o", tmp_path / "g", "--assets", tmp_path / "tok")
    assert r.rc == 3 and "tokenizer.json" in r.err and not (tmp_path / "g").exists(), repr(r)


def test_memory_stays_within_the_limit(tmp_path, figure):
    weights, _ = resized("llama", tmp_path, dict(vocab_size=20000, hidden_size=512, head_dim=64, intermediate_size=1024),
                         {131: 20000, 48: 512, 40: 1024})
    r = json.loads(export(tmp_path / "ckpt", tmp_path / "g", "--dtype", "q8_0", "--mem", "80M" if harness.SANITIZE else "40M", "--json").out)  # a sanitizer makes programs larger
    figure("memory of a GGUF export, MiB", "%.1f with --mem 40M, of %.0f MiB of weights" % (
        r["peak_rss_bytes"] / 2 ** 20, sum(w.nbytes for w in weights.values()) / 2 ** 20))
    assert harness.SANITIZE or r["peak_rss_bytes"] < 40 << 20
