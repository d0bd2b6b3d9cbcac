"""docs/JSON.md lists the fields that tp-ckpt and tp-reshard print with --json: each that is printed is in its table with its
type, each that the table says is always present is, and each in a table is printed by one of the cases here.

needs: tp-ckpt tp-reshard make_ckpt
"""
import json
import re

import pytest

import harness
import neox_files
import object_store
from object_store import ObjectStore
from test_ckpt import flip_payload
from test_neox import Made

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None), "object": dict, "any object": dict,
         "list": list, "list of strings": list, "list of integers": list}
ENTRIES = {"list of strings": str, "list of integers": int}


def read_page():
    """{heading: {field: (its types, when it is present)}} of the tables of fields."""
    page, heading = {}, None
    for line in (harness.REPO / "docs/JSON.md").read_text(encoding="utf-8").splitlines():
        if m := re.match(r"#+ (.*)", line):
            heading, fields = m[1], None
        elif line.startswith("| field | type"):
            fields = page[heading] = {}
        elif fields is not None and (m := re.match(r"\| `(\S+)` \| ([^|]+) \| ([^|]+) \|", line)):
            assert m[1] not in fields, "%s has %s twice" % (heading, m[1])
            fields[m[1]] = [t for t in re.split(", | or ", m[2]) if t in TYPES], m[3]
    return page


PAGE = read_page()


def compare(o, fields, seen, at=""):
    """What differs between an object and a table of fields; `at` is where it is in the record: "" or "tensors[]."."""
    assert type(o) is dict, "%s is not an object: %r" % (at, o)
    always = {f for f, (_, when) in fields.items() if f.startswith(at) and "." not in f[len(at):] and when == "always"}
    yield from ("%s is absent" % f for f in always - {at + name for name in o})
    for name, value in o.items():
        field = at + name
        types, _ = fields.get(field, ([], ""))
        seen.add(field)
        if not [t for t in types if type(value) is TYPES[t]]:
            yield "%s: %r is not %s" % (field, value, types or "on the page")
        elif type(value) is dict and "any object" not in types:
            yield from compare(value, fields, seen, field + ".")
        elif type(value) is list:
            entry = next((ENTRIES[t] for t in types if t in ENTRIES), None)
            for v in value:
                if not entry:
                    yield from compare(v, fields, seen, field + "[].")
                elif type(v) is not entry:
                    yield "%s has %r" % (field, v)


class Answers:
    """Runs programs, and keeps the objects that they print: {heading: [object]}."""

    def __init__(self):
        self.objects = {}

    def keep(self, heading, r, rc):
        assert r.rc == rc, repr(r)
        value = json.loads(r.out)
        self.objects.setdefault(heading, []).extend(value if isinstance(value, list) else [value])
        self.objects.setdefault("Progress", []).extend(json.loads(line) for line in r.lines if line.startswith("{"))
        return value

    def ask(self, heading, *argv, rc=0):
        return self.keep(heading, harness.run(*argv, "--json"), rc)


def ckpt_cases(a, t, intact, other):
    a.ask("tp-ckpt ls", "tp-ckpt", "ls", intact)
    a.ask("tp-ckpt show", "tp-ckpt", "show", intact)
    a.ask("show NAME", "tp-ckpt", "show", intact, "model.norm.weight")
    a.ask("tp-ckpt verify", "tp-ckpt", "verify", intact)
    a.ask("tp-ckpt digest", "tp-ckpt", "digest", intact)
    a.ask("tp-ckpt diff", "tp-ckpt", "diff", intact, intact)
    a.ask("tp-ckpt diff", "tp-ckpt", "diff", intact, other, rc=1)
    a.ask("tp-ckpt prune", "tp-ckpt", "prune", intact, "--keep", 1, "--dry-run")
    damaged = harness.copy(intact, t / "damaged")
    flip_payload(harness.steps(damaged)[-1], 0.5)
    assert a.ask("tp-ckpt verify", "tp-ckpt", "verify", damaged, rc=1)["findings"]
    assert a.ask("tp-ckpt prune", "tp-ckpt", "prune", damaged, "--keep", 1)["damaged"]
    a.ask("Failure", "tp-ckpt", "digest", harness.steps(damaged)[-1], rc=3)
    (harness.steps(damaged)[-1] / "rank-00001.h5").unlink()
    assert [s["complete"] for s in a.ask("tp-ckpt ls", "tp-ckpt", "ls", damaged)][-1] is False
    for verb in ("ls", "show", "verify", "digest"):
        a.ask("Failure", "tp-ckpt", verb, t / "absent", rc=2)


