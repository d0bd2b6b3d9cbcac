"""tests/fuzz/corpus.py - the first inputs of each harness: {harness: {name: bytes}}.

Small files that the parsers accept, from which libFuzzer makes others, and inputs that once were a
defect.
"""
import json
import pathlib
import struct
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import hostile_torch  # noqa: E402

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 256,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
    "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 64, "n_inner": None,
    "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "tie_word_embeddings": True,
}


def text(value):
    return json.dumps(value).encode()


def tensor(number, name, shape, **changes):
    return {"id": number, "group": "param", "name": name, "dtype": "fp32", "shape": shape, "layer": -1,
            "rule": {"dim": 0, "unit": 1, "blocks": 1, "share": False, "pad": True}, **changes}


def manifest(spec="tp2", ranks=2, tensors=2, **changes):
    """A manifest up to its checksum: the object is open."""
    whole = {
        "format": "tp-ckpt", "version": 2, "save_id": "a" * 32, "epoch": 1, "step": 5,
        "layout": {"spec": spec, "ranks": ranks, "layers": 2, "stage_of": [0, 0]},
        "train": {"step": 5, "next_sample": 10, "tokens": 640, "seed": "1234", "dtype": "fp32",
                  "options": {"lr": 0.0005, "steps": 20}},
        "model_config": json.dumps(LLAMA),
        "tensors": [tensor(i, "w%d" % i, [16, 8]) for i in range(tensors)],
        "shards": [{"file": "rank-%05d.h5" % r, "rank": r, "size_bytes": 4096, "index_offset": 96,
                    "index_rows": 3, "index_sha256": "1" * 64, "meta_sha256": "e" * 64}
                   for r in range(min(ranks, 4))],
        **changes,
    }
    return json.dumps(whole, indent=0).encode()[:-2] + b",\n"


def row(number, lo, length, offset, elem):
    """A row of /index (docs/FORMAT.md, section 3)."""
    size = elem
    for n in length:
        size *= n
    pad = [0] * (6 - len(lo))
    packed = struct.pack("<IIII12qqqqI", number, 0, len(lo), 0, *lo, *pad, *length, *pad, offset, size, size, 0)
    return packed.ljust(144, b"\0") + struct.pack("<QQ", 1, 2)


def header(tensors, data=0):
    return bytes([data]) + text(tensors)


def idx(sizes, documents, kind=8):
    pointers, at = [], 0
    for n in sizes:
        pointers.append(at)
        at += 2 * n
    return bytes([at]) + (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, kind, len(sizes), len(documents)) +
                          struct.pack("<%di" % len(sizes), *sizes) +
                          struct.pack("<%dq" % len(pointers), *pointers) +
                          struct.pack("<%dq" % len(documents), *documents))


JOB = b"""command: tp-train --model m --data d --steps 100 --layout {layout} --ckpt {ckpt} --resume
ckpt: ckpt
layouts: [tp4, tp2, tp1]
nodes:
  - {name: n0, ranks: 4}
  - {name: n1, ranks: 4}
restart:
  max: 5
  backoff: 2s
page:
  listen: 127.0.0.1:8080
"""

RUN = {"n": 1, "record": {
    "run_id": "0123456789abcdef", "state": "train", "attempt": 2, "epoch": 3, "layout": "tp2", "open": True,
    "saved": 5, "reason": "rank_killed", "message": "rank 1", "restarts": [1.5, 2.5],
    "bad": [{"step": 3, "fails": 1}], "times": [{"layout": "tp2", "seconds": 0.5}], "spent": {"train": 5.0}}}

SEEDS = {
    "manifest": {
        "tp2": manifest(), "pipeline": manifest("pp2tp2", 4, 3), "empty": manifest("tp1", 1, 0),
        "no-model": manifest(model_config=None), "other-order": b'{"shards": [], "x": {"y": [1]},\n',
    },
    # frames of 256 bytes "abcd" and of 128 zeros, made by zstd
    "codec_frame": {
        "text": bytes([0, 2, 15]) + bytes.fromhex("28b52ffd6000005d000020616263640100f9294704"), "shuffled": bytes([1, 2, 15]) + bytes.fromhex("28b52ffd6000005d000020616263640100f9294704"),
        "zeros": bytes([1, 1, 7]) + bytes.fromhex("28b52ffd208045000010000001003b0558"), "none": b"",
    },
    "shard_index": {
        "one": row(0, (0, 0), (16, 16), 0, 4), "two": row(0, (0, 0), (16, 16), 0, 4) + row(1, (0,), (64,), 1024, 2),
        "chunks": row(0, (0, 0), (8, 16), 0, 4) + row(0, (8, 0), (8, 16), 512, 4),
        "chunked": row(0, (0, 0), (8, 16), 512, 4) + row(0, (8, 0), (8, 16), 0, 4) + b"x",
    },
    "safetensors_header": {
        "one": header({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, 4),
        "metadata": header({"__metadata__": {"format": "pt"},
                            "b": {"dtype": "F32", "shape": [2, 2], "data_offsets": [4, 20]},
                            "a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}, 20),
        "none": header({}), "escapes": header({"\u00e9\n\"": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}}, 2),
    },
    "safetensors_index": {
        "two": text({"metadata": {"total_size": 5}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors",
                                                                   "c": "1.safetensors"}}),
        "path": text({"weight_map": {"a": "../1.safetensors"}}),
    },
    "model_config": {
        "llama": text(LLAMA), "gpt2": text(GPT2),
        "scaled": text({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    },
    "job_file": {"job": JOB, "empty": b"{}", "alias": b"a: &x [1, 2]\nb: *x\n", "slurm": b"backend: slurm\n" + JOB},
    "torch_file": {
        **{name: b"\0" + data for name, data in hostile_torch.cases().items()},
        **{"pickle-" + name: b"\1" + data for name, data in
           {**hostile_torch.pickles(), **hostile_torch.tensors(), **hostile_torch.executing()}.items()},
    },
    "token_file": {"two": idx([3, 4], [0, 2]), "bytes": idx([2], [0, 1], kind=1), "none": idx([], [0])},
    "run_journal": {"record": b"\1" + text(RUN), "file": b"\0" + b"00000000 0000000002 {}\n", "empty": b"\1{}"},
    "s3_list": {
        "page": b"<ListBucketResult><Contents><Key>a/f.h5</Key><Size>123</Size></Contents><CommonPrefixes><Prefix>a/b/</Prefix>"
                b"</CommonPrefixes><NextContinuationToken>1/a=</NextContinuationToken></ListBucketResult>",
        "escaped": b"<ListBucketResult><Contents><Key>x&amp;y&#65;</Key><Size>1</Size></Contents></ListBucketResult>",
        "path": b"<ListBucketResult><Contents><Key>../f</Key><Size>1</Size></Contents></ListBucketResult>",
    },
    "transfer_journal": {
        "records": b"\1" + bytes([8]) + struct.pack("<q", 3) + bytes([40]) + struct.pack("<qQQQQ", 7, 2, 2, 1, 2),
        "file": b"\0" + bytes(64),
    },
    "control_request": {"status": b'{"verb": "status"}\n', "resize": b'{"verb": "resize", "to": "tp4"}\n',
                        "node": b'{"verb": "node", "node": "n0", "up": true}\n'},
    "http_request": {
        "page": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "status": b"GET /status?token=x HTTP/1.1\r\nHost: localhost:8080\r\nAuthorization: Bearer x\r\n\r\n",
        "metrics": b"GET /metrics HTTP/1.0\r\n\r\n",
        "post": b"POST /events HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 5\r\n\r\nhello",
        "chunked": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    },
}
