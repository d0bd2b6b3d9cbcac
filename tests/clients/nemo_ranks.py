"""Ranks of a version of Megatron-core before 0.15 on CPUs: load torch_dist, as megatron_core_ranks.py, and save what NeMo 2 saves.

    nemo_ranks.py JOBS.json

A job has also {"form"}: fully_sharded_model_space, NeMo's default, or dp_zero_gather_scatter (ckpt_parallel_save_optim=False). SAVE
gets weights/ and context/model.yaml. NeMo itself is not installed: the calls are those of MegatronStrategy.save_checkpoint and of
MegatronCheckpointIO.save_checkpoint in NeMo 2.4, and the dict around the tensors that of Lightning's dump_checkpoint.
"""
import dataclasses
import inspect
import json
import pathlib
import sys

import forked_ranks
import megatron_core_ranks as ranks
import torch.distributed as dist
import yaml
from megatron.core import dist_checkpointing, parallel_state

MODEL = "nemo.collections.llm.gpt.model."


def of_optimizer(optimizer, weights, form):
    more = {"metadata": {"distrib_optim_sharding_type": form}}
    if "sharding_type" in inspect.signature(ranks.chained_of(optimizer)[0].sharded_state_dict).parameters:  # before 0.13
        more = {"sharding_type": form}
    weights = {k: v for k, v in weights.items() if not k.endswith("_extra_state")}
    return optimizer.sharded_state_dict(weights, is_loading=False, **more)


def save(job, step, model, optimizer):
    folder = pathlib.Path(job["save"])
    weights = model.sharded_state_dict(prefix="module.")
    checkpoint = {
        "epoch": 0, "global_step": step, "pytorch-lightning_version": "2.4.0", "state_dict": {}, "optimizer_states": {},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}}}, "lr_schedulers": [{"last_epoch": step}],
        "callbacks": {"ModelCheckpoint": {"best_model_path": "", "current_score": None}}, "hparams_name": None,
        "sharded_state_dict": weights, "optimizer": [of_optimizer(optimizer, weights, job["form"])]}
    if dist.get_rank() == 0:
        (folder / "weights").mkdir(parents=True)
        (folder / "context").mkdir()
        (folder / "context/model.yaml").write_text(model_yaml(job, model.config))
    dist.barrier()
    more = {"content_metadata": {"distrib_optim_sharding_type": job["form"]}}
    if "content_metadata" not in inspect.signature(dist_checkpointing.save).parameters:
        more = {}
    dist_checkpointing.save(checkpoint, str(folder / "weights"), **more)


def model_yaml(job, config):
    """io_dump's: fields of the config with their defaults, before it has computed some from others; the sizes of the job are those of
    the strategy, and the vocabulary is the tokenizer's."""
    c, experts = job["config"], "num_local_experts" in job["config"]
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    fields = {k: v for k, v in fields.items() if v is None or isinstance(v, (bool, int, float, str))}
    fields.update({
        "_target_": MODEL + ("mixtral.MixtralConfig" if experts else "llama.LlamaConfig"), "kv_channels": None, "vocab_size": None,
        "activation_func": {"_target_": "torch.nn.functional.silu", "_call_": False}, "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1, "share_embeddings_and_output_weights": c["tie_word_embeddings"], "rotary_percent": 1.0,
        "position_embedding_type": "rope", "rotary_base": int(c.get("rope_theta", 10000)), "seq_length": c["max_position_embeddings"],
        "make_vocab_size_divisible_by": 128, "seq_len_interpolation_factor": None})
    return yaml.safe_dump({"_target_": MODEL + "llama.LlamaModel", "config": fields, "optim": None,
                           "tokenizer": {"_target_": "nemo.collections.common.tokenizers.AutoTokenizer"}})


def rank_main(job, rank, world, port):
    ranks.adapt()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(job["tp"], job["pp"], expert_model_parallel_size=job["ep"])
    common, model, optimizer = ranks.load(job)
    save(job, common["iteration"], model, optimizer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["tp"] * each["pp"] * each["dp"])
