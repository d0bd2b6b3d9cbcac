"""The rules of examples/rules, on small models that transformers makes with the published dimensions of heads: what is
moved has the same bits and logits, and modules of transformers that have only what a rank holds compute the whole model.

covers: reshard/ruled_tensors layout/cut_rules"""
import copy
import json
import pathlib
import sys

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
from rank_parts import rank_parts  # noqa: E402
from test_transformers import LOGITS_WITHIN, assert_bits, tensors  # noqa: E402

RULES = harness.REPO / "examples/rules"
SMALL = dict(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None)
EXPERTS = dict(n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1,
               n_group=2, topk_group=1)
LATENT = dict(SMALL, **EXPERTS, num_key_value_heads=4, q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=128, qk_rope_head_dim=64,
              v_head_dim=128)
GLM = dict(SMALL, **EXPERTS, head_dim=128, attention_bias=True)
# Name: the file of rules, the class of the config, and its arguments.
MODELS = {
    "deepseek-v3": ("deepseek_v3", "DeepseekV3Config", LATENT),
    "deepseek-v2": ("deepseek_v3", "DeepseekV2Config", dict(LATENT, topk_method="group_limited_greedy")),
    "deepseek-v2-lite": ("deepseek_v3", "DeepseekV2Config", dict(LATENT, q_lora_rank=None, topk_method="greedy", n_shared_experts=2)),
    "glm4-moe": ("glm4_moe", "Glm4MoeConfig", dict(GLM, use_qk_norm=True)),
    "glm4-moe-air": ("glm4_moe", "Glm4MoeConfig", dict(GLM, use_qk_norm=False)),
    "gpt-oss": ("gpt_oss", "GptOssConfig", dict(SMALL, head_dim=64, num_local_experts=4, num_experts_per_tok=2, sliding_window=8)),
    "qwen3-next": ("qwen3_next", "Qwen3NextConfig", dict(
        SMALL, num_hidden_layers=4, head_dim=256, linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=128,
        linear_value_head_dim=128, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
        mlp_only_layers=[1], layer_types=["linear_attention", "full_attention"] * 2)),
}
IDS = torch.arange(3, 43).unsqueeze(0)
# Keys of config.json whose number a rank has a part of.
DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size",
           "linear_num_key_heads", "linear_num_value_heads")
BLOCKS = ("self_attn", "linear_attn", "mlp")  # of a layer: the ranks' results are summed


def load(folder):
    """The model. Each of its tensors must be in the files, with its shape, and each of theirs in the model."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                    output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info.get(kind), "%s: %s" % (kind, info[kind])
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits  # a cache would take the keys of all ranks


def make(name, folder):
    """Random weights: norms near 1, and the others so large that each changes the logits."""
    _, kind, arguments = MODELS[name]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**arguments), dtype=torch.float32)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, t in sorted([*model.named_parameters(), *model.named_buffers()]):
            if "inv_freq" in key:
                continue
            noise = torch.randn(t.shape, generator=random)
            norm = key.endswith("norm.weight") and (name != "qwen3-next" or "linear_attn" in key)
            t.copy_(1 + 0.1 * noise if norm else 0.1 * noise if t.dim() > 1 else 0.5 * noise)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """(name, folder)"""
    return request.param, make(request.param, tmp_path_factory.mktemp("model") / request.param)


def import_(model, layout, out, rules=None):
    harness.ok("tp-ckpt", "import", model[1], "--rules", rules or RULES / (MODELS[model[0]][0] + ".rules"), "--layout", layout, "-o", out)


def own_channels(conv, config, rank, tp):
    """Of the convolution, which every rank has whole: the channels of its queries, keys and values."""
    keys, values = (getattr(config, "linear_num_%s_heads" % k) * getattr(config, "linear_%s_head_dim" % k) for k in ("key", "value"))
    return torch.cat([part.chunk(tp)[rank] for part in conv.split([keys, keys, values])]).contiguous()


def load_rank(parts, config, rank, tp, folder):
    """A model of transformers with the heads and features of one rank, and its weights."""
    config = copy.deepcopy(config)
    weights = {name: torch.from_numpy(part) for name, part in parts.items()}
    for name in weights:
        if name.endswith("conv1d.weight"):
            weights[name] = own_channels(weights[name], config, rank, tp)
        if rank > 0 and name.endswith(("o_proj.bias", "down_proj_bias")):  # are added once
            weights[name] = torch.zeros_like(weights[name])
    for key in DIVIDED:
        if getattr(config, key, None):
            setattr(config, key, max(1, getattr(config, key) // tp))
    config.vocab_size = len(weights["lm_head.weight"])
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return load(folder)


class Sum(torch.nn.Module):
    """The same block of each rank, and the all-reduce after it."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, *args, **options):
        found = [block(*args, **options) for block in self.blocks]
        if isinstance(found[0], tuple):
            return sum(each[0] for each in found), *found[0][1:]
        return sum(found)


