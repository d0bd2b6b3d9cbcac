"""vLLM computes with exports what transformers does, saves the sharded state that is written here byte by byte, and
loads that.

vLLM is large (6 GB with its own PyTorch), so it is not among what `make test-clients` installs. TP_VLLM=PYTHON names an
interpreter that has it; docs/formats/tested.md says how to make one, and what has run.

needs: tp-ckpt tp-reshard
covers: reshard/formats/vllm/vllm_target
"""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402
from test_gguf import tokenizer  # noqa: E402

VLLM = os.environ.get("TP_VLLM")
pytestmark = pytest.mark.skipif(not VLLM, reason="vLLM is not installed: TP_VLLM=PYTHON names an interpreter that has it")

ASK = pathlib.Path(__file__).with_name("vllm_run.py")
VOCABULARY, STEPS, WITHIN = 300, 6, 2e-4  # of logarithms of probabilities that differ by about 2
PROMPTS = [[(7 * i * i + 11 * i + 3) % VOCABULARY for i in range(20)], [299, 0, 17]]
# vLLM has kernels for heads of 32 and more elements.
WIDE = {"gpt2": dict(n_embd=256), "opt": dict(hidden_size=256, word_embed_proj_dim=256)}
# vLLM's modules; those of other families are transformers' own, or have experts in another form for each kernel.
MODULES = ["llama", "llama-biases", "mistral", "qwen2", "qwen2 shared", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "granite",
           "gpt2", "opt"]

LOADED = ["llama", "qwen2 shared", "gemma2", "gpt2"]  # what is equal, is loaded alike


class Model:
    def __init__(self, folder, name, **changes):
        self.folder = folder
        wide = WIDE.get(name, dict(hidden_size=256))
        if "head_dim" in family_models.FAMILIES[name][1]:
            wide = dict(wide, head_dim=32)
        self.theirs = family_models.make(name, folder / "hf", vocab_size=VOCABULARY, **{**wide, **changes})
        self.theirs.set_attn_implementation("eager")
        harness.ok("tp-ckpt", "import", folder / "hf", "--layout", "tp2pp2", "-o", folder / "ckpt")

    def export(self, format, *more):
        out = self.folder / format
        harness.ok("tp-ckpt", "export", self.folder / "ckpt", "--format", format, "-o", out, *more)
        return out

    def answers(self):
        """Continuations and logarithms of probabilities, as vllm_run.py gives them."""
        tokens, logprobs = [], []
        for prompt in PROMPTS:
            ids = list(prompt)
            with torch.no_grad():
                for _ in range(STEPS):
                    ids.append(self.theirs(torch.tensor([ids])).logits[0, -1].argmax().item())
                all_ = torch.log_softmax(self.theirs(torch.tensor([prompt])).logits[0], -1)
            tokens.append(ids[len(prompt):])
            logprobs.append([all_[i, token].item() for i, token in enumerate(prompt[1:])])
        return tokens, logprobs


def ask(folder, prompts=PROMPTS, tp=1, load_format="auto", save=None):
    job = dict(folder=str(folder), tp=tp, load_format=load_format, prompts=prompts, steps=STEPS, save=save and str(save))
    r = subprocess.run([VLLM, ASK], input=json.dumps(job), capture_output=True, text=True, timeout=900)
    assert r.returncode == 0, r.stderr[-4000:]
    return json.loads(r.stdout.splitlines()[-1])


def assert_same(model, answer):
    tokens, logprobs = model.answers()
    worst = max(abs(a - b) for want, got in zip(logprobs, answer["logprobs"]) for a, b in zip(want, got))
    assert answer["tokens"] == tokens and worst <= WITHIN, worst
    return "vLLM %s: %.1e" % (answer["version"], worst)


@pytest.mark.parametrize("name,tp", [*((n, 1) for n in family_models.FAMILIES), ("qwen2", 2), ("qwen3-moe", 2)])
def test_vllm_computes_what_transformers_does(name, tp, tmp_path, figure):
    model = Model(tmp_path, name)
    figure("largest difference of log probabilities", assert_same(model, ask(model.export("safetensors"), tp=tp)))


def test_vllm_reads_the_tokenizer_and_the_defaults_of_generation(tmp_path):
    model = Model(tmp_path, "llama")
    tokenizer(tmp_path / "tok")
    (tmp_path / "tok/generation_config.json").write_text('{"max_new_tokens": 3, "temperature": 0.5}')
    text = "The programs run on"
    out = model.export("safetensors", "--assets", tmp_path / "tok")
    ids = transformers.AutoTokenizer.from_pretrained(out)(text)["input_ids"]
    by_text, by_ids = ask(out, [text]), ask(out, [ids])
    assert by_text["prompts"] == [ids] and by_text["tokens"] == by_ids["tokens"]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", MODULES)
def test_vllm_saves_what_is_written_here_and_loads_it(name, tp, tmp_path, figure):
    changes = dict(num_key_value_heads=1, tie_word_embeddings=True) if name == "qwen2 shared" else {}
    model = Model(tmp_path, name.split()[0], **changes)
    assert_same(model, ask(model.export("safetensors"), tp=tp, save=tmp_path / "theirs"))
    ours = model.export("vllm", "--layout", "tp%d" % tp)
    names = sorted(f.name for f in (tmp_path / "theirs").glob("*.safetensors"))
    assert names == ["model-rank-%d-part-0.safetensors" % r for r in range(tp)]
    for file in names:
        want, got = load_file(tmp_path / "theirs" / file), load_file(ours / file)
        assert sorted(got) == sorted(want)
        for key, value in want.items():
            assert got[key].dtype == value.dtype and got[key].shape == value.shape and torch.equal(got[key], value), key
    if tp == 2 and name in LOADED:
        figure("largest difference of log probabilities", assert_same(model, ask(ours, tp=tp, load_format="sharded_state")))
    harness.ok("tp-ckpt", "diff", tmp_path / "theirs", tmp_path / "ckpt", "--config", ours)
