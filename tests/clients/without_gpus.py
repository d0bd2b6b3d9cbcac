"""Megatron-core on CPUs: it asks for its tensors on a GPU, and for a GPU's random numbers."""
import contextlib

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """What is asked for on a GPU stays on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(args[0]).replace("torch.", "torch.cuda.")
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def begin():
    """From now on in this process, in which Megatron-core was imported."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    torch.cuda.current_device = lambda: torch.device("cpu")
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *args: None)
    CudaRNGStatesTracker.fork = lambda self, *args: contextlib.nullcontext()
    OnCpu().__enter__()
