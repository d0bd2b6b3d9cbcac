"""Ranks of a trainer that saves and loads with Hugging Face Accelerate and FSDP, or with the Trainer of transformers.

    accelerate_ranks.py JOBS.json

A job is {"ranks", "version": 1 or 2 of FSDP, "kind": of the state dict, "groups": 1 or 2 of the optimizer, "tied", "load",
"save": folders or null, "trainer": whether it is the Trainer, "out"}. Rank 0 writes OUT: {"saved" or "loaded": the whole
state, "after": the same after another step}, or of the Trainer {"log": losses and rates of the steps, "after"}.

Accelerate chooses FSDP only where there is an accelerator. Its own code for FSDP works on CPUs, so it is told to choose it.
"""
import json
import os
import pathlib
import sys

import forked_ranks
import torch
import torch._dynamo  # noqa: F401 else each rank imports it, for some seconds
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, load_fsdp_model, save_fsdp_model, save_fsdp_optimizer
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

CONFIG = dict(architectures=["LlamaForCausalLM"], vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2)
STEPS, ALL_STEPS = 3, 6
OPTIONS = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-7, weight_decay=0.1)


def model_of(job):
    torch.manual_seed(2 if job["load"] else 1)
    return LlamaForCausalLM(LlamaConfig(**CONFIG, tie_word_embeddings=job["tied"]))


def choose_fsdp(plugin=None):
    begin = AcceleratorState.__init__

    def init(self, *args, **more):
        first = not AcceleratorState._shared_state
        begin(self, *args, **more)
        if first:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = plugin or more["fsdp_plugin"]
    AcceleratorState.__init__ = init


def saved_again(accelerator, model, optimizer, folder):
    """The whole state of FSDP1. On CPUs get_state_dict puts both moments into one buffer, so it is saved, and read by PyTorch."""
    plugin = accelerator.state.fsdp_plugin
    save_fsdp_model(plugin, accelerator, model, folder)
    save_fsdp_optimizer(plugin, accelerator, optimizer, model, folder)
    accelerator.wait_for_everyone()
    if dist.get_rank():
        return None, None
    for name in "pytorch_model_fsdp", "optimizer":
        dcp_to_torch_save("%s/%s_0" % (folder, name), "%s/%s.pt" % (folder, name))
    return (torch.load("%s/%s.pt" % (folder, n), weights_only=False)[k] for n, k in (("pytorch_model_fsdp", "model"), ("optimizer",) * 2))


def whole(accelerator, model, optimizer, folder):
    """{"group/name": tensor, "step": the steps that AdamW has counted, "options": of the parameter groups}; empty but on rank 0."""
    if isinstance(model, FullyShardedDataParallel):
        weights, state = saved_again(accelerator, model, optimizer, folder)
    else:
        weights, state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank():
        return {}
    found = {"param/" + k: x.clone() for k, x in weights.items()}
    for name, entry in state["state"].items():
        found.update(("%s/%s" % (k, name), x.clone()) for k, x in entry.items() if k != "step")
    found["step"] = {float(entry["step"]) for entry in state["state"].values()}
    found["options"] = [{k: v for k, v in g.items() if k != "params"} for g in state["param_groups"]]
    return found


def prepared(job):
    """An accelerator, and the model and the optimizer that it has prepared."""
    model = model_of(job)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=job["version"], state_dict_type=job["kind"], auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"], cpu_ram_efficient_loading=False)
    choose_fsdp(plugin)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    if job["version"] == 1:  # Accelerate's call names a device that has a number, which a CPU does not have
        plugin.set_auto_wrap_policy(model)
        model = FullyShardedDataParallel(model, auto_wrap_policy=plugin.auto_wrap_policy, use_orig_params=True,
                                         device_id=torch.device("cpu"))
    norms = [p for n, p in model.named_parameters() if "norm" in n]
    others = [p for n, p in model.named_parameters() if "norm" not in n]
    groups = [{"params": others}, {"params": norms, "weight_decay": 0.0}] if job["groups"] == 2 else model.parameters()
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(groups, **OPTIONS))


def step(accelerator, model, optimizer, number):
    ids = torch.randint(0, CONFIG["vocab_size"], (2, 16), generator=torch.Generator().manual_seed(100 * number + accelerator.process_index))
    accelerator.backward(model(input_ids=ids, labels=ids).loss)
    optimizer.step()
    optimizer.zero_grad()


def load_fsdp1(accelerator, model, optimizer, folder):
    """As Accelerate loaded it until 1.5. Later versions leave the state of a new optimizer as it is."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
    plugin = accelerator.state.fsdp_plugin
    load_fsdp_model(plugin, accelerator, model, folder)
    with FullyShardedDataParallel.state_dict_type(model, plugin.state_dict_type, plugin.state_dict_config,
                                                  plugin.optim_state_dict_config):
        state = load_sharded_optimizer_state_dict(model_state_dict=model.state_dict(), optimizer_key="optimizer",
                                                  storage_reader=FileSystemReader(folder + "/optimizer_0"))
        state = FullyShardedDataParallel.optim_state_dict_to_load(model=model, optim=optimizer, optim_state_dict=state["optimizer"])
    optimizer.load_state_dict(state)


def accelerator_main(job):
    accelerator, model, optimizer = prepared(job)
    if job["load"] and job["version"] == 1 and job["kind"] == "SHARDED_STATE_DICT":
        load_fsdp1(accelerator, model, optimizer, job["load"])
    elif job["load"]:
        accelerator.load_state(job["load"])
    else:
        for number in range(STEPS):
            step(accelerator, model, optimizer, number)
        accelerator.save_state(job["save"])
    out = {"loaded" if job["load"] else "saved": whole(accelerator, model, optimizer, job["save"] + "-whole")}
    step(accelerator, model, optimizer, STEPS)
    return {**out, "after": whole(accelerator, model, optimizer, job["save"] + "-after")}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.randint(0, CONFIG["vocab_size"], (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


def trainer_main(job):
    choose_fsdp()
    args = TrainingArguments(
        job["save"], max_steps=ALL_STEPS, save_steps=STEPS, logging_steps=1, per_device_train_batch_size=2,
        optim="adamw_torch", learning_rate=OPTIONS["lr"], adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-7, weight_decay=0.1, warmup_steps=1,
        lr_scheduler_type="cosine", report_to=[], use_cpu=True, fsdp="full_shard auto_wrap", disable_tqdm=True,
        fsdp_config={"version": job["version"], "state_dict_type": job["kind"], "cpu_ram_efficient_loading": False,
                     "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]})
    trainer = Trainer(model_of(job), args, train_dataset=Data())
    trainer.train(resume_from_checkpoint=job["load"])
    log = {x["step"]: (x["loss"], x["learning_rate"]) for x in trainer.state.log_history if "loss" in x}
    return {"log": log, "after": whole(trainer.accelerator, trainer.model_wrapped, trainer.optimizer, None)}


def rank_main(job, rank, world, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    out = (trainer_main if job["trainer"] else accelerator_main)(job)
    if rank == 0:
        torch.save(out, job["out"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["ranks"])
