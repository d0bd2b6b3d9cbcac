"""FusedAdam as Transformer Engine 2 and Apex have it: what it expects of a state that it loads, and AdamW in fp32 on CPUs.

Unlike torch.optim.AdamW it counts the steps of a group, reads whether a group's moments are corrected from the group, which a load
replaces, and takes nothing but the moments as the state of a tensor."""
import torch


class FusedAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, adam_w_mode=True, capturable=False):
        assert adam_w_mode and not capturable
        super().__init__(params, dict(lr=lr, bias_correction=True, betas=betas, eps=eps, weight_decay=weight_decay))

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for state in state_dict["state"].values():
            unknown = set(state) - {"exp_avg", "exp_avg_sq"}
            if unknown:  # Transformer Engine looks up the type that it keeps a state in
                raise KeyError(min(unknown))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group["step"] + 1 if "step" in group else 1
            for p in group["params"]:
                state = self.state[p]
                if not state:  # also of what has no gradient, as an empty shard of Megatron-FSDP
                    state.update(exp_avg=torch.zeros_like(p, dtype=torch.float32), exp_avg_sq=torch.zeros_like(p, dtype=torch.float32))
                if p.grad is not None:
                    self._update(p, group)

    def _update(self, p, group):
        state, (beta1, beta2), step = self.state[p], group["betas"], group["step"]
        grad = p.grad.float()
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        first, second = (1 - beta1 ** step, 1 - beta2 ** step) if group["bias_correction"] else (1, 1)
        change = state["exp_avg"] / first / ((state["exp_avg_sq"] / second).sqrt() + group["eps"])
        p.sub_(group["lr"] * (change + group["weight_decay"] * p))
