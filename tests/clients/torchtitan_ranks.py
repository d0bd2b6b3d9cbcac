"""Ranks of torchtitan, of the version that is imported: its models, optimizer and checkpoint manager, with FSDP2 on CPUs.

    torchtitan_ranks.py JOBS.json

A job is {"ranks", "config", "load", "all", "save", "out", "axis", "tp", "ep"}: the config.json of a Llama, Qwen3 or Qwen3-MoE, a
folder that is loaded or null, whether its schedule and counters are too, where `step-N` is saved, and by which axis FSDP cuts
experts. With tp or ep above 1 torchtitan 0.3 itself cuts a Qwen3-MoE, and gradients are made up, because gloo cannot exchange
tokens. Rank 0 writes OUT: {"loaded": {"state": {key: whole tensor or object}, "hf": {"group/Hugging Face's name": tensor}},
"logits": of TOKENS, "saved": as "loaded", after a step, "step", "last_epoch": that were loaded, "losses"}. Hugging Face's tensors
are those of torchtitan's own adapter.
"""
import importlib.machinery
import importlib.metadata
import json
import pathlib
import sys
from unittest import mock

for name in ("torch.utils.tensorboard", "datasets", "datasets.distributed", "wandb"):  # which are not needed
    sys.modules.setdefault(name, mock.MagicMock()).__spec__ = importlib.machinery.ModuleSpec(name, None)

import forked_ranks  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: F401,E402 else each rank imports it, for some seconds
import torch._utils  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

torch._utils._get_available_device_type = lambda: "cpu"  # of torchtitan's meshes

TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 250
OLD = importlib.metadata.version("torchtitan") < "0.3"
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=False, foreach=True)
GROUPS = ("exp_avg", "exp_avg_sq")

if OLD:
    # torch has this for no integers on CPUs
    torch.histc = lambda x, bins, min, max: torch.bincount(x.flatten(), minlength=bins)
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.lr_scheduler import LRSchedulersContainer
    from torchtitan.components.optimizer import OptimizersContainer
    from torchtitan.config.job_config import Checkpoint
    from torchtitan.models import llama3, qwen3
    from torchtitan.models.moe import MoEArgs
else:
    from torchtitan.components.checkpointer.dcp import CheckpointManager
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.models import llama3, qwen3
    from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear
    from torchtitan.models.common.attention import FusedQKVLinear, ScaledDotProductAttention
    from torchtitan.models.common.nn_modules import RMSNorm
    from torchtitan.models.llama3.model import Llama3Model
    from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
    from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter


def old_model(c, sizes):
    """A model of torchtitan 0.2, and its adapter."""
    kind = c["model_type"]
    if kind == "llama":  # its MLP has 2/3 of 4 x dim features, rounded up
        args = llama3.TransformerModelArgs(multiple_of=c["intermediate_size"], norm_eps=c["rms_norm_eps"], rope_theta=c["rope_theta"],
                                           max_seq_len=64, **sizes)
        args.rope_scaling_args.scaling_factor = args.rope_scaling_args.low_freq_factor = 1.0  # nothing is scaled
        args.rope_scaling_args.high_freq_factor = 1.0
        args.rope_scaling_args.original_max_position_embeddings = 1 << 40
        return llama3.Transformer(args), llama3.Llama3StateDictAdapter(args, None)
    args = qwen3.Qwen3ModelArgs(head_dim=c["head_dim"], hidden_dim=c["intermediate_size"], norm_eps=c["rms_norm_eps"], max_seq_len=64,
                                rope_theta=c["rope_theta"], qk_norm=True, enable_weight_tying=c["tie_word_embeddings"], **sizes)
    if kind == "qwen3_moe":
        args.moe_enabled, args.moe_inter_dim = True, c["moe_intermediate_size"]
        args.moe_args = MoEArgs(num_experts=c["num_experts"], num_shared_experts=0, top_k=c["num_experts_per_tok"],
                                score_func="softmax", route_norm=True, score_before_experts=False, use_grouped_mm=False)
    return qwen3.Qwen3Model(args), qwen3.Qwen3StateDictAdapter(args, None)


