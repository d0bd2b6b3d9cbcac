"""A hostile pickle, or the directory of a hostile archive, is refused within --mem, whatever it makes.

needs: tp-train tp-ckpt tp-reshard
"""
import json
import struct
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


def refuse(source, tmp_path, tiny, figure):
    """Import fails within the memory. Returns what it says."""
    code, peak, _, said = harness.measure(tmp_path, "tp-ckpt", "import", source, "--config", tiny, "-o",
                                          tmp_path / "out", "--mem", "%dM" % MEMORY)
    assert code in (2, 3) and "pytorch_model.bin: " in said, said
    assert not (tmp_path / "out").exists()
    assert peak <= (MEMORY + (1024 if harness.SANITIZE else 0)) * MIB, "%d MiB: %s" % (peak / MIB, said)
    figure("MiB with --mem %dM" % MEMORY, "%d" % (peak / MIB))
    return said


@pytest.mark.parametrize("what", PICKLES)
def test_a_hostile_pickle_is_refused_within_the_memory(what, tmp_path, tiny, figure):
    refuse(write(tmp_path / "hostile", what), tmp_path, tiny, figure)


def test_a_directory_of_zeros_is_refused_within_the_memory(tmp_path, tiny, figure):
    source, size = tmp_path / "hostile", 255 * MIB
    source.mkdir()
    with open(source / "pytorch_model.bin", "wb") as f:
        f.seek(size)
        f.write(struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, 1, 1, size, 0, 0))
    assert "left of --mem" in refuse(source, tmp_path, tiny, figure)


def test_a_directory_of_many_members_is_refused_within_the_memory(tmp_path, tiny, figure):
    """They are sorted, which takes a copy of them."""
    source, n = tmp_path / "hostile", 500000
    members, directory = [], []
    source.mkdir()
    for i in range(n):
        name = b"%06x" % (7919 * i % n)
        at, size = 36 * i, len(name)
        members.append(struct.pack("<IHHHHHIIIHH", 0x04034b50, 20, 0, 0, 0, 33, 0, 0, 0, size, 0) + name)
        directory.append(struct.pack("<IHHHHHHIIIHHHHHII", 0x02014b50, 20, 20, 0, 0, 0, 33, 0, 0, 0, size, 0, 0, 0, 0, 0, at) + name)
    begin, size = 36 * n, 52 * n
    with open(source / "pytorch_model.bin", "wb") as f:
        f.write(b"".join(members + directory))
        f.write(struct.pack("<IQHHIIQQQQ", 0x06064b50, 44, 45, 45, 0, 0, n, n, size, begin))
        f.write(struct.pack("<IIQI", 0x07064b50, 0, begin + size, 1))
        f.write(struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 0))
    assert "left of --mem" in refuse(source, tmp_path, tiny, figure)


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


@pytest.mark.parametrize("verb", ["show", "digest"])
def test_json_of_many_tensors_needs_no_more_memory_than_text(verb, tmp_path, figure):
    """A model with many experts has as many; --mem holds for both."""
    folder, n = tmp_path / "many", 40000
    folder.mkdir()
    header = json.dumps({"t.%d.w" % i: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(n)}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(n))
    peaks = []
    for option in [], ["--json"]:
        code, peak, _, said = harness.measure(tmp_path, "tp-ckpt", verb, folder, *option)
        assert code == 0, said[-500:]
        peaks.append(peak / MIB)
    assert len(json.JSONDecoder().raw_decode(said)[0]["tensors"]) == n
    figure("MiB of %s as text, as JSON" % verb, "%d, %d" % tuple(peaks))
    if not harness.SANITIZE:
        assert peaks[1] < peaks[0] + 8, peaks
