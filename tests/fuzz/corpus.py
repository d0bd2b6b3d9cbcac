"""tests/fuzz/corpus.py - the first inputs of each harness: {harness: {name: bytes}}.

Small files that the parsers accept, from which libFuzzer makes others, and inputs that once were a
defect.
"""
import json
import math
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

# A SentencePiece model: the pieces <0x00> to <0xFF>, of type BYTE, and an "a" with a score; its type is BPE.
PIECES = b"".join(b"\x0a\x0a\x0a\x06<0x%02X>\x18\x06" % i for i in range(256)) + b"\x0a\x08\x0a\x01a\x15\0\0\x80?\x12\x02\x18\x02"


BRIDGE = b"""model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  gated_linear_unit: true
  hidden_size: 4
  kv_channels: null
  layernorm_epsilon: 1.0e-05
  normalization: RMSNorm
  num_attention_heads: 2
  num_layers: 2
  num_query_groups: 1
  position_embedding_type: rope
  seq_length: 8
  tensor_model_parallel_size: 1
  vocab_size: 8
"""


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

TOKENIZER = {
    "version": "1.0", "added_tokens": [{"id": 4, "content": "<s>", "special": True}, {"id": 0, "content": "<unk>"}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}]}, "pre_tokenizer": None,
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]},
    "model": {"type": "BPE", "byte_fallback": True, "ignore_merges": False,
              "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "<0x0A>": 5}, "merges": [["a", "b"]]},
}
BYTE_LEVEL = {
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                            {"type": "ByteLevel", "use_regex": True}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
}
TOKENIZER_CONFIG = {"bos_token": {"content": "<s>"}, "eos_token": "b", "add_bos_token": True, "chat_template": "{{ x }}"}


def dcp(entries, places):
    """.metadata of torch.distributed.checkpoint, a pickle."""
    module = "torch.distributed.checkpoint.metadata"

    def made(kind, where=module, **members):
        state = b"".join(hostile_torch.text(k) + v for k, v in members.items())
        return hostile_torch.name(where, kind) + b")\x81}(" + state + b"ub"

    def size(values):
        return hostile_torch.call("torch", "Size", hostile_torch.numbers(values))

    def chunk(lo, length):
        return made("ChunkStorageMetadata", offsets=size(lo), sizes=size(length))

    def entry(shape, boxes):
        if shape is None:
            return made("BytesStorageMetadata")
        properties = made("TensorProperties", dtype=hostile_torch.name("torch", "float32"))
        return made("TensorStorageMetadata", properties=properties, size=size(shape),
                    chunks=b"](" + b"".join(chunk(*b) for b in boxes) + b"e")

    def place(name, lo):
        return made("MetadataIndex", fqn=hostile_torch.text(name), offset=b"N" if lo is None else size(lo), index=b"N")

    def info(file, begin, length):
        return made("_StorageInfo", "torch.distributed.checkpoint.filesystem", relative_path=hostile_torch.text(file),
                    offset=hostile_torch.number(begin), length=hostile_torch.number(length))

    state = b"}(" + b"".join(hostile_torch.text(k) + entry(*v) for k, v in entries.items()) + b"u"
    storage = b"}(" + b"".join(place(*k) + info(*v) for k, v in places.items()) + b"u"
    return hostile_torch.P2 + made("Metadata", state_dict_metadata=state, storage_data=storage) + b"."


def real(value):
    return b"G" + struct.pack(">d", value)


def value(v):
    """A pickled value: bytes are one already."""
    if isinstance(v, bytes):
        return v
    if isinstance(v, dict):
        return b"}(" + b"".join(value(k) + value(item) for k, item in v.items()) + b"u"
    if isinstance(v, list):
        return b"](" + b"".join(map(value, v)) + b"e"
    if isinstance(v, str):
        return hostile_torch.text(v)
    if isinstance(v, float):
        return real(v)
    return b"N" if v is None else b"\x89\x88"[v:v + 1] if isinstance(v, bool) else hostile_torch.number(v)


def array(*size):
    """A tensor of the storage of 256 floats, contiguous."""
    stride = [1] * len(size)
    for d in range(len(size) - 2, -1, -1):
        stride[d] = stride[d + 1] * size[d + 1]
    return hostile_torch.tensor(numel=256, size=size, stride=stride)


def namespace(**members):
    return hostile_torch.name("argparse", "Namespace") + b")\x81" + value(members) + b"b"


