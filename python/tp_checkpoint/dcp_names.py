"""The names of torch.distributed.checkpoint, and those of the format.

A state dict of a training program, {"model": .., "optim": .., ..}, is flattened by torch: a tensor is known by
its path of keys, and by the keys joined with dots (its FQN). In the format a tensor has a group and a name:

    ("model", "model.norm.weight")                        param     model.norm.weight
    ("model.norm.weight",)                                param     model.norm.weight
    ("optim", "state", "model.norm.weight", "exp_avg")    exp_avg   model.norm.weight
    ("ema", "model.norm.weight")                          ema       model.norm.weight
    what is not a tensor, such as ("optim", "param_groups")  pickle    optim.param_groups
"""
MODEL_KEYS = ("model", "module", "model_state_dict", "state_dict")
OPTIMIZER_KEYS = ("optim", "optimizer", "optim_state_dict", "optimizer_state_dict")
WRAPPERS = ("app", "state", "train_state")  # of a Stateful object that has both
PICKLE = "pickle"
STEP = "step"
NOT_OF_OPTIMIZER = ("param", "master", PICKLE)
OPTIMIZER_STEPS = "optimizer_steps"  # in train.options: steps of the optimizer that are not those of the run


def _unwrap(path):
    if len(path) > 1 and path[0] in WRAPPERS and path[1] in MODEL_KEYS + OPTIMIZER_KEYS:
        return path[1:]
    return path


def name_of(path):
    """(group, name) of a tensor with this path of keys."""
    path = _unwrap(tuple(map(str, path)))
    if len(path) == 1:
        return "param", path[0]
    rest = ".".join(path[1:])
    if path[0] in MODEL_KEYS:
        return "param", rest
    if path[0] in OPTIMIZER_KEYS and rest.startswith("state.") and rest.count(".") > 1:
        name, _, key = rest[len("state."):].rpartition(".")
        return key, name
    return path[0], rest


def pickle_name(path):
    """(group, name) of something that is not a tensor."""
    return PICKLE, ".".join(_unwrap(tuple(map(str, path))))


def candidates(fqn):
    """[(group, name)] that an FQN may mean, the likeliest first."""
    found = [("param", fqn)]
    keys = fqn.split(".")
    if keys[0] in WRAPPERS and keys[1:] and keys[1] in MODEL_KEYS + OPTIMIZER_KEYS:
        keys = keys[1:]
    rest = ".".join(keys[1:])
    if keys[0] in MODEL_KEYS:
        found.append(("param", rest))
    elif keys[0] in OPTIMIZER_KEYS and keys[1:2] == ["state"] and len(keys) > 3:
        found.append((keys[-1], ".".join(keys[2:-1])))
    for n in range(1, len(keys)):  # a key of the user may have dots
        found.append((".".join(keys[:n]), ".".join(keys[n:])))
    return found + [(PICKLE, ".".join(keys))]
