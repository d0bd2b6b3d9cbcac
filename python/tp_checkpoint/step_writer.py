"""Writing whole checkpoints: what a save needs besides tensors, and save() for arrays of numpy."""
import collections.abc
import dataclasses
import json
import math
import operator
import os
import re
import warnings

import numpy as np

from .checkpoint import BITS, Tensor
from .cuts import LAST, RuledCuts, check_fits, cuts_of
from .errors import CheckpointError, UnsupportedError
from .manifest import Manifest, TensorInfo, check_sizes, is_name, rule
from .roots import local_path, step_number
from .shard_file import ShardFile, stored_boxes
from .transaction import Transaction

GROUPS = ("param", "master", "exp_avg", "exp_avg_sq")
_DTYPES = {np.dtype(bits): dtype for dtype, bits in BITS.items() if dtype != "bf16"}
_ZERO_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # its escape, not an escaped backslash before u0000


@dataclasses.dataclass
class Model:
    """What is known of the model. config: its config.json, as a dict or text, or an object with to_dict() as in
    transformers; rules: a text as of `tp-ckpt import --rules`, for architectures that are not in docs/MODELS.md."""
    config: object = None
    rules: str = None

    def __post_init__(self):
        """CheckpointError: the config is not a JSON object, or the rules are not a text."""
        if not isinstance(self.rules, (str, type(None))):
            raise CheckpointError(f"rules is {self.rules!r:.60}, expected a text, such as the content of a file of rules")
        c = self.config
        if c is None:
            return
        try:
            if not isinstance(c, str):
                c = json.dumps(c.to_dict() if hasattr(c, "to_dict") else c, indent=2, default=_scalar)
            found = _strict(c)
        except (TypeError, ValueError, RecursionError) as e:
            found = e
        if not isinstance(found, dict):
            why = f": {found}" if isinstance(found, Exception) else ""
            raise CheckpointError(f"config is {self.config!r:.60}, expected the content of a config.json: a dict, its text, or "
                                  f"the config of a model of transformers{why}")
        self.config = c

    def text(self):
        return self.config

    def as_dict(self):
        return None if self.config is None else json.loads(self.config)


def _cut_of(cuts, name, shape, of_param):
    """The rule of a tensor: that of the parameter of its name, if it has its shape; otherwise it is not cut."""
    if shape != of_param:  # such as a step of each parameter, or the row sums of Adafactor
        return rule()
    cut = cuts.rule(name)
    try:
        check_fits(name, shape, cut)
    except UnsupportedError as e:
        if isinstance(cuts, RuledCuts):
            raise
        warnings.warn(f"{e}; it is saved as a tensor that tensor parallelism does not cut", stacklevel=3)
        return rule()
    return cut


def list_tensors(found, model):
    """The tensors of a manifest, with their cuts: found is [(group, name, dtype, shape)] in the order of the model."""
    for group, name, _, _ in found:
        if not (is_name(group) and is_name(name) and group != "index"):
            raise UnsupportedError(f"{group!r}, {name!r:.60}: no tensor can have these names: UTF-8 of 1 to 1024 bytes, without "
                                   "control characters, / and @; and no group is named index")
    params = {name: tuple(shape) for group, name, _, shape in found if group == "param"}
    cuts, tensors = cuts_of(model.as_dict(), model.rules, list(params)), []
    for group, name, dtype, shape in found:
        if len(shape) > 6:
            raise UnsupportedError(f"{group}/{name}: has {len(shape)} axes; the format has at most 6: reshape it")
        if name in params:
            cut, layer = _cut_of(cuts, name, tuple(shape), params[name]), cuts.layer(name)
        else:
            cut, layer = rule(), LAST
        tensors.append(TensorInfo(0, group, name, dtype, tuple(shape), layer, cut))
    order = {g: i for i, g in enumerate(GROUPS)}
    tensors.sort(key=lambda t: (order.get(t.group, len(order)), t.group if t.group not in order else "",
                                t.layer if t.layer != LAST else 1 << 30))
    return [dataclasses.replace(t, id=i) for i, t in enumerate(tensors)]


def _scalar(value):
    """A number of numpy or torch, as one of Python, for json."""
    if getattr(value, "size", None) == 1 or getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def _whole(text):
    """A whole number in JSON. The programs read 64 bits."""
    if not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f"{text} has more than 64 bits")
    return int(text)


def _finite(text):
    """A number in JSON. The programs read neither NaN nor infinities, nor what becomes one (1e999)."""
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is no value of JSON: write null or a text instead")
    return float(text)


def _unique(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a member twice")
    return found


def _strict(text):
    """The value of a text of JSON. ValueError: it has what the programs do not read."""
    found = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_unique)
    plain = json.dumps(found, ensure_ascii=False)
    plain.encode()  # a lone surrogate is no text of UTF-8
    if _ZERO_BYTE.search(plain):
        raise ValueError("a text has a zero byte")
    return found