def assemble(ranks, config):
    """A model whose blocks are those of the ranks, and whose other weights all ranks must have equal."""
    whole = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for i, layer in enumerate(whole.model.layers):
        for name, _ in list(layer.named_children()):
            of_ranks = [getattr(r.model.layers[i], name) for r in ranks]
            if name in BLOCKS:
                setattr(layer, name, Sum(of_ranks))
            else:
                assert all(torch.equal(m.weight, of_ranks[0].weight) for m in of_ranks)
                setattr(layer, name, of_ranks[-1])
    whole.model.norm = ranks[-1].model.norm
    whole.model.embed_tokens.weight.data = torch.cat([r.model.embed_tokens.weight for r in ranks])
    whole.lm_head.weight.data = torch.cat([r.lm_head.weight for r in ranks])
    return whole


def error_of_ranks(model, root, tp, folder):
    """The largest difference of logits between the model and its ranks together."""
    whole = load(model[1])
    ranks = []
    for rank, parts in enumerate(rank_parts(harness.steps(root)[-1], tp)):
        ranks.append(load_rank(parts, whole.config, rank, tp, folder / ("rank%d" % rank)))
    want = logits(whole)
    return (logits(assemble(ranks, whole.config)) - want).abs().max().item(), want.abs().max().item()


def test_a_model_survives_import_reshard_and_export(model, tmp_path):
    import_(model, "tp2pp2", tmp_path / "ckpt")
    harness.ok("tp-reshard", tmp_path / "ckpt", "--to", "tp4pp1" if model[0] == "gpt-oss" else "tp2pp1dp4ep4", "-o", tmp_path / "tp4")
    harness.ok("tp-reshard", tmp_path / "tp4", "--to", "tp1pp3dp2ep1zero3", "-o", tmp_path / "one")
    harness.ok("tp-ckpt", "export", tmp_path / "one", "--format", "safetensors", "-o", tmp_path / "hf")
    assert_bits(tensors(tmp_path / "hf"), tensors(model[1]))
    assert torch.equal(logits(load(tmp_path / "hf")), logits(load(model[1])))


