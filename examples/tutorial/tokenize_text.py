#!/usr/bin/env python3
"""Turn a text into a token file for `tp-train --data`, with a model's own tokenizer.

    tokenize_text.py MODEL_FOLDER TEXT PREFIX

Writes PREFIX.bin and PREFIX.idx, the format of Megatron-LM's preprocess_data.py. Each paragraph
(text between empty lines) is a document and ends with the end-of-text token. Needs transformers
and numpy.
"""
import struct
import sys

import numpy as np
from transformers import AutoTokenizer

model, text, prefix = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
with open(text, encoding="utf-8", errors="replace") as f:
    paragraphs = [p for p in f.read().split("\n\n") if p.strip()]
documents = [tokenizer.encode(p, add_special_tokens=False) + [tokenizer.eos_token_id]
             for p in paragraphs]

dtype, code = (np.uint16, 8) if len(tokenizer) <= 65536 else (np.int32, 4)
tokens = np.concatenate([np.array(d, dtype) for d in documents])
sizes = np.array([len(d) for d in documents], np.int32)
starts = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)]) * np.dtype(dtype).itemsize
tokens.tofile(prefix + ".bin")
with open(prefix + ".idx", "wb") as f:
    f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(sizes) + 1))
    f.write(sizes.tobytes() + starts.astype(np.int64).tobytes())
    f.write(np.arange(len(sizes) + 1, dtype=np.int64).tobytes())
print(f"{prefix}.bin: {len(tokens):,} tokens in {len(documents):,} documents")