def trainer(layer, decayed, norms, names=None):
    """optimizer.pt of Trainer: the shapes of the parameters of a layer that have weight decay, before and after the two layers, and
    the number of vectors. A weight is beside it, because the file is the model's too."""
    shapes = [decayed[0], *layer, *layer, decayed[1]] + norms * [(4,)]
    state = {i: {"step": 3, "exp_avg": array(*s), "exp_avg_sq": array(*s)} for i, s in enumerate(shapes)}
    split = len(shapes) - norms
    groups = [{"lr": 0.1, "betas": [1, 2], "params": list(range(split))}, {"params": list(range(split, len(shapes))), "step": 3}]
    if names:
        groups = [{"params": list(range(len(shapes))), "param_names": names}]
    return {"state": state, "param_groups": groups, "model.norm.weight": array(4)}


FOLDERS = 14  # of foreign_checkpoint.c


def foreign(folder, root, experts=0):
    """An input of foreign_checkpoint: the folder's number, whether the model has experts (2: it is not known), the pickle."""
    return bytes([folder + FOLDERS * experts]) + hostile_torch.P2 + value(root) + b"."


def tensors(folder, shapes, kind="BF16", experts=0, **more):
    """The same with the header of a safetensors file. shapes: {name: shape}, or (type, shape) with another type than `kind`."""
    header, at = dict(more), 0
    for name, shape in shapes.items():
        dtype, shape = shape if shape and isinstance(shape[0], str) else (kind, shape)
        size = math.prod(shape) * {"F8_E4M3": 1, "U8": 1, "BF16": 2, "F32": 4}[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return bytes([folder + FOLDERS * experts, at >> 8, at & 255]) + text(header)


ARGS = {"num_layers": 2, "hidden_size": 4, "ffn_hidden_size": 4, "num_attention_heads": 2, "num_query_groups": 1,
        "group_query_attention": True, "kv_channels": 2, "max_position_embeddings": 8, "swiglu": True,
        "normalization": "RMSNorm", "position_embedding_type": "rope", "rotary_base": 10000, "add_bias_linear": False,
        "untie_embeddings_and_output_weights": True, "padded_vocab_size": 8, "vocab_size": 8, "norm_epsilon": 1e-5,
        "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "transformer_impl": "transformer_engine"}


def megatron_layer(i, experts=0):
    head = "decoder.layers.%d." % i
    mlp = {"mlp.linear_fc1.layer_norm_weight": array(4), "mlp.linear_fc1.weight": array(8, 4), "mlp.linear_fc2.weight": array(4, 4)}
    if experts:
        mlp = {"pre_mlp_layernorm.weight": array(4), "mlp.router.weight": array(experts, 4)}
        for e in range(experts):
            mlp["mlp.experts.linear_fc1.weight%d" % e] = array(8, 4)
            mlp["mlp.experts.local_experts.%d.linear_fc2.weight" % e] = array(4, 4)
    return {head + name: t for name, t in {
        "self_attention.linear_qkv.layer_norm_weight": array(4), "self_attention.linear_qkv.weight": array(8, 4),
        "self_attention.linear_proj.weight": array(4, 4), **mlp}.items()}


def megatron(args, optimizer, layers=2, experts=0, **more):
    model = {"embedding.word_embeddings.weight": array(8, 4)}
    for i in range(layers):
        model.update(megatron_layer(i, experts))
    model.update({"decoder.final_layernorm.weight": array(4), "output_layer.weight": array(8, 4)})
    return {"checkpoint_version": 3.0, "iteration": 5, "args": namespace(**{**ARGS, **args}), "model": model,
            "optimizer": optimizer, "opt_param_scheduler": {}, **more}


MOMENTS = {"exp_avg": array(8, 4), "exp_avg_sq": array(8, 4), "step": hostile_torch.tensor(numel=256, size=(), stride=())}
FLAT = {"exp_avg": array(40), "exp_avg_sq": array(40), "step": hostile_torch.tensor(numel=256, size=(), stride=())}


def size_of(*numbers):
    return hostile_torch.call("torch", "Size", hostile_torch.numbers(numbers))


def deepspeed(zero3=False, **more):
    """Both files of a rank in one: model states and the optimizer's."""
    state = {"single_partition_of_fp32_groups": [array(40)], "base_optimizer_state": {"state": {0: FLAT}},
             "param_slice_mappings": [{"w": namespace(start=0, numel=32), "v": namespace(start=32, numel=8)}]}
    if zero3:
        state = {"fp32_flat_groups": [array(40)], "optimizer_state_dict": {"state": {0: FLAT}}}
    return {"dp_world_size": 1, "mp_world_size": 1, "global_steps": 5, "param_shapes": [{"w": size_of(8, 4), "v": size_of(8)}],
            "module": {"w": array(8, 4), "v": array(8)}, "optimizer_state_dict": state, **more}


NEOX = {"input_layernorm.scale": (4,), "attention.query_key_value.weight": (4, 4), "attention.dense.weight": (4, 2),
        "post_attention_layernorm.scale": (4,), "mlp.linear1.weight": (4, 4), "mlp.linear2.weight": (4, 2)}


def neox_layer(head):
    return {head + name: array(*s) for name, s in NEOX.items()}


def parallel(pipeline=False):
    """Files of two tensor-parallel ranks of GPT-NeoX's Llama."""
    shapes = {"sequential.0.word_embeddings.weight": (4, 4), **{"sequential.%d.%s" % (i + 2, n): s for i in range(2) for n, s in NEOX.items()},
              "sequential.5.norm.scale": (4,), "sequential.6.final_linear.weight": (4, 4)}
    if pipeline:
        shapes = {n.removeprefix("sequential."): s for n, s in shapes.items()}
    at, slices = 0, {}
    for name, s in shapes.items():
        n = math.prod(s)
        slices[name] = namespace(start=at, numel=n)
        at += n
    return {**deepspeed(mp_world_size=2), "param_shapes": [{n: size_of(*s) for n, s in shapes.items()}],
            "module": None if pipeline else {n: array(*s) for n, s in shapes.items()}, "args": {"num_layers": 2},
            "optimizer_state_dict": {"single_partition_of_fp32_groups": [array(at)], "param_slice_mappings": [slices],
                                     "base_optimizer_state": {"state": {0: {"exp_avg": array(at), "exp_avg_sq": array(at)}}}}}


def meta(ranks, kv=2):
    """{name: shape} of a rank of Meta's, with so many rows of keys."""
    out = {"tok_embeddings.weight": (8 // ranks, 4), "norm.weight": (4,), "output.weight": (8 // ranks, 4)}
    for i in range(2):
        out.update({"layers.%d.%s.weight" % (i, n): s for n, s in {
            "attention.wq": (4 // ranks, 4), "attention.wk": (kv, 4), "attention.wv": (kv, 4), "attention.wo": (4, 4 // ranks),
            "feed_forward.w1": (4 // ranks, 4), "feed_forward.w2": (4, 4 // ranks), "feed_forward.w3": (4 // ranks, 4),
            "attention_norm": (4,), "ffn_norm": (4,)}.items()})
    return out


def vllm(tp):
    out = {"model.embed_tokens.weight": (64 // tp, 4), "model.norm.weight": (4,), "lm_head.weight": (64 // tp, 4)}
    for i in range(2):
        out.update({"model.layers.%d.%s" % (i, n): s for n, s in {
            "self_attn.qkv_proj.weight": (4 // tp + 4, 4), "self_attn.o_proj.weight": (4, 4 // tp), "mlp.gate_up_proj.weight": (8 // tp, 4),
            "mlp.down_proj.weight": (4, 4 // tp), "input_layernorm.weight": (4,), "post_attention_layernorm.weight": (4,),
            "self_attn.attn._k_scale": ("F32", ())}.items()})
    return out


def beat(step, phase=2, entered=0, left=0, loss=2.5, history=0):
    """A status of a rank (core/heartbeat.h)."""
    now = min(10**9 * (step + 2), 2**63 - 1)
    words = [2, 1, 1, 5, phase, 5, step, now, 10**9]
    packed = b"TPSLOT\0\1" + struct.pack("<q", 0) + struct.pack("<9q", *words) + struct.pack("<d", loss)
    return (packed + struct.pack("<6q", entered, left, 10**8, -1, 0, history)).ljust(256, b"\0")


RULES = (b"# name axis options\na 0 pad\nb -\nc -\nl.*.w 1 blocks=3 unit=4\nl.*.e.* 0 share expert\nx 1 optional\ny 0 last\n"
         b"z 0 pad\n")
LONG_FIRST = b"l.*.w 1 unit=4 blocks=3 first=32\na 0 blocks=2\nb 0 pad unit=2\n"
SQUEUE = (b"squeue: warning\nRUNNING|None|1-02:03:04|2026-11-23T10:00:00|2|2-00:00:00|acct|debug|normal|N/A|0|n[1-2]|\n")

RUN = {"n": 1, "record": {
    "run_id": "0123456789abcdef", "state": "train", "attempt": 2, "epoch": 3, "layout": "tp2", "open": True,
    "saved": 5, "reason": "rank_killed", "message": "rank 1", "restarts": [1.5, 2.5],
    "bad": [{"step": 3, "fails": 1}], "times": [{"layout": "tp2", "seconds": 0.5}], "spent": {"train": 5.0}}}

OWNER = {"run": "0123456789abcdef", "job": "job", "user": "me", "host": "n1", "boot": "b", "pid_space": "pid:[1]", "pid": 17,
         "pid_start": 1, "child": 18, "child_start": 2, "since": 1.75e9}

SEEDS = {
    "manifest": {
        "tp2": manifest(), "pipeline": manifest("pp2tp2", 4, 3), "empty": manifest("tp1", 1, 0),
        "no-elements": manifest("tp4", 4, 0).replace(b'"tensors": []', b'"tensors": ' + text(
            [tensor(0, "w", [0, 8], rule={"dim": 0, "unit": 1, "blocks": 1, "share": True, "pad": False})])),
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
    "bridge_args": {"llama": BRIDGE, "builder": BRIDGE.replace(b"model:\n", b"model:\n  transformer: {num_layers: 2, window_size: [3, 0]}\n"),
                    "layout": BRIDGE + b"  pipeline_model_parallel_layout: [[embedding, decoder], [decoder, loss]]\n",
                    "aliases": b"a: &a [1, 2]\nmodel: {a: *a, b: [*a, *a], num_layers: 2}\n"},
    "meta_params": {"llama": text({"dim": 4, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 8, "multiple_of": 4,
                                   "ffn_dim_multiplier": 0.4, "norm_eps": 1e-5, "rope_theta": 500000.0, "use_scaled_rope": True}),
                    "mistral": text({"model": {"dim": 4, "n_layers": 2, "head_dim": 2, "hidden_dim": 4, "n_heads": 2, "sliding_window": 8,
                                               "vocab_size": -1}})},
    "job_file": {"job": JOB, "empty": b"{}", "alias": b"a: &x [1, 2]\nb: *x\n", "slurm": b"backend: slurm\n" + JOB},
    "torch_file": {
        **{name: b"\0" + data for name, data in hostile_torch.cases().items()},
        **{"pickle-" + name: b"\1" + data for name, data in
           {**hostile_torch.pickles(), **hostile_torch.tensors(), **hostile_torch.executing()}.items()},
    },
    "foreign_checkpoint": {
        "megatron": foreign(0, megatron({}, {"optimizer": {"state": {i: MOMENTS for i in range(4)}, "param_groups": []},
                                             "fp32_from_fp16_params": [[array(8, 4)]]})),
        "megatron-sgd": foreign(0, megatron({}, {"optimizer": {"state": {i: {"momentum_buffer": array(8, 4), "row": array(3)} for i in range(4)}},
                                                 "fp32_from_fp16_params": [[array(8, 4)]], "grad_scaler": {"scale": 2}})),
        "megatron-flat": foreign(0, {**megatron({"overlap_grad_reduce": True, "ddp_bucket_size": 40}, {}),
                                     0: {0: {"numel_unpadded": 60, "param": array(60), "exp_avg": array(60), "exp_avg_sq": array(60)}}}),
        "megatron-experts": foreign(0, megatron({"num_experts": 2, "moe_router_topk": 1}, [{}, {}], experts=2), experts=True),
        "megatron-stages": foreign(1, megatron({"pipeline_model_parallel_size": 2}, {}, layers=1)),
        "megatron-chunks": foreign(1, {**megatron({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}, {}),
                                       "model0": {"embedding.word_embeddings.weight": array(8, 4)}, "model1": {}}),
        "zero1": foreign(2, deepspeed()), "zero1-ranks": foreign(2, deepspeed(dp_world_size=2)),
        "zero1-lion": foreign(2, deepspeed(lr_scheduler={"at": 1}, optimizer_state_dict={
            "single_partition_of_fp32_groups": [array(40)], "loss_scaler": {"scale": 2},
            "base_optimizer_state": {"state": {0: {"exp_avg": array(40), "row": array(3)}}, "param_groups": [{"lr": 1, "betas": [1, 2]}]},
            "param_slice_mappings": [{"w": namespace(start=0, numel=32), "v": namespace(start=32, numel=8)}]})),
        "zero3": foreign(3, deepspeed(True)), "zero3-ranks": foreign(3, deepspeed(True, dp_world_size=2)),
        "universal": foreign(4, {**deepspeed(), "param_shapes": [{"w": size_of(8, 4)}], "param": array(8, 4)}),
        "universal-bare": foreign(4, array(8, 4)), "bin": foreign(5, {"w": array(8, 4), "model.norm.weight": array(4)}),
        "trainer": foreign(6, trainer([(4, 4), (2, 4), (2, 4), (4, 4), (4, 4), (4, 4), (4, 4)], [(8, 4), (8, 4)], 5)),
        "trainer-stacked": foreign(6, trainer([(4, 4), (2, 4), (2, 4), (4, 4), (2, 4), (2, 8, 4), (2, 4, 4)], [(8, 4), (8, 4)], 5), True),
        "trainer-named": foreign(6, trainer([], [(8, 4), (8, 4)], 1, ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"])),
        "pt": foreign(7, {"model": {"w.x": array(8, 4), "v.x": array(4)}, "optimizer": {
            "state": {0: {"step": 3, "exp_avg": array(8, 4), "exp_avg_sq": array(8, 4)}, 1: {"step": 3, "exp_avg": array(4), "exp_avg_sq": array(4)}},
            "param_groups": [{"lr": 0.1, "betas": [1, 2], "params": [0, 1]}]}, "epoch": 1}),
        "pt-model": foreign(7, {"state": {"ema": {"w.x": array(8, 4)}, "model": {"module.model.embed_tokens.weight": array(8, 4)}},
                                "optimizer_states": [{"state": {"model.embed_tokens.weight": {"step": 3, "exp_avg": array(8, 4)}},
                                                      "param_groups": [{"lr": 0.1}]}, {"state": {}, "param_groups": []}]}),
        "pt-weights": foreign(7, {"model.norm.weight": array(4), "rng": array(4)}),
        "zero1-bare": foreign(2, deepspeed(), 2), "zero3-bare": foreign(3, deepspeed(True), 2),
        "pt-bare": foreign(7, {"model.norm.weight": array(4), "rng": array(4)}, 2),
        "parallel": foreign(8, parallel()), "parallel-layers": foreign(8, {**parallel(pipeline=True), **neox_layer("")}),
        "verl": foreign(9, {"model.norm.weight": array(4), "state": {0: {"exp_avg": array(4), "exp_avg_sq": array(4), "step": 3}},
                            "param_groups": [{"params": [0]}]}),
        "verl-only-layers": foreign(9, {"model.layers.0.norm.weight": array(4), "state": {0: {"step": 3}}, "param_groups": [{"params": [0, 1]}]}),
        "meta": foreign(10, {n: array(*s) for n, s in meta(2).items()}), "meta-copies": foreign(10, {n: array(*s) for n, s in meta(2, 4).items()}),
        "mistral": tensors(11, meta(1)), "vllm": tensors(12, vllm(2)), "vllm-one": tensors(12, vllm(1)),
        "fp8": tensors(13, {"model.norm.weight": (4,), "model.embed_tokens.weight": ("F8_E4M3", (8, 4)),
                            "model.embed_tokens.weight_scale_inv": ("F32", (1, 1)), "lm_head.weight": ("F8_E4M3", (8, 4)),
                            "lm_head.weight_scale": ("F32", (8, 1)), "b.weight": ("F8_E4M3", (8, 4)), "b.weight_scale": ("BF16", ())}),
        "mxfp4": tensors(13, {"e_blocks": ("U8", (2, 3, 1, 16)), "e_scales": ("U8", (2, 3, 1)), "model.norm.weight": (4,)}),
        "trainer-sgd": foreign(6, {"state": {0: {"momentum_buffer": array(8, 4)}}, "param_groups": [{"params": [0]}]}),
    },
    "http_reply": {
        "range": b"HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes 5-9/100\r\n\r\n",
        "unknown": b"HTTP/1.1 206 OK\r\nContent-Range: bytes 5-9/*\r\nContent-Range: bytes */7\r\n\r\n",
        "busy": b"HTTP/1.1 503 Slow Down\r\nRetry-After: 7\r\n\r\n<Error><Code>SlowDown</Code></Error>",
        "moved": b"HTTP/1.1 301 x\r\nx-amz-bucket-region: eu-west-1\r\n\r\n<Code>PermanentRedirect</Code>",
        "negative": b"Content-Range: bytes 5--3/2\r\nRetry-After: -1\r\nETag: \x1b\r\n",
    },
    "root_owner": {
        "owner": b"\0" + text(OWNER), "here": b"\2" + text(OWNER), "epoch": b"\1" + b"17\n",
        "no-time": b"\0" + text({**OWNER, "since": 1e300}), "child": b"\2" + text({**OWNER, "pid": 0, "child": 1}),
    },
    "relay_message": {
        "message": b"\6" + b"run.3".ljust(64, b"\0") + b"n17".ljust(64, b"\0") + struct.pack("<ii", 5, 2) + bytes(40),
        "no-end": b"\6" + b"x" * 176, "short": b"\6run.3", "port": b"\1" + b"40404 0123456789abcdef0123456789abcdef\n",
    },
    "supervisor_exit": {
        "exit": b'{"exit_code": 1, "signal": 0, "started": true}', "signal": b'{"exit_code": -1, "signal": 9, "started": true}',
        "wrapped": b'{"exit_code": 4294967296, "signal": 0, "started": true}',
    },
    "token_file": {"two": idx([3, 4], [0, 2]), "bytes": idx([2], [0, 1], kind=1), "none": idx([], [0])},
    "gguf_vocab": {
        "fallback": bytes([12]) + text(TOKENIZER), "byte-level": bytes([6]) + text(BYTE_LEVEL),
        "settings": bytes([7]) + text(TOKENIZER_CONFIG), "pieces": bytes([255]) + PIECES, "few-pieces": bytes([255]) + PIECES[:40],
    },
    "cut_rules": {"all": RULES, "long-first": LONG_FIRST, "none": b"# nothing\n",
                  "empty": b"z 0 share\nx 1 share\ny 0 share\n"},
    "aws_config": {
        "keys": b"\0[default]\naws_access_key_id = AKIA\naws_secret_access_key = s3/+=\naws_session_token=t\n",
        "region": b"\1[default]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:9000\n",
        "profile": b"\2[default]\n[ p ]\r\naws_access_key_id=a\r\naws_secret_access_key=b\r\n",
        "profile-region": b"\3[profile p]\nregion = x\n",
    },
    "dcp_metadata": {
        "one": dcp({"w": ((4, 2), [((0, 0), (2, 2)), ((2, 0), (2, 2))]), "step": (None, [])},
                   {("w", (0, 0)): ("__0_0.distcp", 0, 16), ("w", (2, 0)): ("__1_0.distcp", 0, 16),
                    ("step", None): ("__0_0.distcp", 16, 8)}),
        "path": dcp({"w": ((2,), [((0,), (2,))])}, {("w", (0,)): ("../f", 0, 8)}),
    },
    "heartbeat": {
        "train": b"".join(beat(s // 2, entered=3 * s, left=3 * s) for s in range(24)),
        "hang": b"".join(beat(2, entered=5, left=4 + i % 2) for i in range(20)),
        "losses": b"".join(beat(s, history=4, loss=2.0 + s) for s in range(4)) +
                  b"".join(struct.pack("<qd", s, 2.0) for s in (4, 1, 2, 3)),
        "nan": beat(1) + beat(1, loss=float("nan")) + beat(2, phase=3), "last-step": beat(2**63 - 1, history=9),
    },
    "scheduler_text": {
        "squeue": SQUEUE, "negative time": SQUEUE.replace(b"1-02:03", b"1--2:03"), "queued": b"salloc: Pending job allocation 17\nsalloc: Granted job allocation 17\n",
        "submitted": b"warning\n18;tp", "identity": b"RUNNING|2026-11-21T16:03:15|/a/batch.sh\n", "dependent": b"17|afterany:12\n19|afterany:17\n", "node": b"idle*",
        "away": b"srun: error: Unable to confirm allocation for job 3: Unable to contact slurm controller\n",
        "srun": b"rank 3: failed\nsrun: error: n2: task 3: Exited with exit code 1\nNode failure on n1\n",
        "mpirun": b"mpirun noticed that process rank 3 with PID 17 on node n1 exited on signal 9 (Killed).\n",
        "traceback": b"Traceback (most recent call last):\n  File \"x.py\", line 1\nValueError: x\n[rank2]: gone\n",
    },
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
