"""What the training benchmarks share: the models, one run of tp-train, PyTorch or llm.c, alternating runs.

Most benchmarks train a Llama of 25.6 M parameters (hidden size 512, 8 layers, 8 heads, feed-forward size
1376, vocabulary 256) on batches of 4 x 256 bytes of a text that every Debian has; bench_models.py names
others. All programs start from the same weights, follow the same rules (docs/TRAINING.md) at a fixed
learning rate, and have one thread per process. Time is the CPU time of all ranks together, because other
work on the machine disturbs it least.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import typing

import llmc

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
LLAMA_160M = dict(CONFIG, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                  num_attention_heads=12, num_key_value_heads=12, vocab_size=32000)
GPT2_124M = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_layer": 12,
    "n_head": 12, "n_positions": 1024, "n_inner": 3072, "vocab_size": 50257,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.02,
}


class Work(typing.NamedTuple):
    """A model, the sequences of a step and the steps, of which the first `warm` are not measured."""
    config: dict
    batch: int = BATCH
    seq: int = SEQ
    steps: int = STEPS
    warm: int = WARM
    lr: float = 1e-3


class Run:
    """CPU seconds and wall seconds per measured step, the CPU seconds of the first step, the losses of all
    steps, a rank's peak bytes."""

    def __init__(self, cpu, wall, loss, rss, report="", first=None):
        self.cpu, self.wall, self.loss, self.rss = statistics.median(cpu), min(wall), loss, rss
        self.report, self.first = report, first

    def __str__(self):
        return "%.3f CPU s, first step %s, peak %.0f MiB, losses %s" % (
            self.cpu, "%.3f" % self.first if self.first else "?", self.rss / 2**20,
            " ".join("%.6f" % x for x in self.loss))

    @property
    def sent(self):
        """(messages, bytes as text) of a step of rank 0, which tp-train prints at its start."""
        found = re.search(r"communication per step.* total (\d+) \((.*?)\)", self.report)
        return (int(found.group(1)), found.group(2)) if found else (0, "0 B")

    @property
    def said(self):
        """The memory per rank that tp-train printed, as text."""
        return re.search(r"memory per rank:.*total (\S+ \w+)", self.report).group(1)


class Bench:
    """The weights in a Hugging Face folder, and the programs that train them."""

    def __init__(self, python, work=Work(CONFIG), llmc_folder=None):
        self.python = python if python and pathlib.Path(python).exists() else None
        self.work = work
        self.tmp = tempfile.TemporaryDirectory(prefix="tp-bench-")
        self.folder = pathlib.Path(self.tmp.name)
        self.data, self.tokens = self.write_data()
        config = self.folder / "config.json"
        config.write_text(json.dumps(work.config))
        first = self.folder / "first"
        subprocess.run([BIN / "tp-train", "--model", config, "--data", self.data, "--steps", "1", "--lr",
                        "0", "--min-lr", "0", "--batch", "1", "--ckpt", first, "-q"],
                       check=True, stderr=subprocess.DEVNULL)
        self.weights = self.folder / "hf"
        subprocess.run([BIN / "tp-ckpt", "export", first, "--format", "safetensors", "-o",
                        self.weights], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        shutil.rmtree(first)
        self.llmc = self.llmc_checkpoint = None
        if llmc_folder and self.has("safetensors"):
            self.llmc = llmc.build(llmc_folder, self.folder)
            self.llmc_checkpoint = self.folder / "llmc.bin"
            subprocess.run([self.python, llmc.__file__, self.weights, self.llmc_checkpoint], check=True)

    def write_data(self):
        """(--data of tp-train, the file of tokens): bytes of the text, or for a larger vocabulary a token
        for each two bytes, as Megatron-LM's pair of files."""
        vocab = self.work.config["vocab_size"]
        if vocab <= 1024:
            return DATA, DATA
        text = open(DATA, "rb").read()
        tokens = [(a * 256 + b) % vocab for a, b in zip(text, text[1:])]
        prefix = self.folder / "tokens"
        with open(str(prefix) + ".bin", "wb") as f:
            f.write(struct.pack("<%dH" % len(tokens), *tokens))
        with open(str(prefix) + ".idx", "wb") as f:  # one document
            f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, len(tokens), 0, 0, 1))
        return prefix, str(prefix) + ".bin"

    def run(self, cpu, wall, loss, rss, report=""):
        warm = self.work.warm
        return Run(cpu[warm:], wall[warm:], loss, rss, report, cpu[0])

    def tp(self, layout, *flags):
        log, w = self.folder / "log", self.work
        p = subprocess.run(
            [BIN / "tp-train", "--model", self.weights, "--data", self.data, "--steps", str(w.steps),
             "--batch", str(w.batch), "--seq", str(w.seq), "--layout", layout, "--warmup", "0", "--lr",
             str(w.lr), "--min-lr", str(w.lr), "--threads", "1", "--log", log, *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise SystemExit("tp-train --layout %s %s:\n%s" % (layout, " ".join(flags), p.stderr))
        steps = [json.loads(line) for line in open(log)]
        return self.run([x["cpu_seconds"] for x in steps], [x["seconds"] for x in steps],
                        [x["loss"] for x in steps], steps[-1]["peak_rss_bytes"], p.stderr)

    def has(self, module):
        """Whether the python of --torch has a module."""
        return self.python and subprocess.run([self.python, "-c", "import " + module],
                                              stderr=subprocess.DEVNULL).returncode == 0

    def torch(self, mode, bf16=False):
        w = self.work
        words = {"config": w.config, "folder": str(self.weights), "data": self.tokens, "mode": mode,
                 "ranks": 2, "batch": w.batch, "seq": w.seq, "steps": w.steps, "lr": w.lr, "bf16": bf16}
        p = subprocess.run([self.python, pathlib.Path(__file__).parent / "torch_training.py",
                            json.dumps(words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True)
        if p.returncode:
            raise SystemExit("PyTorch, %s:\n%s" % (mode, p.stderr))
        r = json.loads(p.stdout.splitlines()[-1])
        return self.run(r["cpu"], r["wall"], r["loss"], max(r["rss"]))

    def llmc_fp32(self):
        w = self.work
        out = subprocess.run([self.llmc, self.llmc_checkpoint, self.tokens, str(w.batch), str(w.seq),
                              str(w.steps), str(w.lr)], check=True, stdout=subprocess.PIPE, text=True,
                             env=dict(os.environ, OMP_NUM_THREADS="1")).stdout
        loss, cpu, wall, rss = zip(*(map(float, x.split()[1:]) for x in out.splitlines()
                                     if x.startswith("step ")))
        return self.run(cpu, wall, loss, rss[-1])


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
            if isinstance(done[name][-1], Run):
                print(name, done[name][-1], file=sys.stderr, flush=True)
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
