"""What programs print: words, numbers and JSON.

needs: tp-train tp-reshard tp-ckpt tp-run
"""
import json
import os
import pty
import re
import subprocess

import pytest

import harness


def test_one_of_something_is_singular(tiny, tmp_path):
    assert "done: 1 step, saved in " in harness.train(tiny, tmp_path / "ckpt", steps=1, layout="tp1").err
    assert ", 1 shard, " in harness.ok("tp-ckpt", "verify", tmp_path / "ckpt").out
    out = harness.ok("tp-ckpt", "show", tmp_path / "ckpt").out
    assert "tp1: 1 rank\n" in out and " in 1 shard\n" in out, out
    out = harness.ok("tp-reshard", tmp_path / "ckpt", "--to", "tp2", "--dry-run").out
    assert not re.search(r"\b1 (ranks|files|shards)\b", out), out


def test_one_head_is_singular(tiny, tmp_path):
    mesh = [l for l in harness.train(tiny, tmp_path / "ckpt", steps=1, layout="tp4").err.splitlines() if " mesh: " in l]
    assert mesh and not re.search(r"\b1 (key-value )?heads\b", mesh[0]), mesh


def test_numbers_have_the_digits_that_were_given(tiny, tmp_path):
    harness.train(tiny, tmp_path / "ckpt", steps=1, layout="tp1", lr=0.0005)
    out = harness.ok("tp-ckpt", "show", tmp_path / "ckpt").out
    assert '"lr": 0.0005,' in out, out
    out = harness.ok("tp-ckpt", "show", "--json", tmp_path / "ckpt").out
    assert '"lr": 0.0005,' in out, out
    assert json.loads(out)["options"]["lr"] == 0.0005


def test_every_step_is_printed_to_a_pipe_and_then_the_total(tiny, tmp_path):
    r = harness.train(tiny, tmp_path / "ckpt", steps=7, layout="tp2")
    assert [int(m) for m in re.findall(r"^step (\d+)/7 ", r.out, re.M)] == list(range(1, 8)), r.out
    assert re.search(r"done: 7 steps, saved in .*; 7 steps in \d+\.\d s, \d+ tokens/s\n", r.err), r.err


@pytest.mark.parametrize("term, erases", [("xterm", True), ("dumb", False), ("", False)])
def test_a_terminal_that_cannot_redraw_a_line_gets_no_escape_sequences(ckpt, term, erases):
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = term
        os.execv(harness.BIN / "tp-ckpt", ["tp-ckpt", "verify", str(ckpt)])
    out = b""
    try:
        while True:
            out += os.read(fd, 65536)
    except OSError:  # EIO: it has ended
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and b"intact: " in out, out
    assert (b"\x1b" in out) == erases, out


def test_resharding_prints_one_speed(ckpt, tmp_path):
    r = harness.ok("tp-reshard", ckpt, "--to", "tp1", "-o", tmp_path / "out")
    assert len(re.findall(r"[KMG]iB/s", r.out + r.err)) == 1, repr(r)


