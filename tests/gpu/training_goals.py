"""tests/gpu/training_goals.py - the models that tests/gpu/gpu_check.py trains, and the goals of their speed."""
import re

TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "hidden_act": "silu"}
EXPERTS = {**TINY, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
           "num_experts_per_tok": 2}
HEADS_OF_64 = {**TINY, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
GPT2_124M = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
             "n_positions": 4096, "n_inner": 3072, "vocab_size": 50304, "activation_function": "gelu_new",
             "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
             "attn_pdrop": 0.0}
GPT2_TINY = {**GPT2_124M, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 128, "vocab_size": 256}
LLAMA_1B = {**TINY, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000}

# TFLOP/s of dense bf16 products, by NVIDIA's data sheets; of cards for servers with less power, after them.
PEAKS = {"A100": 312, "A800": 312, "H100": 989, "H200": 989, "GH200": 989, "H800": 989, "B200": 2250, "GB200": 2500}
CARD_PEAKS = {("H100", "PCIe"): 756, ("H800", "PCIe"): 756, ("H100", "NVL"): 835, ("H200", "NVL"): 835}


def flops_per_token(model, seq):
    """Of a training step, without recomputation: three times the forward pass, with half of the scores."""
    if model["model_type"] == "gpt2":
        hidden, layers, vocab = model["n_embd"], model["n_layer"], model["vocab_size"]
        layer, width = 4 * hidden * hidden + 2 * hidden * model["n_inner"], hidden
    else:
        hidden, layers, vocab = model["hidden_size"], model["num_hidden_layers"], model["vocab_size"]
        width = model["num_attention_heads"] * model["head_dim"]
        kv = model["num_key_value_heads"] * model["head_dim"]
        layer = 2 * hidden * (width + kv) + 3 * hidden * model["intermediate_size"]
    return 3 * (2 * (layers * layer + vocab * hidden) + 2 * layers * seq * width)


def peak_of(gpu):
    """TFLOP/s of a GPU's name; None: it is not in the tables, or is a slice of a GPU."""
    words = re.split(r"\W+", gpu or "")
    model = next((word for word in words if word in PEAKS), None)
    if "MIG" in words:
        return None
    return next((peak for (name, card), peak in CARD_PEAKS.items() if name == model and card in words), PEAKS.get(model))


def judge_training(row, model, seq, gpu):
    """Add the part of the peak, and whether the goals are reached: 45 % of it, and faster than torch.compile, of the model or of
    its layers."""
    rate, peak = row.get("tokens_per_s"), peak_of(gpu)
    compiled = [row[key] for key in ("pytorch_compile", "pytorch_compile_layers") if isinstance(row.get(key), float)]
    row["of_peak"] = rate * flops_per_token(model, seq) / (peak * 1e12) if rate and peak else None
    row["is_45_percent"] = row["of_peak"] >= 0.45 if row["of_peak"] is not None else None
    row["is_faster_than_compile"] = rate > max(compiled) if rate and compiled else None
