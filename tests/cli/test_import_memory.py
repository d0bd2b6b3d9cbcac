"""A hostile pickle is refused within --mem, whatever it makes.

needs: tp-train tp-ckpt tp-reshard
"""
import zipfile

import pytest

import harness

MIB = 1 << 20
SIZE = (256 if harness.LONG else 24) * MIB
MEMORY = 64
HEAD = b"\x80\x02"


# What to repeat, and what is before and after it.
PICKLES = {
    "empty tuples": (b")", b"", b""),
    "memo entries": (b"\x94", b"]", b""),
    "memo entries with large numbers": (b"r\xff\xff\x3f\x00", b"]", b""),
    "dicts": (b"}", b"](", b"e"),
    "tuples in tuples": (b")\x85", b"", b""),
    "pairs of a dict": (b"K\x01K\x02s", b"}", b""),
    "text": (b"X\x04\0\0\0abcd", b"(", b"t"),
    "small numbers": (b"K\x01", b"(", b"l"),
}


def write(folder, what):
    unit, before, after = PICKLES[what]
    folder.mkdir()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as z:
        z.writestr("archive/data.pkl", HEAD + before + unit * (SIZE // len(unit)) + after + b".")
        z.writestr("archive/version", "3\n")
    return folder


@pytest.mark.parametrize("what", PICKLES)
def test_a_hostile_pickle_is_refused_within_the_memory(what, tmp_path, tiny, figure):
    source = write(tmp_path / "hostile", what)
    code, peak, _, said = harness.measure(tmp_path, "tp-ckpt", "import", source, "--config", tiny, "-o",
                                          tmp_path / "out", "--mem", "%dM" % MEMORY)
    assert code in (2, 3) and "pytorch_model.bin: " in said, said
    assert not (tmp_path / "out").exists()
    assert peak <= (MEMORY + (1024 if harness.SANITIZE else 0)) * MIB, "%d MiB: %s" % (peak / MIB, said)
    figure("MiB with --mem %dM" % MEMORY, "%d" % (peak / MIB))


def test_the_limit_is_named(tmp_path, tiny):
    source = write(tmp_path / "hostile", "small numbers")
    r = harness.run("tp-reshard", source, "--config", tiny, "--to", "tp1", "--format", "tp", "-o", tmp_path / "out", "--mem", "64M")
    assert r.rc == 2 and "left of --mem" in r.err and "MiB" in r.err, repr(r)


@pytest.mark.parametrize("fmt", ["safetensors", "dcp", "deepspeed", "megatron"])
def test_a_limit_below_the_program_itself_is_refused_with_what_is_needed(fmt, ckpt, tmp_path):
    """Nothing is left for the tables then, but the answer is not that memory is out."""
    source, out = tmp_path / "source", tmp_path / "out"
    harness.ok("tp-ckpt", "export", ckpt, "-o", source, "--format", fmt)
    for argv in (["tp-ckpt", "ls", source], ["tp-ckpt", "show", source], ["tp-ckpt", "verify", source],
                 ["tp-ckpt", "digest", source], ["tp-ckpt", "diff", source, source],
                 ["tp-ckpt", "import", source, "-o", out], ["tp-reshard", source, "--to", "tp2", "-o", out]):
        r = harness.run(*argv, "--mem", "1M")
        assert r.rc == 2 and "--mem 1.00 MiB is too little; at least " in r.err, repr(r)
        assert not out.exists()