def writes_to_stderr(argv):
    """What each write gives: a packet of a pipe that keeps them apart."""
    read, write = os.pipe2(os.O_DIRECT)
    with subprocess.Popen(harness.command(argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=write):
        os.close(write)
        packets = list(iter(lambda: os.read(read, 65536), b""))
    os.close(read)
    return packets


def test_a_message_is_one_write(ckpt, tmp_path):
    """Those of several processes would mix. glibc 2.37 and later writes lines without a buffer in pieces of 128
    bytes."""
    for argv in (["tp-reshard", ckpt, "--to", "tp1", "-o", tmp_path / "out", "--json"],
                 ["tp-ckpt", "verify", tmp_path / "/".join(["absent" * 20] * 4)],
                 ["tp-ckpt", "export", ckpt, "-o", tmp_path / "hf"]):
        packets = writes_to_stderr(argv)
        assert packets and all(p.endswith(b"\n") for p in packets), packets


def test_with_json_progress_is_an_object_per_line(ckpt, tmp_path):
    """The last one of an action says that it is complete; notes are sentences beside them."""
    for argv, action in ((["tp-reshard", ckpt, "--to", "tp1", "-o", tmp_path / "a"], "copying"), (["tp-ckpt", "verify", ckpt], ""),
                         (["tp-ckpt", "export", ckpt, "-o", tmp_path / "hf"], "copying")):
        r = harness.ok(*argv, "--json")
        lines = [json.loads(line) for line in r.err.splitlines() if line.startswith("{")]
        assert lines and lines[-1]["action"] == action, r.err
        assert lines[-1]["bytes_done"] == lines[-1]["bytes_total"] > 0 == lines[-1]["seconds_left"]
        assert lines[-1]["bytes_copied"] == (lines[-1]["bytes_done"] if action else 0) and lines[-1]["bytes_cloned"] == 0


def test_a_shape_is_a_list_everywhere(ckpt):
    plan = json.loads(harness.ok("tp-reshard", ckpt, "--to", "tp1", "--dry-run", "--json").out)["plan"]
    tensors = json.loads(harness.ok("tp-ckpt", "show", ckpt, "--json").out)["tensors"]
    assert all(isinstance(n, int) for t in plan + tensors for n in t["shape"])
    assert [256, 64] in [t["shape"] for t in plan]


@pytest.mark.parametrize("argv, code", [
    (["tp-ckpt", "ls", "ABSENT", "--json"], 2), (["tp-ckpt", "show", "ABSENT", "--json"], 2),
    (["tp-ckpt", "verify", "ABSENT", "--json"], 2), (["tp-ckpt", "digest", "ABSENT", "--json"], 2),
    (["tp-ckpt", "diff", "ABSENT", "ABSENT", "--json"], 2), (["tp-ckpt", "export", "ABSENT", "--json"], 2),
    (["tp-ckpt", "import", "ABSENT", "-o", "OUT", "--json"], 2),
    (["tp-reshard", "ABSENT", "--to", "tp1", "--json"], 2), (["tp-reshard", "ABSENT", "--json"], 2),
    (["tp-ckpt", "verify", "--json", "--no-such-option"], 2),
], ids=lambda v: " ".join(v) if isinstance(v, list) else str(v))
def test_with_json_a_failure_is_an_object_too(argv, code, tmp_path):
    r = harness.run(*[str(tmp_path / a) if a in ("ABSENT", "OUT") else a for a in argv])
    assert r.rc == code and len(r.lines) == 1, repr(r)
    answer = json.loads(r.out)
    assert answer["exit"] == code and answer["error"] in r.err, repr(r)


def test_a_path_that_is_not_utf8_is_printed_as_json(ckpt, tmp_path):
    """Each object has the path with '?' for the byte, and the command does what it does without --json."""
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.rename(ckpt, folder)
    for argv, member in ((["tp-ckpt", "verify", folder], "path"), (["tp-ckpt", "diff", folder, folder], "b"),
                         (["tp-ckpt", "show", folder], "path"), (["tp-reshard", folder, "--to", "tp1"], "out"),
                         (["tp-ckpt", "export", folder, "-o", folder + b"-hf"], "out"), (["tp-ckpt", "show", folder + b"-hf"], "path"),
                         (["tp-ckpt", "import", folder + b"-hf", "-o", folder + b"-again"], "out")):
        r = harness.ok(*[os.fsdecode(a) for a in argv], "--json")
        assert "/caf?" in json.loads(r.out)[member], repr(r)


HOSTILE = "a\x1b]0;title\x07\n\x9b2Jb"
ESCAPED = r"a\x1b]0;title\x07\n\xc2\x9b2Jb"


def is_harmless(text):
    return all(c == "\n" or c.isprintable() for c in text)


def test_control_characters_of_a_path_do_not_reach_the_terminal(ckpt, tmp_path):
    folder = tmp_path / HOSTILE
    os.rename(ckpt, folder)
    for i, argv in enumerate((
            ["tp-ckpt", "verify", folder], ["tp-ckpt", "show", folder], ["tp-ckpt", "diff", folder, str(folder) + "0"],
            ["tp-reshard", folder, "--to", "tp1"], ["tp-ckpt", "export", folder, "-o", str(folder) + "-hf"],
            ["tp-ckpt", "show", str(folder) + "-hf"], ["tp-ckpt", "import", str(folder) + "-hf", "-o", str(folder) + "-again"],
            ["tp-reshard", str(folder) + "-hf", "--to", "tp2", "-o", str(folder) + "-dcp", "--format", "dcp"],
            ["tp-train", "--model", folder, "--data", folder, "--steps", 1], ["tp-run", str(folder) + ".yaml"])):
        r = harness.run(*argv)
        assert r.rc == (2 if i in (2, 8, 9) else 0), repr(r)
        assert is_harmless(r.out + r.err) and ESCAPED in r.out + r.err, repr(r)


def test_control_characters_of_an_unfinished_step_do_not_reach_the_terminal(ckpt):
    (ckpt / ("step-00000009.tmp-" + HOSTILE)).mkdir()
    out = harness.ok("tp-ckpt", "ls", ckpt).out
    assert is_harmless(out) and "step-00000009.tmp-" + ESCAPED in out and len(out.splitlines()) == 3, repr(out)


def test_a_failure_as_json_has_the_control_characters_of_a_path(tmp_path):
    r = harness.run("tp-ckpt", "verify", tmp_path / HOSTILE, "--json")
    assert r.rc == 2 and json.loads(r.out)["error"] == "%s: no such directory" % (tmp_path / HOSTILE), repr(r)
    assert is_harmless(r.err) and ESCAPED in r.err, repr(r)


@pytest.mark.parametrize("kind", ["tp", "dcp"])
def test_a_long_name_that_is_left_out_does_not_lose_the_report(trained, tmp_path, kind):
    """The name is cut after 159 bytes, in the middle of a character."""
    hf, name = tmp_path / "hf", "é" * 100
    harness.ok("tp-ckpt", "export", trained, "-o", hf)
    (file,) = hf.glob("*.safetensors")
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:end])
    head[name] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data) - end] * 2}
    text = json.dumps(head, ensure_ascii=False).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    r = harness.ok("tp-reshard", hf, "--to", "tp1", "--format", kind, "--ignore", name, "-o", tmp_path / "out", "--json")
    assert json.loads(r.out)["left_out"].startswith(name[:70]), repr(r)


def test_control_characters_of_a_tensors_name_do_not_reach_the_terminal(trained, tmp_path):
    """U+009B is allowed in a name, and starts an escape sequence in a terminal."""
    hf = tmp_path / "hf"
    harness.ok("tp-ckpt", "export", trained, "-o", hf)
    (file,) = hf.glob("*.safetensors")
    data = file.read_bytes()
    old, new = b"model.norm.weight", "model.norm\x9b2Jght".encode()
    assert len(old) == len(new) and data.count(old) == 1
    file.write_bytes(data.replace(old, new))
    out = harness.ok("tp-ckpt", "show", hf).out
    assert is_harmless(out) and r"norm\xc2\x9b2Jght" in out, repr(out)


def test_without_json_a_failure_prints_nothing_to_stdout(tmp_path):
    assert harness.run("tp-ckpt", "verify", tmp_path / "absent").out == ""
