"""What ranks of DeepSpeed on CPUs have in common: how they start, and what an engine holds of a parameter."""
import os
import sys

os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", LOCAL_RANK="0")
import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: E402, F401 else each rank imports it, for many seconds
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402

# Its communication through shared memory would be compiled for minutes; gloo does without.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def start(rank, world, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)


def step_of(engine):
    (at,) = {float(s["step"]) for s in engine.optimizer.optimizer.state.values() if "step" in s}
    return at


def state_of(p):
    """{"master", "exp_avg", "exp_avg_sq"} of a parameter, whole tensors as DeepSpeed's own functions gather them."""
    groups = {"master": safe_get_full_fp32_param(p)}
    groups.update((k, safe_get_full_optimizer_state(p, k)) for k in ("exp_avg", "exp_avg_sq"))
    return {k: x.detach().clone() for k, x in groups.items()}
