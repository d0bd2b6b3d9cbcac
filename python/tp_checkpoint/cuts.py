"""How tensor parallelism cuts a tensor, and the layer it belongs to (docs/FORMAT.md, section 5).

Both are known from the tensor's name for the architectures of docs/MODELS.md. Other models need rules, a
text as `tp-ckpt import --rules` reads; without rules, every tp rank holds their tensors whole.
"""
import re

from .errors import CheckpointError, UnsupportedError
from .manifest import rule

FIRST, LAST = -1, -2  # before and after the layers
LAYERS_MAX, EXPERTS_MAX = 10000, 4096

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
_ARCHITECTURES = {  # of each model_type
    "llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM", "olmo2": "Olmo2ForCausalLM", "gpt_neox": "GPTNeoXForCausalLM", "opt": "OPTForCausalLM",
    "mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "granite": "GraniteForCausalLM",
    "olmo3": "Olmo3ForCausalLM", "smollm3": "SmolLM3ForCausalLM"}
# of a config that does not say it; of the others hidden / heads
_HEAD_DIM = {"GemmaForCausalLM": 256, "Gemma2ForCausalLM": 256, "Gemma3ForCausalLM": 256, "Qwen3ForCausalLM": 128}
# Ends of names. A row is: axis of a matrix, unit ("head": the rows of a head), what else the rule has. The bias
# of a tensor whose rows (outputs) are cut is cut, too; that of a tensor whose columns are cut is not.
_VOCABULARY = ("embed_tokens", "wte", "embed_in", "lm_head", "embed_out")
_BEFORE = ("embed_tokens", "wte", "wpe", "embed_in", "embed_positions")
_OUTPUTS = {"q_proj": ("head", {}), "k_proj": ("head", {"share": True}), "v_proj": ("head", {"share": True}),
            "qkv_proj": ("head", {"blocks": 3}), "query_key_value": ("heads of 3", {}), "gate_proj": (1, {}),
            "up_proj": (1, {}), "gate_up_proj": (1, {"blocks": 2}), "fc1": (1, {}), "dense_h_to_4h": (1, {}),
            "w1": (1, {}), "w3": (1, {})}
_INPUTS = {"o_proj": "head", "out_proj": "head", "attention.dense": "head", "down_proj": 1, "fc2": 1,
           "dense_4h_to_h": 1, "w2": 1}
_GPT2 = {"attn.c_attn.weight": (1, "head", 3), "attn.c_attn.bias": (0, "head", 3), "attn.c_proj.weight": (0, "head", 1),
         "mlp.c_fc.weight": (1, 1, 1), "mlp.c_fc.bias": (0, 1, 1), "mlp.c_proj.weight": (0, 1, 1)}


def layer_number(name):
    """The number of the layer in a name, or None: also of a number that is none of a layer, such as a date."""
    m = _LAYER.search(name)
    return int(m[1]) if m and int(m[1][:20]) < LAYERS_MAX else None


def _member(config, key, least=0):
    """A number of a config, or None. CheckpointError: it is not a whole number."""
    value = config.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise CheckpointError(f"config: '{key}' is {value!r:.60}, expected a whole number from {least} on")
    return value


class FamilyCuts:
    """The cuts of a known architecture."""

    def __init__(self, config, architecture):
        self.architecture = architecture
        heads = _member(config, "num_attention_heads", 1) or _member(config, "n_head", 1) or 12
        hidden = _member(config, "hidden_size", 1) or _member(config, "n_embd", 1) or 768
        self.head_dim = _member(config, "head_dim") or _HEAD_DIM.get(architecture) or hidden // heads
        self.q_rows = heads * self.head_dim
        self.experts = _member(config, "num_local_experts") or _member(config, "num_experts")
        self.few_kv = (_member(config, "num_key_value_heads") or heads) != heads

    def layer(self, name):
        number = layer_number(name)
        if number is not None:
            return number
        return FIRST if name.split(".")[-2:-1] and name.split(".")[-2] in _BEFORE else LAST

    def _unit(self, unit):
        return {"head": self.head_dim, "heads of 3": 3 * self.head_dim}.get(unit, unit)

    def rule(self, name):
        expert = _EXPERT.search(name) if self.experts else None
        more = {"expert": int(expert[1]), "experts": self.experts} if expert else {}
        return {**self._cut(name), **more}

    def _cut(self, name):
        path, _, kind = name.rpartition(".")
        last = path.rsplit(".", 1)[-1]
        if kind not in ("weight", "bias"):
            return rule()
        if last in _VOCABULARY:
            return rule(0, pad=True)
        if self.architecture == "GPT2LMHeadModel":
            for end, (dim, unit, blocks) in _GPT2.items():
                if f".{name}".endswith("." + end):
                    return rule(dim, self._unit(unit), blocks)
            return rule()
        if self.architecture in ("Olmo2ForCausalLM", "Olmo3ForCausalLM") and last in ("q_norm", "k_norm"):
            return rule(0, self.head_dim, share=last == "k_norm")
        if last in _OUTPUTS:
            unit, more = _OUTPUTS[last]
            first = self.q_rows if more.get("blocks") == 3 and self.few_kv else None
            return rule(0, self._unit(unit), first=first, **more)
        for end, unit in _INPUTS.items():
            if kind == "weight" and f".{path}".endswith("." + end):
                return rule(1, self._unit(unit))
        return rule()