def new_model(c, sizes, ep):
    """A model of torchtitan 0.3, and its adapter. Query, key and value are one parameter, as is its default. ep: 0: it is cut by FSDP
    alone."""
    kind, dim, vocab, hd = c["model_type"], sizes["dim"], sizes["vocab_size"], c["head_dim"]
    heads = dict(n_layers=sizes["n_layers"], dim=dim, n_heads=sizes["n_heads"], n_kv_heads=sizes["n_kv_heads"], attn_backend="flex")
    module = llama3 if kind == "llama" else qwen3
    rope = (ComplexRoPE if kind == "llama" else CosSinRoPE).Config(dim=hd, max_seq_len=64, theta=c["rope_theta"])
    if kind == "llama":
        layers = llama3._build_llama3_layers(hidden_dim=c["intermediate_size"], rope=rope, **heads)
    elif kind == "qwen3":
        layers = qwen3._build_qwen3_layers(hidden_dim=c["intermediate_size"], head_dim=hd, rope=rope, **heads)
    else:
        layers = qwen3._build_qwen3_moe_layers(moe_hidden_dim=c["moe_intermediate_size"], num_experts=c["num_experts"], head_dim=hd,
                                               top_k=c["num_experts_per_tok"], moe_comm_backend="standard", rope=rope, **heads)
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # flex attention wants a compiler
        for norm in (layer.attention_norm, layer.ffn_norm):
            norm.eps = c["rms_norm_eps"]
    config = (Llama3Model if kind == "llama" else qwen3.Qwen3Model).Config(
        dim=dim, vocab_size=vocab, layers=layers, enable_weight_tying=c["tie_word_embeddings"],
        norm=RMSNorm.Config(normalized_shape=dim, eps=c["rms_norm_eps"], param_init=module._NORM_INIT),
        tok_embeddings=Embedding.Config(num_embeddings=vocab, embedding_dim=dim, param_init=module._EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=dim, out_features=vocab, param_init=qwen3._LINEAR_INIT))
    if ep:
        set_qwen3_sharding_config(config, enable_sp=True, enable_ep=ep > 1)
    adapter = Llama3StateDictAdapter if kind == "llama" else Qwen3StateDictAdapter
    return config.build(), adapter(config, None)


def make(c, ep):
    sizes = dict(dim=c["hidden_size"], n_layers=c["num_hidden_layers"], n_heads=c["num_attention_heads"],
                 n_kv_heads=c["num_key_value_heads"], vocab_size=c["vocab_size"])
    model, adapter = old_model(c, sizes) if OLD else new_model(c, sizes, ep)
    with torch.no_grad():
        model.init_weights() if OLD else model.init_states()
        for name, b in model.named_buffers():
            if "expert_bias" in name:
                b.copy_(torch.linspace(-1e-3, 1e-3, len(b)))
    return model, adapter


def shard(model, job, world):
    """FSDP as torchtitan does it, which cuts experts by their rows where there are more ranks than experts; or all of torchtitan's."""
    axis, tp, ep = job["axis"], job["tp"], job["ep"]
    if tp > 1:
        plan = ParallelismConfig(data_parallel_shard_degree=world // tp, tensor_parallel_degree=tp, expert_parallel_degree=ep,
                                 spmd_backend="partial_dtensor")
        dims = ParallelDims.from_config(plan, world)
        dims.build_mesh()
        qwen3.parallelize_qwen3(model, parallel_dims=dims, training=TrainingConfig(), parallelism=plan, compile_config=CompileConfig(),
                                ac_config=None, dump_folder="")
        return
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, shard_placement_fn=lambda p: Shard(axis if p.ndim == 3 else 0))
    fully_shard(model, mesh=mesh)


