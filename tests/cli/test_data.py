"""--data: raw bytes are announced, and a file that is not text is refused with what to do.

needs: tp-train
covers: trainer/data/token_file trainer/data/dataset trainer/run_summary
"""
import subprocess

import pytest

import harness
from harness import TEXT, run


def train(config, data, *more):
    return run("tp-train", "--model", config, "--data", data, "--steps", 1, "--seq", 16, "--batch", 2, *more)


def test_raw_bytes_are_announced_with_the_vocabulary(tmp_path):
    for vocab in 256, 1000, 1024:
        config = harness.write_config(tmp_path / str(vocab), vocab_size=vocab)
        for data in TEXT, "bytes:" + TEXT:
            r = train(config, data)
            assert r.rc == 0, repr(r)
            assert "%s is read as raw bytes" % TEXT in r.err and "has %d tokens" % vocab in r.err, repr(r)


def test_a_larger_vocabulary_needs_to_be_told(tmp_path):
    config = harness.write_config(tmp_path, vocab_size=1025)
    r = train(config, TEXT)
    assert r.rc == 2 and len(r.lines) == 1 and r.out == "", repr(r)
    assert "1025" in r.err and "bytes:" + TEXT in r.err and "preprocess_data.py" in r.err
    r = train(config, "bytes:" + TEXT)
    assert r.rc == 0 and "read as raw bytes" in r.err and "has 1025 tokens" in r.err, repr(r)


@pytest.mark.parametrize("ending, words", [
    (".bin", ".idx"), (".idx", ".bin"), (".jsonl", "JSON lines"), (".json", "JSON"), (".csv", "table"),
    (".parquet", "table"), (".arrow", "table"), (".npy", "NumPy"), (".gz", "decompress"),
    (".zst", "decompress"), (".safetensors", "--model")])
def test_a_file_that_is_no_text_is_refused(ending, words, tiny, tmp_path):
    path = tmp_path / ("data" + ending)
    path.write_bytes(open(TEXT, "rb").read(5000))
    r = train(tiny, path)
    assert r.rc == 2 and len(r.lines) == 1 and r.out == "", repr(r)
    assert words in r.err and "bytes:%s" % path in r.err, repr(r)
    assert train(tiny, "bytes:%s" % path).rc == 0


@pytest.mark.parametrize("ending", ["", ".txt", ".md", ".c"])
def test_text_is_text(ending, tiny, tmp_path):
    path = tmp_path / ("data" + ending)
    path.write_bytes(open(TEXT, "rb").read(5000))
    assert train(tiny, path).rc == 0


def test_a_missing_file_is_missing_whatever_its_name_is(tiny, tmp_path):
    for name in "a.jsonl", "a.bin", "bytes:a", "a":
        r = train(tiny, name)
        assert r.rc == 2 and "a" in r.err and len(r.lines) == 1, repr(r)


@pytest.mark.parametrize("layout", ["tp1", "pp2", "dp2"])
def test_a_file_that_is_cut_while_it_is_read_is_damage_and_no_signal(layout, tiny, tmp_path):
    data = tmp_path / "text"
    data.write_bytes(open(TEXT, "rb").read(30000))
    argv = harness.train_args(tiny, steps=10 ** 6, layout=layout) # of two --data the last one counts
    with subprocess.Popen(harness.command(argv + ["--data", data]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            if "step 3" in " ".join(line.split()):
                break
        with open(data, "r+b") as f:
            f.truncate(100)
        out, err = p.communicate(timeout=300)
    assert p.returncode == 3 and "%s: has 100 bytes, but had 30000" % data in err, (p.returncode, out[-500:], err)


@pytest.mark.parametrize("layout", ["dp2", "tp2"])
def test_ranks_that_have_different_data_are_refused(layout, tiny, tmp_path):
    """As where each host has a copy, and one is not whole. Both begin alike and have tokens of the vocabulary."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.write_bytes(open(TEXT, "rb").read(5000))
    part.write_bytes(whole.read_bytes()[:4000])
    start = [str(harness.BIN / "tp-train"), "--model", tiny, "--layout", layout, "--steps", 1, "--seq", 16, "--batch", 2, "--data"]
    r = run("mpirun", "-n", 2, *harness.of_each_rank([*start, whole], [*start, part]))
    assert r.rc == 2 and r.out == "" and r.err.count("tp-train:") == 1, repr(r)
    assert "--data" in r.err and "4000 tokens for one rank and 5000 for another" in r.err, repr(r)
    assert run("mpirun", "-n", 2, *start, whole).rc == 0
