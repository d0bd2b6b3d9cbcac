"""llm.c's fp32 training of GPT-2 on CPUs, which bench_models.py compares with.

    PYTHON llmc.py FOLDER CHECKPOINT      writes the weights of a Hugging Face folder in llm.c's form

llm.c is not a part of this project: `--llmc DIR` names a clone of https://github.com/karpathy/llm.c.
"""
import json
import pathlib
import struct
import subprocess
import sys

MAGIC, VERSION = 20240326, 3  # of a file of fp32 weights
LAYER = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
         "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
         "mlp.c_proj.weight", "mlp.c_proj.bias")


def build(llmc, folder):
    """The program of llmc_training.c, built with the compiler flags of llm.c's Makefile."""
    program = pathlib.Path(folder) / "llmc_training"
    source = pathlib.Path(__file__).parent / "llmc_training.c"
    subprocess.run(["cc", "-w", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-I", llmc, source,
                    "-o", program, "-lm"], check=True)
    return program


def write_checkpoint(folder, path):
    """Matrices are [out][in], which is the transpose of Hugging Face's; the vocabulary is padded."""
    import torch
    from safetensors.torch import load_file
    c = json.load(open(pathlib.Path(folder) / "config.json"))
    state = {k.removeprefix("transformer."): v for k, v in
             load_file(str(pathlib.Path(folder) / "model.safetensors")).items()}
    vocab, layers = c["vocab_size"], c["n_layer"]
    padded = (vocab + 127) // 128 * 128
    header = [MAGIC, VERSION, c["n_positions"], vocab, layers, c["n_head"], c["n_embd"], padded]
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))

        def put(x):
            f.write((x.t() if x.dim() == 2 else x).contiguous().numpy().tobytes())

        wte = torch.zeros(padded, c["n_embd"])
        wte[:vocab] = state["wte.weight"]
        put(wte.t())
        put(state["wpe.weight"].t())
        for name in LAYER:
            for i in range(layers):
                put(state["h.%d.%s" % (i, name)])
        put(state["ln_f.weight"])
        put(state["ln_f.bias"])


if __name__ == "__main__":
    write_checkpoint(*sys.argv[1:])
