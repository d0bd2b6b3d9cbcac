"""Reads GGUF files, and says what they must have: written from the format's description and from what llama.cpp's
converter does, without code of this project or of gguf-py."""
import struct

import numpy as np

F32, F16, Q8_0, BF16 = 0, 1, 8, 30
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BYTES = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), BF16: (1, 2)}  # elements and bytes of a block


class _Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, kind):
        value, = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return value

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, n = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(n)]
        return self.number(NUMBERS[kind])


def read(path):
    """(keys, {name: (type, shape as in numpy, bytes)}). Checks that tensors fill the file without overlaps."""
    b = _Bytes(path.read_bytes())
    assert b.data[:4] == b"GGUF"
    b.at = 4
    assert b.number("I") == 3
    n_tensors, n_keys = b.number("Q"), b.number("Q")
    keys = {}
    for _ in range(n_keys):
        key = b.string()
        assert key not in keys
        keys[key] = b.value(b.number("I"))
    entries = []
    for _ in range(n_tensors):
        name, ndim = b.string(), b.number("I")
        dims = [b.number("Q") for _ in range(ndim)]
        entries.append((name, b.number("I"), tuple(reversed(dims)), b.number("Q")))
        assert len(name) < 64
    begin, align = b.at, keys.get("general.alignment", 32)
    begin += -begin % align
    tensors, end = {}, 0
    for name, kind, shape, offset in entries:
        elements, size = BYTES[kind]
        n = int(np.prod(shape)) // elements * size
        assert offset == end + -end % align and name not in tensors, name
        end = offset + n
        tensors[name] = kind, shape, b.data[begin + offset:begin + end]
    assert begin + end == len(b.data)
    return keys, tensors


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def quantized(x):
    """Q8_0 of f32: a scale of f16 and 32 bytes a block, halves rounded away from zero."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore"):
        scaled = blocks * np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    whole = np.trunc(scaled)
    rounded = whole + np.sign(scaled) * (np.abs(scaled - whole) >= 0.5)
    return np.concatenate([scale.astype(np.float16).view(np.uint8).reshape(-1, 2),
                           rounded.astype(np.int8).view(np.uint8)], axis=1).tobytes()


def stored(x, kind):
    return {F32: lambda: x.astype(np.float32).tobytes(), F16: lambda: x.astype(np.float16).tobytes(),
            BF16: lambda: bf16(x).tobytes(), Q8_0: lambda: quantized(x)}[kind]()


# ---- llama.cpp's names and orders ----

ARCH = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
        "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "olmo2": "olmo2", "gpt2": "gpt2",
        "gpt_neox": "gptneox", "granite": "granite", "olmo3": "olmo2", "smollm3": "smollm3"}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "transformer.wte": "token_embd",
       "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm", "gpt_neox.embed_in": "token_embd",
       "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output"}
LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv",
         "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "attention.query_key_value": "attn_qkv",
         "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
         "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp"}
AROUND = {**LAYER, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
          "post_feedforward_layernorm": "post_ffw_norm"}
EXPERT = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps", "gate_proj": "ffn_gate_exps",
          "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def expected(weights, config):
    """{name of llama.cpp: array} of a model with Hugging Face's names."""
    kind = config["model_type"]
    heads = config.get("num_attention_heads") or config["n_head"]
    of_keys = config.get("num_key_value_heads") or heads
    out, experts = {}, {}
    for key, x in weights.items():
        module, suffix = key.rsplit(".", 1)
        parts = module.split(".")
        layer = next((i for i, p in enumerate(parts) if p.isdigit()), None)
        if layer is None:
            name = TOP[module] + "." + suffix
        elif "experts" in parts:
            name = "blk.%s.%s.weight" % (parts[layer], EXPERT[parts[-1]])
            experts.setdefault(name, {})[int(parts[-2])] = x
            continue
        else:
            table = AROUND if kind in ("gemma2", "gemma3_text", "olmo2", "olmo3") else LAYER
            name = "blk.%s.%s.%s" % (parts[layer], table[".".join(parts[layer + 1:])], suffix)
        if ARCH[kind] in ("llama", "granite", "smollm3") and (".attn_q." in name or ".attn_k." in name):
            x = x.reshape(heads if ".attn_q." in name else of_keys, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        if kind == "gpt_neox" and ".attn_qkv." in name:
            x = x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        if kind == "gpt2" and layer is not None and x.ndim == 2:
            x = x.T
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            x = x + np.float32(1)
        out[name] = x
    for name, list_of in experts.items():
        out[name] = np.stack([list_of[i] for i in range(len(list_of))])
    return out
