"""What the training benchmarks share: the model, one run of tp-train or of PyTorch, alternating runs.

The model is a Llama of 25.6 M parameters (hidden size 512, 8 layers, 8 heads, feed-forward size 1376,
vocabulary 256). A batch has 4 x 256 tokens of a text that every Debian has. All programs start from the
same weights, follow the same rules (docs/TRAINING.md) at a fixed learning rate, and have one thread per
process. Time is the CPU time of all ranks together, because other work on the machine disturbs it least.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("TP_BIN") or REPO / "bin")
BUILD = pathlib.Path(os.environ.get("TP_BUILD") or REPO / "build/plain")
DATA = "/usr/share/common-licenses/GPL-3"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 256,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "initializer_range": 0.02,
}
BATCH, SEQ, STEPS, WARM = 4, 256, 6, 2
TOKENS = BATCH * SEQ
MATMUL = 8 * (4 * 512 * 512 + 3 * 512 * 1376) + 256 * 512
FLOPS = TOKENS * (6 * MATMUL + 12 * 8 * 512 * SEQ)  # PaLM's count


class Run:
    """CPU seconds and wall seconds per measured step, the losses of all steps, a rank's peak bytes."""

    def __init__(self, cpu, wall, loss, rss, report=""):
        self.cpu, self.wall, self.loss, self.rss = statistics.median(cpu), min(wall), loss, rss
        self.report = report

    @property
    def sent(self):
        """(messages, bytes as text) of a step of rank 0, which tp-train prints at its start."""
        found = re.search(r"messages of a step.* together (\d+) \((.*?)\)", self.report)
        return (int(found.group(1)), found.group(2)) if found else (0, "0 B")

    @property
    def said(self):
        """The bytes of a rank that tp-train printed, as text."""
        return re.search(r"bytes of a rank:.*together (\S+ \w+)", self.report).group(1)


class Bench:
    """The weights in a Hugging Face folder, and the programs that train them."""

    def __init__(self, python):
        self.python = python if python and pathlib.Path(python).exists() else None
        self.tmp = tempfile.TemporaryDirectory(prefix="tp-bench-")
        self.folder = pathlib.Path(self.tmp.name)
        config = self.folder / "config.json"
        config.write_text(json.dumps(CONFIG))
        first = self.folder / "first"
        subprocess.run([BIN / "tp-train", "--model", config, "--data", DATA, "--steps", "1",
                        "--lr", "0", "--min-lr", "0", "--ckpt", first, "-q"],
                       check=True, stderr=subprocess.DEVNULL)
        self.weights = self.folder / "hf"
        subprocess.run([BIN / "tp-ckpt", "export", first, "--format", "safetensors", "-o",
                        self.weights], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def tp(self, layout, *flags):
        log = self.folder / "log"
        p = subprocess.run(
            [BIN / "tp-train", "--model", self.weights, "--data", DATA, "--steps", str(STEPS),
             "--batch", str(BATCH), "--seq", str(SEQ), "--layout", layout, "--warmup", "0", "--lr",
             "1e-3", "--min-lr", "1e-3", "--threads", "1", "--log", log, *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise SystemExit("tp-train --layout %s %s:\n%s" % (layout, " ".join(flags), p.stderr))
        steps = [json.loads(line) for line in open(log)]
        return Run([x["cpu_seconds"] for x in steps[WARM:]], [x["seconds"] for x in steps[WARM:]],
                   [x["loss"] for x in steps], steps[-1]["peak_rss_bytes"], p.stderr)

    def has(self, module):
        """Whether the python of --torch has a module."""
        return self.python and subprocess.run([self.python, "-c", "import " + module],
                                              stderr=subprocess.DEVNULL).returncode == 0

    def torch(self, mode, bf16=False):
        words = {"config": CONFIG, "folder": str(self.weights), "data": DATA, "mode": mode, "ranks": 2,
                 "batch": BATCH, "seq": SEQ, "steps": STEPS, "bf16": bf16}
        p = subprocess.run([self.python, pathlib.Path(__file__).parent / "torch_llama.py",
                            json.dumps(words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True)
        if p.returncode:
            raise SystemExit("PyTorch, %s:\n%s" % (mode, p.stderr))
        r = json.loads(p.stdout.splitlines()[-1])
        return Run(r["cpu"][WARM:], r["wall"][WARM:], r["loss"], max(r["rss"]))


def arguments(doc, rounds):
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("--rounds", type=int, default=rounds)
    p.add_argument("--torch", default=REPO / ".venv/bin/python", metavar="PYTHON",
                   help="a python that has torch and safetensors (.venv/bin/python)")
    return p


def in_turn(runs, rounds):
    """{name: [a Run per round]} for {name: function}. Each round runs each once, so that other work on the
    machine affects all."""
    done = {name: [] for name in runs}
    for i in range(rounds):
        for name, run in runs.items():
            done[name].append(run())
        print("round %d of %d, load %.1f" % (i + 1, rounds, os.getloadavg()[0]), file=sys.stderr)
    return done


def cpu(runs):
    return statistics.median(r.cpu for r in runs)


def ratio(theirs, ours):
    """Their CPU seconds divided by ours: the median over the rounds."""
    return statistics.median(a.cpu / b.cpu for a, b in zip(theirs, ours))


def farthest(runs, first):
    """The largest difference of a loss from that of `first`."""
    return max(abs(a - b) for r in runs for a, b in zip(r.loss, first.loss))


def machine():
    model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())
    return "%s, %d processors, load %.1f" % (model.group(1) if model else "?", os.cpu_count(),
                                             os.getloadavg()[0])