def quantize(w, block):
    """A matrix as FP8 with a scale for each block, as DeepSeek publishes its models, and what transformers makes of that."""
    rows, cols = (-(-n // b) for n, b in zip(w.shape, block))
    spread = [n.repeat_interleave(b)[:size] for n, b, size in zip((torch.arange(rows), torch.arange(cols)), block, w.shape)]
    index = spread[0][:, None] * cols + spread[1][None]
    largest = torch.zeros(rows * cols).scatter_reduce(0, index.flatten(), w.abs().flatten(), "amax")
    scales = largest / torch.finfo(torch.float8_e4m3fn).max
    elements = (w / scales[index]).to(torch.float8_e4m3fn)
    scales = scales.reshape(rows, cols)
    if all(n % b == 0 for n, b in zip(w.shape, block)):
        return elements, scales, Fp8Dequantize(None)._dequantize_one(elements, scales, torch.bfloat16)
    # It refuses a block that is cut off, as in DeepSeek-V3's kv_a_proj_with_mqa; DeepSeek's fp8_cast_bf16.py does not.
    return elements, scales, (elements.float() * scales.flatten()[index]).to(torch.bfloat16)


def assert_becomes(want, family, source, stored, quantization, folder):
    """The model of `source`, stored like this, is imported and exported as `want`, which transformers loads."""
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = quantization
    (source / "config.json").write_text(json.dumps(config))
    save_file(stored, source / "model.safetensors", metadata={"format": "pt"})
    import_((family, source), "tp2pp2", folder / "ckpt")
    harness.ok("tp-ckpt", "export", folder / "ckpt", "--format", "safetensors", "-o", folder / "hf")
    assert_bits(tensors(folder / "hf"), want)
    load(folder / "hf")


def test_a_model_in_fp8_becomes_what_transformers_makes_of_it(tmp_path):
    source = make("deepseek-v3", tmp_path / "source")
    stored, want = {}, {}
    for name, w in tensors(source).items():
        if w.dim() == 2 and name.endswith("proj.weight") or name.endswith("proj_with_mqa.weight"):
            stored[name], stored[name + "_scale_inv"], want[name] = quantize(w, (128, 128))
        else:
            stored[name] = want[name] = w.to(torch.bfloat16)
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    assert_becomes(want, "deepseek-v3", source, stored, quantization, tmp_path)


def test_a_model_in_mxfp4_becomes_what_transformers_makes_of_it(tmp_path):
    """As gpt-oss is published."""
    source, random = make("gpt-oss", tmp_path / "source"), torch.Generator().manual_seed(2)
    stored, want = {}, {}
    for name, w in tensors(source).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = want[name] = w.to(torch.bfloat16)
            continue
        experts, columns, rows = w.shape  # each matrix is stored the other way round
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), generator=random, dtype=torch.uint8)
        scales = torch.randint(115, 127, blocks.shape[:-1], generator=random, dtype=torch.uint8)
        stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
        want[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    assert_becomes(want, "gpt-oss", source, stored, quantization, tmp_path)


@pytest.mark.parametrize("tp", [2, 4])
def test_the_ranks_compute_the_whole_model(tp, model, tmp_path, figure):
    """At 4 ranks, two of them have the same key-value head."""
    import_(model, "tp1pp2", tmp_path / "ckpt")
    harness.ok("tp-reshard", tmp_path / "ckpt", "--to", "tp%dpp1" % tp, "-o", tmp_path / "tp")
    worst, largest = error_of_ranks(model, tmp_path / "tp", tp, tmp_path)
    figure("largest difference of logits", "%.1e, of up to %.1f" % (worst, largest))
    assert worst <= LOGITS_WITHIN


@pytest.mark.parametrize("name,line,cut", [("gpt-oss", "gate_up_proj ", "2 blocks=2"), ("qwen3-next", "in_proj_qkvz.weight", "0 blocks=2"),
                                           ("deepseek-v3", "kv_b_proj.weight", "0 blocks=2")])
def test_another_cut_would_compute_something_else(name, line, cut, tmp_path):
    """The same number of rows, but other ones."""
    model = name, make(name, tmp_path / "model")
    text = (RULES / (MODELS[name][0] + ".rules")).read_text().splitlines()
    changed = [words.split(line)[0] + line + " " + cut if line in words and not words.startswith(("#", "mtp")) else words for words in text]
    assert sum(a != b for a, b in zip(text, changed)) == 1
    (tmp_path / "rules").write_text("\n".join(changed) + "\n")
    import_(model, "tp2", tmp_path / "ckpt", tmp_path / "rules")
    worst, largest = error_of_ranks(model, tmp_path / "ckpt", 2, tmp_path)
    assert worst > 0.05 * largest
