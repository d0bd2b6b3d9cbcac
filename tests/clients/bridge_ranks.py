"""Ranks of Megatron-Bridge on CPUs: its load_checkpoint and save_checkpoint, with the models and optimizers of megatron_ranks.py.

    bridge_ranks.py JOBS.json

A job is {"tp", "pp", "dp", "ep", "load", "pretrained", "save", "forms", "override", "out", "config"}: the config.json is that of a
Llama or a Mixtral, the optimizer is the distributed one, AdamW is FusedAdam, and ep is part of dp. Bridge loads the folder LOAD
(checkpoint.load; pretrained: checkpoint.pretrained_checkpoint, which takes weights alone). With SAVE the ranks then make a step, and
Bridge saves to SAVE-FORM for each form: dp_reshardable, its default, or fully_reshardable. override: whether the schedule of the
learning rate is the program's. Rank R of tp, ep and pp writes OUT/R.pt as megatron_ranks.py, with {"train": numbers of TrainState,
"schedule": state of the schedule} after loading, and both "saved".

Of megatron-bridge checkpointing, its configs and the provider of GPT models run. Packages that it imports and that need a GPU or a
network are empty modules.
"""
import dataclasses
import importlib.abc
import importlib.machinery
import json
import pathlib
import sys
import types
import typing

import megatron
import megatron_ranks as ranks  # Megatron-core itself has no empty modules

EMPTY = ("modelopt", "nvidia_resiliency_ext", "wandb", "mlflow", "omegaconf", "tensorboard", "flash_attn", "torch.utils.tensorboard",
         "megatron.bridge.training.tokenizers", "megatron.bridge.data", "megatron.bridge.models.mamba",
         "megatron.bridge.models.conversion")
OPEN = ("megatron.bridge", "megatron.bridge.models")  # whose modules are real, and whose __init__ would import all of them


class Names(types.ModuleType):
    """A module in which every name is a class."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in OPEN or any(name == x or name.startswith(x + ".") for x in EMPTY):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = Names(spec.name)
        module.__path__ = [p + "/" + "/".join(spec.name.split(".")[1:]) for p in megatron.__path__] if spec.name in OPEN else []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
vars(typing).setdefault("override", lambda method: method)  # of Python 3.12, which Bridge 0.4 asks for

import forked_ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.models.gpt_provider import GPTModelProvider, local_layer_spec  # noqa: E402
from megatron.bridge.training import checkpointing, config  # noqa: E402
from megatron.bridge.training.state import FaultToleranceState, TrainState  # noqa: E402
from megatron.bridge.training.utils.config_utils import _ConfigContainerBase  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine  # noqa: E402

SAMPLES = 128  # of a step
MODEL_ID = "tests/a-model"


@dataclasses.dataclass(kw_only=True)
class Config(_ConfigContainerBase):
    """The parts of ConfigContainer that checkpoints depend on."""

    model: GPTModelProvider
    checkpoint: config.CheckpointConfig
    ddp: config.DistributedDataParallelConfig
    optimizer: config.OptimizerConfig
    rng: config.RNGConfig = dataclasses.field(default_factory=config.RNGConfig)
    logger: config.LoggerConfig = dataclasses.field(default_factory=config.LoggerConfig)
    tokenizer: object = None
    dataset: object = None
    peft: object = None
    dist: object = None
    ft: object = None


def without_gpus():
    ranks.adapt()
    torch.cuda.get_rng_state = torch.get_rng_state
    torch.cuda.set_rng_state = lambda state: None
    checkpointing.update_num_microbatches = lambda **_: None
    for name in ("save_sharded_modelopt_state", "restore_modelopt_state", "save_modelopt_state"):
        setattr(checkpointing, name, lambda *_: None)
    get_rerun_state_machine().mode = RerunMode.REPORT_DETERMINISM_STATS


def make_model(job):
    """(models, optimizer, Bridge's config of the model)"""
    c, made = job["config"], []

    def provider(**fields):
        made.append(GPTModelProvider(
            **fields, vocab_size=c["vocab_size"], should_pad_vocab=True, seq_length=c["max_position_embeddings"],
            share_embeddings_and_output_weights=c["tie_word_embeddings"], position_embedding_type="rope",
            rotary_base=int(c.get("rope_theta", 10000)), transformer_layer_spec=local_layer_spec, hf_model_id=MODEL_ID))
        made[-1].finalize()
        return made[-1]

    ranks.TransformerConfig = provider
    unit = 128 * job["tp"]
    models, optimizer = ranks.make_model(job, types.SimpleNamespace(padded_vocab_size=-(-c["vocab_size"] // unit) * unit))
    return models, optimizer, made[-1]


def make_state(job, model):
    """Bridge's GlobalState, as far as checkpoints need it."""
    cfg = Config(
        model=model, checkpoint=config.CheckpointConfig(
            save_tokenizer_assets=False, **{"pretrained_checkpoint" if job["pretrained"] else "load": job["load"]}),
        ddp=config.DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
        optimizer=config.OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=True))
    return types.SimpleNamespace(cfg=cfg, train_state=TrainState(), rank_monitor_client=None, wandb_logger=None, mlflow_logger=None,
                                 comet_logger=None, fault_tolerance_state=FaultToleranceState())


def make_schedule(job, optimizer):
    return OptimizerParamScheduler(
        optimizer, init_lr=1e-4, max_lr=1e-3, min_lr=1e-4, lr_warmup_steps=SAMPLES, lr_decay_steps=100 * SAMPLES,
        lr_decay_style="cosine", start_wd=0.1, end_wd=0.1, wd_incr_steps=100, wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False, override_opt_param_scheduler=job["override"])


def save(job, state, models, optimizer, schedule, form):
    checkpoint = state.cfg.checkpoint
    checkpoint.save = job["save"] + "-" + form
    checkpoint.dist_ckpt_optim_fully_reshardable = form == "fully_reshardable"
    checkpointing.save_checkpoint(state, models, optimizer, schedule, 1e15)


def rank_main(job, rank, world, port):
    job = {**job, "format": "torch_dist", "vpp": 1, "distributed": True, "grouped": False, "block": 0, "fused": True}
    without_gpus()
    ranks.use_fused_adam()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(job["tp"], job["pp"], expert_model_parallel_size=job["ep"])
    models, optimizer, model = make_model(job)
    state, schedule = make_state(job, model), make_schedule(job, optimizer)
    checkpointing.load_checkpoint(state, models, optimizer, schedule)
    out = {"loaded": ranks.state_of(job, models, optimizer), "train": dataclasses.asdict(state.train_state),
           "schedule": schedule.state_dict()}
    if job["save"]:
        ranks.step(job, models, optimizer)
        schedule.step(increment=SAMPLES)
        out["saved"] = ranks.state_of(job, models, optimizer)
        state.train_state.step += 1
        state.train_state.consumed_train_samples = state.train_state.step * SAMPLES
        for form in job["forms"]:
            save(job, state, models, optimizer, schedule, form)
        out["train saved"], out["schedule saved"] = dataclasses.asdict(state.train_state), schedule.state_dict()
    if parallel_state.get_expert_data_parallel_rank() == 0:
        stage = parallel_state.get_pipeline_model_parallel_rank() * job["ep"] + parallel_state.get_expert_model_parallel_rank()
        number = stage * job["tp"] + parallel_state.get_tensor_model_parallel_rank()
        torch.save(out, pathlib.Path(job["out"]) / ("%d.pt" % number))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        forked_ranks.run(rank_main, each, each["tp"] * each["pp"] * each["dp"])
