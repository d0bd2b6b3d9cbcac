"""model.gguf of tp-ckpt export: llama.cpp computes the logits of transformers, and cuts text into the same tokens;
gguf's reader and transformers' loader read the same values.

covers: reshard/formats/gguf/gguf_target
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402

ASK = pathlib.Path(__file__).with_name("llama_cpp.py")
VOCABULARY = 300
WITHIN = 0.02  # of logarithms of probabilities that differ by about 2; llama.cpp's attention rounds to f16
# llama.cpp computes these in one way, and no sliding window for Mistral
CHANGES = {"gemma2": dict(query_pre_attn_scalar=8), "gemma3": dict(query_pre_attn_scalar=8, sliding_window=8),
           "qwen3-moe": dict(norm_topk_prob=True), "mistral": dict(sliding_window=None)}
FAMILIES = [n for n in family_models.FAMILIES if n != "opt"]
TEXT = (harness.REPO / "README.md").read_text()


def pre_tokenizer(kind):
    if kind == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    regex = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
             "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+") % ("" if kind == "qwen2" else "{1,3}")
    from tokenizers import Regex
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def tokenizer(folder, kind="gpt-2"):
    """Train a tokenizer of VOCABULARY tokens on the README."""
    t = Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe"))
    t.pre_tokenizer = pre_tokenizer(kind)
    t.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<|end|>"], show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    folder.mkdir()
    t.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    return t


def exported(name, tmp_path, dtype="f32", kind="gpt-2", **changes):
    """(transformers' model, tokenizer, folder of the export)."""
    model = family_models.make(name, tmp_path / "hf", vocab_size=VOCABULARY, **{**CHANGES.get(name, {}), **changes})
    t = tokenizer(tmp_path / "tok", kind)
    harness.ok("tp-ckpt", "import", tmp_path / "hf", "--layout", "tp2pp2", "-o", tmp_path / "ckpt")
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "gguf", "--dtype", dtype, "--assets", tmp_path / "tok",
               "-o", tmp_path / "gguf")
    return model, t, tmp_path / "gguf"


def ask(file, prompts):
    r = subprocess.run([sys.executable, ASK, file], input=json.dumps(prompts), capture_output=True, text=True,
                       env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert r.returncode == 0, r.stderr[-2000:]
    return [json.loads(line) for line in r.stdout.splitlines()]


def prompts():
    return [[(7 * i * i + 11 * i + 3 + 17 * seed) % VOCABULARY for i in range(30)] for seed in range(8)]


def worst_difference(model, file):
    """Of the logarithms of probabilities, for the prompts that llama.cpp answers."""
    worst, answered = 0, 0
    for ids, answer in zip(prompts(), ask(file, prompts())):
        if answer:
            with torch.no_grad():
                want = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1].double(), -1)
            worst = max(worst, max(abs(answer[str(i)] - want[i].item()) for i in range(VOCABULARY)))
            answered += 1
    assert answered >= 2
    return worst


@pytest.mark.parametrize("name", FAMILIES)
def test_llama_cpp_computes_the_logits_of_transformers(name, tmp_path, figure):
    model, _, folder = exported(name, tmp_path)
    worst = worst_difference(model, folder / "model.gguf")
    figure("largest difference of llama.cpp's log probabilities", "%.1e" % worst)
    assert worst <= WITHIN


@pytest.mark.parametrize("dtype,within", [("bf16", 0.1), ("f16", 0.02), ("q8_0", 0.2)])
def test_llama_cpp_computes_with_every_type(dtype, within, tmp_path):
    model, _, folder = exported("qwen3", tmp_path, dtype)
    assert worst_difference(model, folder / "model.gguf") <= within


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "qwen2"])
def test_llama_cpp_cuts_text_into_the_same_tokens(kind, tmp_path):
    _, t, folder = exported("llama", tmp_path, kind=kind)
    keys = gguf.GGUFReader(folder / "model.gguf").fields
    assert keys["tokenizer.ggml.pre"].contents() == kind
    texts = [TEXT[at:at + 60] for at in range(0, 2000, 150)] + ["I'll pay 12345 euros, OK?\n\n  Yes.", "na\u00efve caf\u00e9 \u65e5\u672c"]
    tokens = [t.encode(text).ids for text in texts]
    kept = [i for i, ids in enumerate(tokens) if len(ids) < 60]
    answers = ask(folder / "model.gguf", [texts[i] for i in kept] + [tokens[i] for i in kept])
    equal = [a == b for a, b in zip(answers[:len(kept)], answers[len(kept):]) if a and b]
    assert len(equal) >= 5 and all(equal)


def test_llama_cpp_cuts_text_as_sentencepiece_does(tmp_path):
    fixture = harness.REPO / "tests/fixture/sentencepiece.model"
    truth = json.loads(fixture.with_suffix(".json").read_text())
    family_models.make("llama", tmp_path / "hf", vocab_size=len(truth["pieces"]))
    (tmp_path / "tok").mkdir()
    shutil.copy(fixture, tmp_path / "tok/tokenizer.model")
    (tmp_path / "tok/tokenizer_config.json").write_text('{"add_bos_token": false}')
    harness.ok("tp-ckpt", "import", tmp_path / "hf", "--layout", "tp1", "-o", tmp_path / "ckpt")
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "gguf", "--assets", tmp_path / "tok", "-o", tmp_path / "gguf")
    n = len(truth["texts"])
    answers = ask(tmp_path / "gguf/model.gguf", truth["texts"] + truth["tokens"])
    equal = [a == b for a, b in zip(answers[:n], answers[n:]) if a and b]
    assert len(equal) >= 2 and all(equal)


# transformers' loader of GGUF knows neither biases of Llama nor all sizes of the others, so these have its own
@pytest.mark.parametrize("name,changes", [("llama", {}), ("mistral", {}), ("qwen2", {}), ("qwen3", dict(head_dim=128)),
                                          ("gpt2", dict(n_positions=1024)), ("gemma2", {})])
def test_transformers_reads_the_same_tensors(name, changes, tmp_path):
    _, _, folder = exported(name, tmp_path, **changes)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32).state_dict()
    for key, value in load_file(tmp_path / "hf/model.safetensors").items():
        rounded = name == "gemma2" and "norm" in key  # 1 is added, and taken away again
        assert torch.allclose(loaded[key], value, atol=1e-6) if rounded else torch.equal(loaded[key], value), key


def test_ggufs_reader_and_quantizer_agree(tmp_path):
    exported("gpt-neox", tmp_path, "q8_0")  # its rows have 64 and 96 elements
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "gguf", "--dtype", "f32", "-o", tmp_path / "f32")
    exact = {t.name: t for t in gguf.GGUFReader(tmp_path / "f32/model.gguf").tensors}
    blocks = 0
    for t in gguf.GGUFReader(tmp_path / "gguf/model.gguf").tensors:
        if t.tensor_type == gguf.GGMLQuantizationType.Q8_0:
            assert np.array_equal(t.data, gguf.quants.quantize(exact[t.name].data, t.tensor_type)), t.name
            blocks += 1
    assert blocks == 8 + 2
