"""A tensor of more than 2^31 elements, nearly all of which are a hole in a sparse file.

needs: tp-reshard tp-ckpt
"""
import json
import os
import struct

import pytest

import harness

ROWS, COLUMNS = 2**21 + 24, 1024
FILLED = [0, 2**20, 2**21 - 1, 2**21, ROWS - 1]  # around the byte 2^32 and the element 2^31, too


def tensors():
    yield "model.embed_tokens.weight", [ROWS, COLUMNS]
    yield "model.norm.weight", [COLUMNS]
    for name, shape in {"input_layernorm": [COLUMNS], "post_attention_layernorm": [COLUMNS],
                        "self_attn.q_proj": [16, COLUMNS], "self_attn.k_proj": [16, COLUMNS],
                        "self_attn.v_proj": [16, COLUMNS], "self_attn.o_proj": [COLUMNS, 16],
                        "mlp.gate_proj": [16, COLUMNS], "mlp.up_proj": [16, COLUMNS],
                        "mlp.down_proj": [COLUMNS, 16]}.items():
        yield "model.layers.0.%s.weight" % name, shape


def write_sparse(folder):
    """A folder of Hugging Face with bf16 weights of 4 GiB in a few blocks of a file."""
    header, at = {}, 0
    for name, shape in tensors():
        size = 2 * shape[0] * (shape[1] if shape[1:] else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for row in FILLED:
            f.seek(8 + len(text) + row * COLUMNS * 2)
            f.write(os.urandom(COLUMNS * 2))
        f.truncate(8 + len(text) + at)


@pytest.mark.long
def test_a_tensor_of_more_than_2_to_31_elements_is_imported_and_resharded(tmp_path):
    harness.write_config(tmp_path, vocab_size=ROWS, hidden_size=COLUMNS, intermediate_size=16, head_dim=2,
                         num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8, tie_word_embeddings=True)
    write_sparse(tmp_path)
    harness.ok("tp-ckpt", "import", tmp_path, "--layout", "tp2", "-o", tmp_path / "two", timeout=1800)
    r = harness.ok("tp-reshard", tmp_path / "two", "--to", "tp4dp2zero3", "-o", tmp_path / "eight", "--json", timeout=1800)
    assert json.loads(r.out)["bytes_written"] > 2**32
    assert harness.digest(tmp_path / "two") == harness.digest(tmp_path / "eight")