class Counters:
    """torchtitan's train_state, and a loader of data."""

    def __init__(self, **values):
        self.values = values

    def state_dict(self):
        return {k: torch.tensor(v) for k, v in self.values.items()} if OLD else dict(self.values)

    def load_state_dict(self, state):
        self.values = {k: int(v) for k, v in state.items()}


def manage(model, optimizers, schedule, counters, job, folder):
    config = dict(enable=True, folder=str(folder), interval=1, keep_latest_k=0, last_save_model_only=False,
                  initial_load_path=job["load"], initial_load_model_only=False,
                  exclude_from_loading=[] if job["all"] else ["lr_scheduler", "dataloader", "train_state"])
    parts = dict(dataloader=Counters(world_size=3), model_parts=[model], optimizers=optimizers, lr_schedulers=schedule,
                 states={"train_state": counters}, sd_adapter=None)
    return CheckpointManager(checkpoint_config=Checkpoint(**config), **parts) if OLD else CheckpointManager(
        CheckpointManager.Config(**config), **parts)


def whole(state):
    return {k: x.full_tensor().clone() if isinstance(x, DTensor) else x.detach().clone() if torch.is_tensor(x) else x
            for k, x in state.items()}


def apart(model, state):
    """The state of query, key and value, by torchtitan's rule for weights."""
    for name, module in model.named_modules():
        if not OLD and isinstance(module, FusedQKVLinear):
            FusedQKVLinear._split_qkv_on_save(module, state, name + ".", {})
    return state


def report(model, adapter, optimizers):
    weights, state = whole(model.state_dict()), whole(optimizers.state_dict())
    found = {"param/" + k: x for k, x in adapter.to_hf(dict(weights)).items()}
    for group in GROUPS:
        moments = {k[len("state."):-len(group) - 1]: x for k, x in state.items() if k.startswith("state.") and k.endswith("." + group)}
        found.update(("%s/%s" % (group, k), x) for k, x in adapter.to_hf(apart(model, moments)).items())
    return {"state": {**weights, **{"optimizer." + k: x for k, x in state.items()}}, "hf": found}


def logits_of(model):
    return model(TOKENS) if OLD else model(TOKENS, torch.arange(TOKENS.shape[1]).repeat(len(TOKENS), 1))


def step(model, optimizers, made_up):
    if made_up:
        for p in model.parameters():
            p.grad = p.detach() * 0.3 + 0.01
        optimizers.step()
        return 0
    logits = logits_of(model)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
    loss.backward()
    optimizers.step()
    optimizers.zero_grad()
    return float(loss)


def rank_main(job, rank, world, port):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=world)
    torch.manual_seed(1)
    made_up = job["tp"] > 1
    model, adapter = make(job["config"], job["ep"] if made_up else 0)
    shard(model, job, world)
    optimizers = OptimizersContainer([model], torch.optim.AdamW, ADAMW) if OLD else default_adamw(**{
        k: v for k, v in ADAMW.items() if k not in ("fused", "foreach")}, fused=False, foreach=True).build(model_parts=[model])
    schedule = LRSchedulersContainer(optimizers, lambda n: 1.0 / (1 + n))
    counters, out = Counters(step=0, ntokens_seen=0), {"losses": []}
    if not job["load"]:
        out["losses"].append(step(model, optimizers, made_up))
        schedule.step()
        counters.values = {"step": 1, "ntokens_seen": 32}
    manager = manage(model, optimizers, schedule, counters, job, job["save"])
    if job["load"]:
        assert manager.load()
    out["loaded"] = report(model, adapter, optimizers)
    out["step"], out["last_epoch"] = counters.values["step"], schedule.schedulers[0].last_epoch
    with torch.no_grad():
        out["logits"] = None if made_up else logits_of(model).float()
    out["losses"].append(step(model, optimizers, made_up))
    schedule.step()
    counters.values = {k: v + 1 for k, v in counters.values.items()}
    out["saved"] = report(model, adapter, optimizers)
    manager.save(1, last_step=True)
    out["losses"].append(step(model, optimizers, made_up))
    if rank == 0:
        torch.save(out, job["out"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["ranks"])
