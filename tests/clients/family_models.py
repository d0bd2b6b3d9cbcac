"""Small models of every family, made with transformers, and tests/fixture/families.json: their config.json
and the names and shapes of their tensors, for the tests that run without transformers.

    family_models.py FILE    write the fixture; tests/clients/test_families.py checks that it is current
"""
import json
import logging
import sys

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

NO_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA = dict(vocab_size=131, hidden_size=48, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=64, **NO_TOKENS)
WIDE_HEADS = dict(LLAMA, head_dim=8)


def scaled(kind, theta=10000.0, factor=4.0, **more):
    return dict(LLAMA, rope_parameters=dict(rope_type=kind, rope_theta=theta, factor=factor, **more))


# Name: the class of the config, and its arguments.
FAMILIES = {
    "llama": ("LlamaConfig", dict(LLAMA, num_key_value_heads=8)),
    "llama-biases": ("LlamaConfig", dict(WIDE_HEADS, attention_bias=True, mlp_bias=True)),
    "llama-linear": ("LlamaConfig", scaled("linear")),
    "llama-dynamic": ("LlamaConfig", scaled("dynamic")),
    "llama-yarn": ("LlamaConfig", scaled("yarn", original_max_position_embeddings=16)),
    "llama-llama3": ("LlamaConfig", scaled("llama3", 500000.0, 8.0, low_freq_factor=1.0,
                                           high_freq_factor=4.0, original_max_position_embeddings=16)),
    "mistral": ("MistralConfig", dict(LLAMA, sliding_window=8)),
    "qwen2": ("Qwen2Config", LLAMA),
    "qwen3": ("Qwen3Config", dict(WIDE_HEADS, tie_word_embeddings=True)),
    "gemma": ("GemmaConfig", WIDE_HEADS),
    "gemma2": ("Gemma2Config", WIDE_HEADS),
    "gemma3": ("Gemma3TextConfig", WIDE_HEADS),
    "phi3": ("Phi3Config", LLAMA),
    "olmo2": ("Olmo2Config", LLAMA),
    "granite": ("GraniteConfig", dict(LLAMA, tie_word_embeddings=True, embedding_multiplier=12.0, attention_multiplier=0.2,
                                      residual_multiplier=0.22, logits_scaling=2.0)),
    "olmo3": ("Olmo3Config", dict(LLAMA, num_hidden_layers=4, sliding_window=8, rope_parameters=dict(
        full_attention=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16),
        sliding_attention=dict(rope_type="default", rope_theta=500.0)))),
    "smollm3": ("SmolLM3Config", dict(LLAMA, num_hidden_layers=4)),
    "gpt2": ("GPT2Config", dict(vocab_size=131, n_embd=48, n_head=8, n_layer=2, n_positions=32, **NO_TOKENS)),
    "gpt-neox": ("GPTNeoXConfig", dict(vocab_size=131, hidden_size=64, intermediate_size=96,
                                       num_hidden_layers=2, num_attention_heads=8,
                                       max_position_embeddings=64, **NO_TOKENS)),
    "opt": ("OPTConfig", dict(vocab_size=131, hidden_size=48, word_embed_proj_dim=48, ffn_dim=64,
                              num_hidden_layers=2, num_attention_heads=8, max_position_embeddings=64,
                              bos_token_id=None, eos_token_id=None, pad_token_id=1)),
    "mixtral": ("MixtralConfig", dict(LLAMA, num_local_experts=4)),
    "qwen3-moe": ("Qwen3MoeConfig", dict(WIDE_HEADS, num_experts=4, num_experts_per_tok=2,
                                         moe_intermediate_size=24, mlp_only_layers=[])),
}

# Families whose modules have other names in transformers 5 than their files, and one of these.
IN_MEMORY = {"mixtral": "model.layers.0.mlp.experts.gate_up_proj", "qwen3-moe": "model.layers.0.mlp.experts.gate_up_proj",
             "gpt-neox": "lm_head.weight"}


def make(name, folder, seed=1, **changes):
    """Write the model with random weights to folder: norms near 1, queries and keys large, so that
    errors in attention change the logits. Returns the model."""
    kind, config = FAMILIES[name]
    config = getattr(transformers, kind)(**{**config, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=random)
            is_norm = p.dim() == 1 and key.endswith("weight")
            p.copy_((0 if "gemma" in name else 1) + 0.1 * noise if is_norm else 0.05 * noise)
            if any(word in key for word in ("q_proj.weight", "k_proj.weight")):
                p.mul_(8)
    model.save_pretrained(folder)
    return model.eval()


def in_files(model, groups, folder):
    """{"group/name": tensor} of {group: {name of a module: tensor}}, by transformers' own way from modules to files."""
    out = {}
    for group, state in groups.items():
        model.load_state_dict(state)
        model.save_pretrained(folder / group)
        out.update(("%s/%s" % (group, k), v) for k, v in load_file(folder / group / "model.safetensors").items())
    return out


def entry(folder):
    """{config, tensors} of a model folder. The version of transformers is left out."""
    config = json.loads((folder / "config.json").read_text())
    for key in ("transformers_version", "id2label", "label2id", "chunk_size_feed_forward",
                "problem_type", "return_dict", "output_attentions", "output_hidden_states", "is_encoder_decoder"):
        config.pop(key, None)
    with safe_open(folder / "model.safetensors", "pt") as f:
        return dict(config=config, tensors={k: list(f.get_slice(k).get_shape()) for k in sorted(f.keys())})


def entries(folder):
    logging.disable(logging.WARNING)
    made = {}
    for name in FAMILIES:
        make(name, folder / name)
        made[name] = entry(folder / name)
    return made


if __name__ == "__main__":
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        found = entries(pathlib.Path(temporary))
    with open(sys.argv[1], "w") as out:
        out.write("{\n" + ",\n".join('%s: %s' % (json.dumps(k), json.dumps(v)) for k, v in found.items()) + "\n}\n")
