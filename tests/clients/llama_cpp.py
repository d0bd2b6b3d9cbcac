"""Asks llama.cpp (xllamacpp, whose wheel contains it) what token comes next.

    llama_cpp.py MODEL.gguf < prompts.json

prompts.json is a list of prompts, each a text or a list of tokens. Prints a line for each: {token: logarithm of its
probability} of all tokens, or null when llama.cpp's most likely token is a part of a character, which it withholds.
"""
import json
import os
import sys

import xllamacpp

VOCABULARY = 300


def main():
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)  # llama.cpp prints a lot
    p = xllamacpp.CommonParams()
    p.model.path = sys.argv[1]
    p.n_ctx, p.n_parallel, p.n_gpu_layers, p.cpuparams.n_threads, p.warmup = 256, 1, 0, 1, False
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(p)
    for prompt in json.load(sys.stdin):
        answer = server.handle_completions({"prompt": prompt, "n_predict": 1, "n_probs": VOCABULARY, "temperature": 0.0,
                                            "cache_prompt": False, "samplers": []})
        chosen = (answer["choices"][0]["logprobs"] or {"content": None})["content"]
        print(json.dumps(chosen and {t["id"]: t["logprob"] for t in chosen[0]["top_logprobs"]}), file=out, flush=True)


main()