def _number(text, least):
    """A number of a rule, as the programs read it."""
    if not re.fullmatch("[0-9]{1,13}", text) or int(text) < least:
        raise ValueError(f"{text} is not a whole number from {least} on")
    return int(text)


class _Line:
    """A line of rules."""

    def __init__(self, name, axis, options):
        """ValueError: not a line of rules."""
        self.pattern = re.compile("([0-9]+)".join(map(re.escape, name.split("*"))) + r"\Z")
        self.is_last, self.is_expert = "last" in options, "expert" in options
        self.has_layer = self.pattern.groups > 0 and not self.is_last
        members = {"dim": -1 if axis == "-" else _number(axis, 0)}
        for word in options:
            key, _, value = word.partition("=")
            if word in ("last", "optional"):
                continue
            if axis == "-":
                raise ValueError(f"{word} is not possible for a tensor that is not cut")
            if key not in (("unit", "blocks", "first") if value else ("share", "pad", "expert")):
                raise ValueError(word)
            members[key] = _number(value, 1) if value else True
        if members.pop("expert", False) and self.pattern.groups < 2 - self.is_last:
            raise ValueError(f"{name} has too few '*' for 'expert': expected one for the layer and, after it, one for the expert")
        self.rule = rule(**members)


class RuledCuts:
    """The cuts that a text of rules says (docs/MODELS.md, "A model of an unknown architecture")."""

    def __init__(self, text, names=(), where="rules"):
        """names: of all tensors. Their largest number of an expert says how many experts there are."""
        self.where, self.lines, self.found = where, [], {}
        lines = [(i, line.split("#")[0].split()) for i, line in enumerate(text.split("\n"), 1)]
        for number, words in ((i, w) for i, w in lines if w):
            if len(words) < 2:
                raise UnsupportedError(f"{where}, line {number}: expected a tensor's name and an axis")
            try:
                self.lines.append(_Line(words[0], words[1], words[2:]))
            except ValueError as e:
                raise UnsupportedError(f"{where}, line {number}: {e}") from None
        layered = [i for i, line in enumerate(self.lines) if line.has_layer]
        self.first_layered = layered[0] if layered else len(self.lines)
        self.experts = 1 + max((self._expert(name) for name in names), default=-1)

    def _find(self, name):
        """The number of the name's line, and the line."""
        if name not in self.found:
            found = [(i, line) for i, line in enumerate(self.lines) if line.pattern.match(name)]
            if len(found) != 1:
                raise UnsupportedError(f"{self.where}: {'no line has' if not found else 'several lines have'} "
                                       f"the name {name}; each tensor needs one")
            self.found[name] = found[0]
        return self.found[name]

    def _below(self, name, digits, most, what):
        if int(digits[:20]) >= most:
            raise UnsupportedError(f"{self.where}: the {what} of tensor {name} is not below {most}")
        return int(digits)

    def _expert(self, name):
        """The number of the expert that a tensor is of, or -1."""
        line = self._find(name)[1]
        if not line.is_expert:
            return -1
        return self._below(name, line.pattern.match(name)[line.pattern.groups], EXPERTS_MAX, "expert")

    def rule(self, name):
        cut, expert = self._find(name)[1].rule, self._expert(name)
        return cut if expert < 0 else {**cut, "expert": expert, "experts": max(self.experts, expert + 1)}

    def layer(self, name):
        at, line = self._find(name)
        if line.has_layer:
            return self._below(name, line.pattern.match(name)[1], LAYERS_MAX, "layer")
        return LAST if line.is_last or at >= self.first_layered else FIRST


class NoCuts:
    """A model about which nothing is known: its tensors are not cut, and layers are found by their names."""

    def __init__(self, names):
        numbered = [i for i, name in enumerate(names) if layer_number(name) is not None]
        self.before = set(names[:numbered[0] if numbered else None])

    def rule(self, name):
        return rule()

    def layer(self, name):
        number = layer_number(name)
        return number if number is not None else FIRST if name in self.before else LAST


def _architecture_of(config):
    """The model's class. A model of transformers that no folder was read for has only its model_type."""
    named = config.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str):
        return named[0]
    kind = config.get("model_type")
    return _ARCHITECTURES.get(kind) if isinstance(kind, str) else None


def cuts_of(config, rules, names):
    """The cuts of a model: by the text of rules, or by its config.json (a dict), if these are there."""
    if rules is not None:
        return RuledCuts(rules, names)
    architecture = _architecture_of(config or {})
    return FamilyCuts(config, architecture) if architecture in _ARCHITECTURES.values() else NoCuts(names)


def check_fits(name, shape, cut):
    """UnsupportedError: a rule does not fit the shape of its tensor."""
    def need(ok, sentence):
        if not ok:
            raise UnsupportedError(f"tensor {name} {list(shape)}: {sentence}; use another rule")

    dim, unit, blocks, first = cut["dim"], cut["unit"], cut["blocks"], cut.get("first")
    if dim == -1:
        return
    need(-1 <= dim < len(shape), f"cannot be cut along axis {dim}")
    need(1 <= unit <= 1 << 30 and 1 <= blocks <= 8, f"has a unit of {unit} and {blocks} blocks")
    rest, parts = shape[dim] - (first or 0), blocks - (first is not None)
    need(parts > 0 and rest > 0 and rest % parts == 0, f"axis {dim} is not {blocks} blocks")
    need(first is None or first % (rest // parts) == 0, f"a first block of {first} does not fit")
    need(cut["pad"] or rest // parts % unit == 0, f"axis {dim} is not a multiple of {unit}")
