"""manifest.json (docs/FORMAT.md, section 2): reading with all of its checks, and writing."""
import dataclasses
import hashlib
import json
import os
import stat

from .errors import DamagedError, UnsupportedError

NAME = "manifest.json"
VERSION = 3
VERSION_RAW = 2  # what is written when no shard is chunked
BYTES_MAX = 256 << 20
TAIL = 81
CHUNK_BYTES_MAX = 4 << 20
VALUE_BYTES_MAX, VALUE_PARTS_MAX, DEPTH_MAX = 4 << 20, 50000, 128  # of a member; the programs refuse more
CONFIG_PARTS_MAX = 2 * VALUE_PARTS_MAX  # of the text of model_config
ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8, "i64": 8, "i32": 4, "u8": 1}


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor of a manifest: its name and shape are those of Hugging Face, whatever the layout."""
    id: int
    group: str
    name: str
    dtype: str
    shape: tuple
    layer: int = -1
    rule: dict = dataclasses.field(default_factory=lambda: rule())

    @property
    def full_name(self):
        return f"{self.group}/{self.name}"


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    file: str
    rank: int
    size_bytes: int
    index_offset: int
    index_rows: int
    index_sha256: str
    meta_sha256: str
    chunked: bool = False


@dataclasses.dataclass
class Manifest:
    step: int
    spec: str
    ranks: int
    stage_of: list
    train: dict
    tensors: list
    shards: list
    model_config: str = None
    save_id: str = "0" * 32
    epoch: int = 0


def rule(dim=-1, unit=1, blocks=1, share=False, pad=False, first=None):
    """How tensor parallelism cuts a tensor (docs/FORMAT.md, section 5)."""
    members = {"dim": dim, "unit": unit, "blocks": blocks, "share": share, "pad": pad}
    return members if first is None else {**members, "first": first}


# ---- reading ---------------------------------------------------------------------------------

class _Reader:
    """Members of JSON objects, each with its kind and range."""

    def __init__(self, path):
        self.path = path

    def need(self, ok, sentence):
        if not ok:
            raise DamagedError(f"{self.path}: {sentence}")

    def whole(self, value, key, least=0, most=1 << 62):
        self.need(type(value) is int and least <= value <= most,
                  f"member '{key}' is {value!r:.60}, expected a whole number from {least} to {most}")
        return value

    def member(self, owner, key, kind):
        self.need(isinstance(owner, dict) and key in owner, f"member '{key}' is missing")
        value = owner[key]
        self.need(isinstance(value, kind) and not (kind is int and isinstance(value, bool)),
                  f"member '{key}' is {value!r:.60}, which is another kind of value than expected")
        return value

    def number(self, owner, key, least=0, most=1 << 62):
        return self.whole(self.member(owner, key, int), key, least, most)

    def unique(self, pairs):
        found = dict(pairs)
        self.need(len(found) == len(pairs), "an object has a member twice")
        return found


def is_name(text):
    """Whether it can be the name of a tensor or of a group. A lone surrogate is no character of UTF-8."""
    return (isinstance(text, str) and 0 < len(text.encode("utf-8", "surrogatepass")) <= 1024 and text != "."
            and not any(c < " " or c in "\x7f/@" or "\ud800" <= c <= "\udfff" for c in text))


def _check_name(r, text):
    r.need(is_name(text), f"{text!r:.60} is not a valid name")


def _tensor(r, entry, number):
    t = TensorInfo(r.number(entry, "id"), r.member(entry, "group", str), r.member(entry, "name", str),
                   r.member(entry, "dtype", str), tuple(r.member(entry, "shape", list)),
                   r.number(entry, "layer", -2, 1 << 20), r.member(entry, "rule", dict))
    r.need(t.id == number, f"tensor {number} has the id {t.id}")
    _check_name(r, t.group)
    _check_name(r, t.name)
    r.need(t.group != "index", "a group is named 'index'")
    r.need(t.dtype in ITEM_BYTES, f"tensor {t.name}: unknown dtype '{t.dtype}'")
    r.need(len(t.shape) <= 6, f"tensor {t.name}: has {len(t.shape)} axes; the most is 6")
    elements = 1
    for n in t.shape:
        elements *= max(r.whole(n, "shape"), 1)
    r.need(elements <= 1 << 58, f"tensor {t.name}: has more than 2^58 elements")
    return t


def _shard(r, entry, ranks):
    s = ShardInfo(r.member(entry, "file", str), r.number(entry, "rank", 0, ranks - 1),
                  r.number(entry, "size_bytes", 1), r.number(entry, "index_offset"),
                  r.number(entry, "index_rows", 1, 1 << 22), r.member(entry, "index_sha256", str),
                  r.member(entry, "meta_sha256", str), r.member({"chunked": False, **entry}, "chunked", bool))
    r.need(s.file == f"rank-{s.rank:05d}.h5", f"the file of rank {s.rank} is named {s.file!r:.60}")
    return s


def _parse(r, root):
    r.need(isinstance(root, dict) and root.get("format") == "tp-ckpt", "is not of format tp-ckpt")
    version = r.number(root, "version", 1)
    if version > VERSION:
        raise UnsupportedError(f"{r.path}: has version {version} of the format; this package reads "
                               f"versions up to {VERSION}; install a newer one")
    layout, train = r.member(root, "layout", dict), r.member(root, "train", dict)
    m = Manifest(step=r.number(root, "step"), spec=r.member(layout, "spec", str),
                 ranks=r.number(layout, "ranks", 1, (1 << 31) - 1),
                 stage_of=r.member(layout, "stage_of", list), train=train, tensors=[], shards=[],
                 model_config=root.get("model_config"), save_id=r.member(root, "save_id", str),
                 epoch=r.number(root, "epoch"))
    r.need(r.number(train, "step") == m.step, "the step of 'train' is another one than 'step'")
    r.number({"optimizer_start": train.get("optimizer_start", 0)}, "optimizer_start", 0, m.step)
    for key, kind in ("next_sample", int), ("tokens", int), ("seed", str), ("dtype", str), ("options", dict):
        r.member(train, key, kind)
    r.need(m.model_config is None or isinstance(m.model_config, str), "member 'model_config' is not text")
    m.tensors = [_tensor(r, t, i) for i, t in enumerate(r.member(root, "tensors", list))]
    r.need(len({(t.group, t.name) for t in m.tensors}) == len(m.tensors), "a tensor occurs twice")
    m.shards = [_shard(r, s, m.ranks) for s in r.member(root, "shards", list)]
    r.need(all(a.rank < b.rank for a, b in zip(m.shards, m.shards[1:])), "shards are out of order")
    return m


def read_file(path, most):
    """The bytes of a regular file; DamagedError if it is none, or longer than `most`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as f:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{path}: is not a regular file")
        if status.st_size > most:
            raise DamagedError(f"{path}: has {status.st_size} bytes; the most is {most}")
        return f.read(most + 1)