def foreign_cases(a, t, intact):
    """Returns a folder in DCP."""
    a.ask("tp-ckpt export", "tp-ckpt", "export", intact, "-o", t / "hf")
    a.ask("tp-ckpt export", "tp-ckpt", "export", intact, "-o", t / "dcp", "--format", "dcp")
    left = [a.ask("tp-ckpt import", "tp-ckpt", "import", t / kind, "-o", t / ("of-" + kind)) for kind in ("hf", "dcp")]
    assert [(r["from_format"], bool(r["left_out_names"])) for r in left] == [("safetensors", False), ("dcp", True)]
    a.ask("tp-ckpt diff", "tp-ckpt", "diff", intact, t / "hf", rc=1)
    for kind in ("hf", "dcp"):
        a.ask("ls of another framework's files", "tp-ckpt", "ls", t / kind)
        a.ask("show of another framework's files", "tp-ckpt", "show", t / kind)
        a.ask("show NAME of another framework's files", "tp-ckpt", "show", t / kind, "model.norm.weight")
        a.ask("verify of another framework's files", "tp-ckpt", "verify", t / kind)
        a.ask("tp-ckpt digest", "tp-ckpt", "digest", t / kind)
    verify = "verify of another framework's files", "tp-ckpt", "verify"
    damaged = harness.copy(t / "dcp", t / "damaged-dcp")
    parts = sorted(damaged.glob("*.distcp"))
    data = bytearray(parts[0].read_bytes())
    data[data.index(b"/data/") + 1000] ^= 1
    parts[0].write_bytes(data)
    assert a.ask(*verify, damaged, rc=1)["bytes"] > 0
    parts[0].unlink()
    assert "bytes" not in a.ask(*verify, damaged, rc=1)


def joined_case(a, t):
    neox = Made("gpt-neox", t, 5)
    neox_files.Save(neox.config, neox.state, 2, 1, 1).write(t / "ds", 3)
    a.ask("show NAME of another framework's files", "tp-ckpt", "show", t / "ds", "gpt_neox.layers.1.attention.dense.bias",
          "--config", neox.path)


def reshard_cases(a, t, intact, config):
    def reshard(heading, *argv, rc=0):
        return a.ask(heading, "tp-reshard", *argv, rc=rc)

    own, between = "tp-reshard", "tp-reshard between formats"
    reshard(own, intact, "--to", "tp4", "-o", t / "tp4")
    reshard(own, intact, "--to", "tp1", "-o", t / "zstd", "--zstd", "--device", "auto", "--mem", "512M")
    reshard(own, intact, "--to", "dp2", "-o", t / "link", "--link")
    reshard(own, intact, "--to", "tp4", "-o", t / "no", "--dry-run")
    reshard(own, "--model", config, "--from", "tp2", "--to", "tp4", "--dry-run")
    reshard(between, intact, "--to", "tp1", "--format", "dcp", "-o", t / "to-dcp")
    reshard(between, t / "dcp", "--to", "tp4", "--format", "tp", "-o", t / "from-dcp")
    reshard(between, t / "hf", "--to", "tp1", "-o", t / "no", "--dry-run")
    reshard("Failure", intact, "--to", "tp3", "-o", t / "no", rc=2)
    reshard("Failure", t / "damaged-dcp", "--to", "tp1", "-o", t / "no", rc=3)


def store_case(a, intact):
    with ObjectStore() as store:
        store.add_tree("bucket/ckpt", intact)
        for key in [k for k in store.objects if "/latest/" in k]:
            del store.objects[key]
        del store.objects["bucket/ckpt/step-00000001/manifest.json"]
        r = object_store.run(store, "tp-ckpt", "prune", "s3://bucket/ckpt", "--keep", 1, "--json")
    assert a.keep("tp-ckpt prune", r, 0)["left"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory, tiny):
    """{heading: the objects that the cases print}."""
    t = tmp_path_factory.mktemp("json")
    for root, step, seed in (("ckpt", 1, 11), ("ckpt", 2, 12), ("other", 2, 13)):
        harness.ok(harness.built("make_ckpt"), tiny, "tp2", t / root, step, seed, "bf16")
    a = Answers()
    ckpt_cases(a, t, t / "ckpt", t / "other")
    foreign_cases(a, t, t / "ckpt")
    joined_case(a, t)
    reshard_cases(a, t, t / "ckpt", tiny)
    store_case(a, t / "ckpt")
    return a.objects


@pytest.mark.parametrize("heading", PAGE)
def test_the_page_has_exactly_the_fields_that_are_printed(heading, printed):
    fields, seen = PAGE[heading], set()
    assert [f for f, (types, _) in fields.items() if not types] == [], "types that are none of %s" % list(TYPES)
    differences = {d for o in printed[heading] for d in compare(o, fields, seen)}
    assert not differences and fields.keys() <= seen, "%s; never printed: %s" % (sorted(differences), sorted(fields.keys() - seen))


def test_every_record_that_is_printed_has_a_table(printed):
    assert printed.keys() == PAGE.keys()