def _checked_options(options):
    try:
        found = _strict(json.dumps(options, default=_scalar))
    except (TypeError, ValueError, RecursionError) as e:
        raise CheckpointError(f"train: 'options' cannot be stored as JSON: {e}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"train: 'options' is {options!r:.60}, expected a dict")
    return found


def checked_train(train, step):
    """The members of `train` as the manifest has them, so that a save finds mistakes before it writes anything.
    CheckpointError: a value that the programs could not read again."""
    if not isinstance(train, (dict, type(None))):
        raise CheckpointError(f"train is {train!r:.60}, expected a dict")
    most = {"next_sample": (1 << 62), "tokens": (1 << 62), "optimizer_start": step, "seed": (1 << 64) - 1}
    found = {}
    for key, value in (train or {}).items():
        if key == "options":
            found[key] = _checked_options(value)
            continue
        if key not in most:
            raise UnsupportedError(f"train: has no member '{key}'")
        try:
            number = int(value) if isinstance(value, str) else operator.index(value)
        except (TypeError, ValueError):
            number = -1
        if not 0 <= number <= most[key]:
            raise CheckpointError(f"train: '{key}' is {value!r:.60}, expected a whole number from 0 to {most[key]}")
        found[key] = str(number) if key == "seed" else number
    return found


def make_manifest(tensors, ranks, step, model, train):
    """A manifest without shards. The layout says that data-parallel ranks wrote their parts (FSDP)."""
    layers = max([t.layer for t in tensors], default=-1) + 1
    low = any(t.group == "param" and t.dtype == "bf16" for t in tensors)
    state = {"step": step, "next_sample": 0, "tokens": 0, "seed": "0", "dtype": "bf16" if low else "fp32", "options": {},
             **checked_train(train, step)}
    made = Manifest(step=step, spec="tp1" if ranks == 1 else f"tp1dp{ranks}zero3", ranks=ranks,
                    stage_of=[0] * layers, train=state, tensors=tensors, shards=[], model_config=model.text())
    check_sizes(made)
    return made


def _values(group, name, value):
    """An array of numpy. Tensors of a checkpoint keep their dtype."""
    try:
        return value.bits() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as e:  # of torch, for what numpy does not have
        raise CheckpointError(f"{group}/{name}: is no array of numpy, and cannot be made one (for tensors of torch there is "
                              f"tp_checkpoint.dcp.save): {e}") from None


def _keyed(arrays):
    """{(group, name): array of numpy} of the arrays of save()."""
    if not isinstance(arrays, collections.abc.Mapping):
        raise CheckpointError(f"arrays is {arrays!r:.60}, expected a dict of names and arrays")
    keyed = {}
    for key, value in arrays.items():
        pair = key if isinstance(key, tuple) else ("param", key)
        if len(pair) != 2:
            raise CheckpointError(f"{key!r:.60} is no key of an array, expected a name, or a group and a name")
        if pair in keyed:
            raise CheckpointError(f"param/{pair[1]}: is in the arrays twice, as {pair[1]!r:.60} and as {pair!r:.80}")
        keyed[pair] = _values(*pair, value)
    return keyed


def save(root, step, arrays, config=None, rules=None, train=None, force=False):
    """Write a step with these arrays of numpy, and make it appear: all of it or nothing.

    arrays: {name: array} of parameters, or {(group, name): array}. bf16 are arrays of uint16, the bits.
    Tensors of another checkpoint keep their dtype.
    config, rules: as of Model. train: {"next_sample": .., "tokens": .., "seed": .., "options": {..}}.
    Returns the folder of the step.
    """
    model, step, keyed, found = Model(config, rules), step_number(step), _keyed(arrays), []
    for (group, name), values in keyed.items():
        dtype = "bf16" if values.dtype == np.uint16 else _DTYPES.get(values.dtype)
        if dtype is None:
            raise UnsupportedError(f"{group}/{name}: has the dtype {values.dtype}; the format has "
                                   f"{', '.join(BITS)} (bf16 as its bits, uint16)")
        found.append((group, name, dtype, values.shape))
    contents = make_manifest(list_tensors(found, model), 1, step, model, train)
    transaction = Transaction(root, step, force)
    try:
        whole = [(t, (0,) * len(t.shape), t.shape) for t in contents.tensors if 0 not in t.shape]
        boxes = stored_boxes(whole)
        if boxes:
            shard = ShardFile(transaction.path, 0, contents.spec, boxes)
            try:
                for i, box in enumerate(boxes):
                    values = keyed[box.tensor.group, box.tensor.name]
                    shard.write(i, values[tuple(slice(a, a + n) for a, n in zip(box.lo, box.lens))])
                contents.shards = [shard.finish()]
            finally:
                shard.close()
        transaction.commit(contents)
    except OSError as e:
        raise CheckpointError(f"{transaction.path}: step {step} was not saved: {e}") from e
    finally:
        transaction.abort()
    return os.path.join(local_path(root), f"step-{step:08d}")