def read(folder):
    """The manifest of a step directory. FileNotFoundError: it has none."""
    path = os.path.join(folder, NAME)
    r = _Reader(path)
    text = read_file(path, BYTES_MAX)
    tail = text[-TAIL:]
    r.need(len(tail) == TAIL and tail[:13] == b'"checksum": "' and tail[77:] == b'"\n}\n',
           "does not end with its checksum: the file is damaged or truncated")
    found = hashlib.sha256(text[:-TAIL]).hexdigest()
    r.need(found.encode() == tail[13:77],
           f"has the SHA-256 {found[:16]}..., but its last line has another one: the file is damaged")
    try:
        root = json.loads(text, object_pairs_hook=r.unique)
    except (ValueError, RecursionError) as e:
        raise DamagedError(f"{path}: is not a JSON object: {e}") from None
    return _parse(r, root)


# ---- writing ---------------------------------------------------------------------------------

def _line(value):
    return json.dumps(value, ensure_ascii=False)


def _size_of(value):
    """How many values are in a value of JSON, at any depth, and how deep it is nested."""
    parts, depth, level = 0, 0, [value]
    while level:
        parts, inner = parts + len(level), [v for v in level if isinstance(v, (dict, list))]
        depth += bool(inner)
        level = [x for v in inner for x in (v.values() if isinstance(v, dict) else v)]
    return parts, depth


def _check_size(what, value, parts_max=VALUE_PARTS_MAX):
    parts, depth = _size_of(value)
    if parts > parts_max or depth > DEPTH_MAX:
        raise UnsupportedError(f"{what}: has {parts} values in {depth} levels; the most is {parts_max} in {DEPTH_MAX}")
    n_bytes = len(_line(value).encode("utf-8", "surrogatepass"))
    if n_bytes > VALUE_BYTES_MAX:
        raise UnsupportedError(f"{what}: would have {n_bytes} bytes; the most is {VALUE_BYTES_MAX}")


def _head(m):
    """The members before the lists, [(key, value)]."""
    layout = {"spec": m.spec, "ranks": m.ranks, "layers": len(m.stage_of), "stage_of": m.stage_of}
    version = VERSION if any(s.chunked for s in m.shards) else VERSION_RAW
    return [("format", "tp-ckpt"), ("version", version), ("save_id", m.save_id), ("epoch", m.epoch),
            ("step", m.step), ("layout", layout), ("train", m.train), ("model_config", m.model_config)]


def check_sizes(m):
    """UnsupportedError: a member is larger than the programs read, such as a list of all losses in train.options."""
    for key, value in _head(m):
        _check_size("train with its 'options'" if key == "train" else key, value)
    if m.model_config is not None:
        _check_size("model_config", json.loads(m.model_config), CONFIG_PARTS_MAX)


def format_bytes(m):
    """The bytes of the file, its checksum included."""
    check_sizes(m)
    tensors = [{"id": t.id, "group": t.group, "name": t.name, "dtype": t.dtype, "shape": list(t.shape),
                "layer": t.layer, "rule": t.rule} for t in m.tensors]
    shards = [{k: v for k, v in dataclasses.asdict(s).items() if k != "chunked" or v} for s in m.shards]
    lines = [f'"{key}": {_line(value)},\n' for key, value in _head(m)]
    for key, entries in ("tensors", tensors), ("shards", shards):
        lines.append(f'"{key}": [\n' + ",\n".join(map(_line, entries)) + "\n],\n")
    body = ("{\n" + "".join(lines)).encode()
    if len(body) > BYTES_MAX - TAIL:
        raise UnsupportedError(f"the manifest would have {len(body)} bytes; the most is {BYTES_MAX}")
    return body + b'"checksum": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode()


def check_new(m, where):
    """Check a manifest that is about to be written, with the checks of reading."""
    _parse(_Reader(where), json.loads(format_bytes(m)))
