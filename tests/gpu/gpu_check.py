#!/usr/bin/env python3
"""tests/gpu/gpu_check.py - everything that only a GPU can show, in one report; `make gpu-check` runs it.

    gpu_check.py --build BUILD --bin BIN --out FOLDER [--seconds 600] [--small] [--only PART,...] [--at-once N]

Each part is a function below. A part that fails, takes too long, or needs what is not installed says so, and the next one
runs. FOLDER gets report.txt, report.json, and the output of every command. Parts that measure no speed run side by side, up
to N of them: four on a machine with eight cores and more, else one. --small: sizes for the fake CUDA device, on which the
script itself is tested.

The report is written anew whenever something was found, so SIGKILL leaves what was found by then. SIGTERM, Ctrl-C and a terminal
that closes also end what runs.

Exit code: 0 all parts passed; 1 a part failed, tp-train was not built, or a signal came; 2 the request is wrong; 3 there is no GPU
that can be used; 4 no part failed, and some did not run or ran in part.
"""
import argparse
import concurrent.futures
import contextlib
import copy
import functools
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import kernel_times
from commands import Commands, end_session
from findings import Failed, Findings, Late, Missing, NoGpu, TimeOver
from machine import gpu_name, n_gpus, state, versions
from report import Report, totals_of, write_whole
from training_goals import EXPERTS, GPT2_124M, GPT2_TINY, HEADS_OF_64, LLAMA_1B, TINY, judge_training

REPO = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = REPO / "lib/libtp-cuda.so"
BUNDLED = REPO / "lib/bundled"  # shared libraries of our programs, where bundle.py has brought them along
NVIDIA_LIBRARIES = ("libcublas.so.13", "libcublasLt.so.13", "libnccl.so.2", "libcupti.so.13")
MODELS = {"tiny": TINY, "gpt2-tiny": GPT2_TINY, "experts": EXPERTS, "heads-of-64": HEADS_OF_64}
SEQS = {"heads-of-64": 256}  # 32 for others
SANITIZED = {"tiny": TINY, "gpt2-tiny": GPT2_TINY}
TOLERANCES = {"fp32": 1e-5, "bf16": 2e-2}  # relative, of a loss
LAYOUTS = ("tp2", "pp2", "cp2", "dp2", "tp2pp2", "dp2zero3", "ep2dp2")  # ep2dp2: a mixture of experts
# How several ranks use one GPU: NCCL takes ranks with different host names for ranks of different hosts, which then
# communicate by sockets; tp-train adds each rank's number to NCCL_HOSTID. Timings of such runs mean nothing. Where each
# rank has a GPU of its own, NCCL chooses everything itself.
OWN_GPUS = {"NCCL_DEBUG": "WARN"}
SHARED_GPU = {"NCCL_HOSTID": "rank", "NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
              "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_RAS_ENABLE": "0",
              "NCCL_MAX_CTAS": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_DEBUG": "WARN"}

KERNEL_TESTS = ("kernels_cuda", "kernels_cuda_products", "kernels_cuda_experts", "kernels_cuda_head_norm", "kernels_cuda_loss",
                "kernels_cuda_optimizer")
# Those that compute-sanitizer does not run: kernels_cuda_shapes has sizes of models, for which it takes too long.
ALL_KERNEL_TESTS = ("device_cuda_graph", *KERNEL_TESTS, "kernels_cuda_shapes")

OF_BUILD = ("gpu_check", "libkernel_times.so")  # not in its folder tests

# Seconds of ten minutes that a part may take although others come after it; 90 where nothing is said. PyTorch compiles its models
# in training, which may use up all time, so it comes late.
SHARES = {"kernels": 150, "losses": 120, "layouts": 180, "training": 330, "sanitizer": 150}
ALL_SHARES = 600


def share_of(part):
    return SHARES.get(part.__name__, 90)


def nvidia_folders():
    """Where cuBLAS and NCCL may be, if the system's loader does not know: PyPI's packages, which PyTorch uses, and the toolkit."""
    ask = "import nvidia; print(*nvidia.__path__, sep='\\n')"
    for python in filter(None, (shutil.which("python3"), sys.executable)):
        r = subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        for root in r.stdout.splitlines():
            yield from sorted(pathlib.Path(root).glob("*/lib"))
    yield from (pathlib.Path("/usr/local/cuda", name) for name in ("lib64", "lib"))


def own_environment():
    """What our programs need to find libtp-cuda.so and, in a bundle, their libraries and NVIDIA's."""
    env = {} if os.environ.get("TP_CUDA_LIBRARY") or not LIBRARY.exists() else {"TP_CUDA_LIBRARY": str(LIBRARY)}
    if BUNDLED.exists():
        folders = [BUNDLED, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        folders += [f for f in nvidia_folders() if any((f / n).exists() for n in NVIDIA_LIBRARIES)]
        env["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(map(str, folders)))
    return env


def rest_of(process):
    """What a process that was killed had printed. Another one, which left its session or which the driver holds, may keep the
    pipe open."""
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired as e:
        return "a process cannot be ended\n" + (e.stdout or b"").decode(errors="replace")


class Check:
    def __init__(self, options):
        self.options = options
        self.out = options.out.resolve()
        self.bin, self.build = options.bin.resolve(), options.build.resolve()
        self.end = self.deadline = time.monotonic() + options.seconds
        self.numbers = itertools.count(1)
        self.patience = 1  # how many times longer than in ten minutes a command may take
        self.commands = Commands()
        self.log_ends = []  # of commands of this part that failed
        self.found = lambda row: None  # called when this part has found something
        self.own_env = own_environment()

    def of(self, part, later):
        """What a part uses: it has its share of the time, or all that those after it leave, whose shares are `later` in all. Small
        runs are those of tests, whose machine may be busy."""
        own = copy.copy(self)
        scale, now = self.options.seconds / ALL_SHARES, time.monotonic()
        seconds = self.options.seconds if self.options.small else max(share_of(part) * scale, self.end - now - later * scale)
        own.log_ends = []
        own.deadline = min(self.end, now + seconds)
        own.patience = max(1, (own.deadline - now) / share_of(part))
        return own

    def run(self, *argv, seconds=120, env=None, absent=None):
        """Run a command and return its output, which a file of `out` also gets. seconds: that it may take in ten minutes; absent: its
        exit code if something is missing."""
        left, seconds = self.deadline - time.monotonic(), seconds * self.patience
        if left <= 1:
            raise Missing("no time was left")
        log = self.out / ("%02d-%s.log" % (next(self.numbers), pathlib.Path(str(argv[0])).name))
        if any(folder in pathlib.Path(str(a)).parents for a in argv for folder in (self.bin, self.build)):
            env = {**self.own_env, **(env or {})}  # of others, the libraries are the machine's
        try:
            p = self.commands.begin([str(a) for a in argv], env={**os.environ, **(env or {})}, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.out, text=True, errors="replace")
        except OSError as e:
            raise Missing(str(e)) from e
        if not p:
            raise Missing("%s ended the check" % self.commands.ended_by)
        try:
            text, _ = p.communicate(timeout=min(seconds, left))
        except subprocess.TimeoutExpired as e:
            end_session(p.pid)
            text = rest_of(p)
            log.write_text(text)
            self.log_ends.append(end_of(log.name, text))
            if left < seconds:
                raise TimeOver("%s took more than %d s, and no time was left" % (argv[0], left)) from e
            raise Late("%s took more than %d s" % (argv[0], seconds)) from e
        finally:
            self.commands.forget(p)
        log.write_text(" ".join(map(str, argv)) + "\n" + text)
        if p.returncode < 0 and self.commands.ended_by:
            raise Missing("%s ended the check" % self.commands.ended_by)
        if p.returncode == absent:
            raise Missing(last_line(text) or "exit %d" % absent)
        if p.returncode != 0:
            self.log_ends.append(end_of(log.name, text))
            raise Failed("%s: exit %d: %s (all of it is in %s)" % (argv[0], p.returncode, last_line(text), log.name))
        return text

    def program(self, name):
        folder = self.bin if name.startswith("tp-") else self.build if name in OF_BUILD else self.build / "tests"
        path = folder / name
        if not path.exists():
            raise Missing("%s was not built" % path)
        return path

    def config(self, name, model):
        folder = self.out / name
        folder.mkdir(exist_ok=True)
        write_whole(folder / "config.json", json.dumps(model).encode())
        return folder / "config.json"

    def text(self):
        path = self.out / "text"
        if not path.exists():
            write_whole(path, b"".join(b"%d: the quick brown fox jumps over %d lazy dogs\n" % (i, i * i % 97)
                                       for i in range(40000)))
        return "bytes:%s" % path

    def train(self, name, *options, steps, env=None, seconds=120):
        """The steps that a training run has logged, all of them. The log is new, so that no step is of another run."""
        log = self.out / (name.replace(" ", "-") + ".jsonl")
        log.unlink(missing_ok=True)
        self.run(self.program("tp-train"), *options, "--data", self.text(), "--steps", steps, "--quiet", "--log", log, env=env,
                 seconds=seconds)
        logged = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        if [x.get("step") for x in logged] != list(range(steps)):
            raise Failed("%s has steps %s, and %d were trained" % (log.name, [x.get("step") for x in logged], steps))
        return logged


@functools.lru_cache(None)
def torch_python():
    """A Python that has PyTorch: the shell's, the system's, or that of tools/setup.sh; None. Where none has it, that is not asked
    again, because a Python that does not answer takes long."""
    # torch.cuda: the source tree has a folder torch, which Python takes for a package without files.
    for python in filter(None, dict.fromkeys((shutil.which("python3"), sys.executable, str(REPO / ".venv/bin/python")))):
        try:
            subprocess.run([python, "-c", "import torch.cuda"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=60)
            return python
        except (OSError, subprocess.SubprocessError):
            pass
    return None


def torch_speed(c, *argv):
    """What torch_speed.py prints."""
    if not torch_python():
        raise Missing("PyTorch is not installed")
    last = c.run(torch_python(), HERE / "torch_speed.py", *argv, seconds=240, absent=3).strip().rpartition("\n")[2]
    try:
        return json.loads(last)
    except ValueError as e:
        raise Failed("torch_speed.py printed no figures: %s" % last) from e


def end_of(name, text):
    """The last lines of what a command printed, for the report."""
    return "%s ends with:\n%s" % (name, "\n".join("    " + line[:300] for line in text.splitlines()[-20:]))


def last_line(text):
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


# ---- the parts: each returns {figure: value} or Findings ----

def device(c):
    """The GPU and its state, the versions of driver and libraries, and that tp-train can use it."""
    findings = Findings(c.found)
    with findings.attempt("versions", not_run=(Missing, Failed)):  # if it cannot even start, the parts that need it fail
        findings.figures.update(versions(c))
    with findings.attempt("the state of the GPU"):
        findings.figures.update(state(c))
    try:
        steps = c.train("first", "--model", c.config("tiny", TINY), "--device", "cuda", "--batch", 2, "--seq", 16, steps=2)
    except Failed as e:
        if "--device cuda: " in str(e):  # the GPU could not be opened
            raise NoGpu(str(e)) from e
        raise Failed(str(e), findings.figures, findings.not_run) from e
    findings.figures["first_loss"] = steps[0]["loss"]
    return findings


def kernels(c):
    """The kernels of copies and casts, bit for bit, every other operation against the CPU's, and graphs."""
    findings = Findings(c.found)
    if not c.options.small:
        with findings.attempt("gpu_check"):
            findings.figures["gpu_check"] = c.run(c.program("gpu_check"), absent=3).splitlines()[1:]
    for name in ALL_KERNEL_TESTS:
        with findings.attempt(name):
            findings.figures[name] = last_line(c.run(c.program(name), "--timeout=%d" % (60 * c.patience)))
    return findings


def sanitizer(c):
    """compute-sanitizer's tools on the kernels of copies and casts, memcheck on training runs with CUDA graphs; then, as far as time
    goes, all tools on all tests of kernels."""
    sanitize = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if not sanitize:
        raise Missing("compute-sanitizer is not installed")
    findings, tools, ran = Findings(c.found), ("memcheck", "racecheck", "initcheck", "synccheck"), []

    def check(tool, what, *command, absent=None):
        with findings.attempt("%s of %s" % (tool, what), not_run=(Missing, Late)):  # each test of a program is a process of its own
            text = c.run(sanitize, "--tool", tool, "--target-processes", "all", "--error-exitcode", "1", c.program(command[0]),
                         *command[1:], seconds=90, absent=absent)
            if summary := re.search(r"SUMMARY: [1-9].*", text):
                raise Failed(summary[0])
            ran.append(what)
            findings.figures["runs"] = len(ran)

    def check_all(tool):
        check(tool, "gpu_check", "gpu_check", "--quick", absent=3)
        for name, model in SANITIZED.items() if tool == "memcheck" else ():
            check(tool, "training " + name, "tp-train", "--model", c.config(name, model), "--data", c.text(), "--device", "cuda", "--dtype",
                  "bf16", "--steps", 4, "--batch", 2, "--seq", 16, "--quiet")
        for name in KERNEL_TESTS:
            check(tool, name, name)

    with concurrent.futures.ThreadPoolExecutor(c.options.at_once) as pool:
        list(pool.map(check_all, tools))
    return findings


def n_ranks(layout):
    """The ranks of ep are among those of dp."""
    return math.prod(int(n) for axis, n in re.findall(r"([a-z]+)(\d+)", layout) if axis in ("tp", "pp", "cp", "dp"))


def gpus_of_ranks(some, n):
    """How the ranks of some layouts use n GPUs. tp-train gives rank i GPU i, modulo their number."""
    if n is None:
        return "how many GPUs there are is not known, so all were started as if ranks shared one"
    shared = [layout for layout in some if n_ranks(layout) > n]
    if not shared or n == 1:
        return "all share a GPU" if shared else "each has one of %d GPUs" % n
    own = [layout for layout in some if layout not in shared]
    return "; ".join(filter(None, ["each has one of %d GPUs: %s" % (n, ", ".join(own)) if own else "",
                                   "they share %d GPUs: %s" % (n, ", ".join(shared))]))


def layouts(c):
    """Several NCCL ranks have the CPU's losses: each has a GPU where there are as many, otherwise they share. From step 3 on, steps
    are CUDA graphs."""
    findings, n = Findings(c.found), n_gpus(c)
    for layout in LAYOUTS:
        with findings.attempt(layout):
            env = OWN_GPUS if n_ranks(layout) <= (n or 1) else SHARED_GPU
            findings.figures[layout] = difference(c, "experts" if "ep" in layout else "tiny", layout, "fp32", env)
    if findings.figures or findings.wrong:
        findings.figures["ranks"] = gpus_of_ranks(LAYOUTS, n)
    return findings


def losses(c):
    """One rank, which needs no NCCL, has the CPU's losses, in both types. From step 3 on, steps are CUDA graphs."""
    findings = Findings(c.found)
    for name in MODELS:
        for dtype in TOLERANCES:
            with findings.attempt("%s %s" % (name, dtype)):
                findings.figures["%s %s" % (name, dtype)] = difference(c, name, "tp1", dtype, {})
    return findings


def losses_of(steps):
    """tp-train logs a loss that is NaN or infinite as null."""
    return [math.nan if x["loss"] is None else x["loss"] for x in steps]


def difference(c, name, layout, dtype, env):
    """The largest relative difference of a run's losses from the CPU's."""
    common = ["--model", c.config(name, MODELS[name]), "--layout", layout, "--dtype", dtype, "--batch", 4, "--seq",
              SEQS.get(name, 32) if not c.options.small else 8, "--warmup", 1]
    run = "-".join((name, layout, dtype))
    cpu = losses_of(c.train(run + "-cpu", *common, steps=5))
    on_gpu = [*common, "--device", "cuda"]
    try:
        gpu = losses_of(c.train(run + "-cuda", *on_gpu, steps=5, env=env, seconds=60))
    except Failed as e:
        raise Failed("%s; without CUDA graphs: %s" % (e, without_graphs(c, run, on_gpu, env))) from e
    apart = [abs(a - b) / abs(a) for a, b in zip(cpu, gpu)]
    if not all(x <= TOLERANCES[dtype] for x in apart):  # a NaN is not, and max() may pass over it
        raise Failed("losses %s, the CPU's %s" % (gpu, cpu))
    return max(apart)


def without_graphs(c, run, options, env):
    """How a run ends that has failed with graphs."""
    try:
        c.train(run + "-queued", *options, "--cuda-graphs", "off", steps=5, env=env, seconds=60)
        return "it ends well"
    except (Missing, Failed) as e:
        return str(e)


def reshard(c):
    """tp-reshard writes the same files on both; its speed."""
    root = c.out / "ckpt"
    shutil.rmtree(root, ignore_errors=True)
    model = c.config("tiny", TINY) if c.options.small else c.config("gpt2-124m", GPT2_124M)
    c.run(c.program("tp-train"), "--model", model, "--data", c.text(), "--device", "cuda", "--dtype", "bf16", "--steps", 1,
          "--batch", 1, "--seq", 16, "--quiet", "--ckpt", root)
    found = {}
    for on in ("cpu", "cuda"):
        shutil.rmtree(c.out / ("ckpt-" + on), ignore_errors=True)
        text = c.run(c.program("tp-reshard"), root, "--to", "tp2", "-o", c.out / ("ckpt-" + on), "--device", on, "--json",
                     *(["--device-mem", "1M"] if c.options.small else []))
        done, _ = json.JSONDecoder().raw_decode(text[text.index("{\n"):])  # progress lines are objects, too
        found[on + "_GB_per_s"] = done["bytes_written"] / max(done["seconds"], 1e-9) / 1e9
    c.run(c.program("tp-ckpt"), "diff", c.out / "ckpt-cpu", c.out / "ckpt-cuda")
    remove(root, c.out / "ckpt-cpu", c.out / "ckpt-cuda")
    return found


def remove(*roots):
    """Checkpoints of 124M parameters, 1.7 GB each, are no part of a report that is sent. Those of a part that fails stay."""
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)


def measured(c, option, pattern, row_of):
    """[row_of(match)] of the lines that gpu_check prints with an option."""
    text = c.run(c.program("gpu_check"), option, absent=3)
    rows = [row_of(m) for m in map(re.compile(pattern).match, text.splitlines()) if m]
    if not rows:
        raise Failed("gpu_check %s printed no figures: %s" % (option, last_line(text)))
    return rows


SHORT_ROWS = re.compile(r"a quarter of rows of 256 B|table of \d+: rows of 64 f32 ")  # of fewer than 512 bytes, in gpu_check.cu


def bandwidth(c):
    """Gather, split and cast in GB/s beside the best copy of contiguous bytes on the card. The goal is 85 % for rows of 512
    bytes and more."""
    rows = dict(measured(c, "--bandwidth", r"(.*?\S) +(\d+) GB/s(?: +cudaMemcpy2DAsync +(\d+) GB/s)?",
                         lambda m: (m[1], {"GB_per_s": int(m[2]), "cudaMemcpy2DAsync": int(m[3]) if m[3] else None})))
    card = rows.get("best contiguous copy", {}).get("GB_per_s")
    for what, row in rows.items():
        row["of_card"] = row["GB_per_s"] / card if card else None
        row["is_85_percent"] = row["of_card"] >= 0.85 if card and not SHORT_ROWS.match(what) else None
    return rows


def attention(c):
    """TFLOP/s of causal attention in bf16, beside PyTorch's."""
    findings = Findings(c.found)
    findings.figures["ours"] = measured(
        c, "--attention", r"attention seq (\d+) head_dim (\d+) forward ([\d.]+) backward ([\d.]+)",
        lambda m: {"seq": int(m[1]), "head_dim": int(m[2]), "forward": float(m[3]), "backward": float(m[4])})
    with findings.attempt("PyTorch", not_run=(Missing, Failed)):
        findings.figures["pytorch"] = torch_speed(c, "attention")
    return findings


def experts(c):
    """TFLOP/s of a bf16 product of 128 experts, as one call of cuBLAS and as a call for each expert."""
    return {"ours": measured(c, "--experts", r"experts (\d+) rows (\d+) together ([\d.]+) apart ([\d.]+)",
                             lambda m: {"experts": int(m[1]), "rows": int(m[2]), "together": float(m[3]), "apart": float(m[4])})}


# Modes of torch_speed.py for models of a type: first those that the goals need. They come after all of ours, because the last
# one compiles for more than 90 seconds.
OF_PYTORCH = [("gpt2", "compile"), ("llama", "compile_layers"), ("all", "eager"), ("gpt2", "compile_layers"), ("llama", "compile")]


def training(c):
    """Tokens per second, with CUDA graphs and without, and the part of the GPU's peak, bf16, one GPU, beside PyTorch's eager
    model, and compiled ones: each layer, and, where time is left, the whole model."""
    sizes = [("gpt2-124m", GPT2_124M, 1024, 16), ("gpt2-124m", GPT2_124M, 4096, 4), ("llama-1b", LLAMA_1B, 1024, 8),
             ("llama-1b", LLAMA_1B, 4096, 2)]
    if c.options.small:
        sizes = [("tiny", TINY, 16, 2)]
    findings, gpu = Findings(c.found), gpu_name(c)
    for name, model, seq, batch in sizes:
        what = "%s, sequence %d" % (name, seq)
        with findings.attempt(what):
            for graphs, key in ("off", "tokens_per_s_without_graphs"), ("on", "tokens_per_s"):
                steps = c.train("%s-%d-graphs-%s" % (name, seq, graphs), "--model", c.config(name, model), "--device", "cuda", "--dtype",
                                "bf16", "--batch", batch, "--seq", seq, "--cuda-graphs", graphs, steps=6, seconds=90)
                findings.figures.setdefault(what, {})[key] = max(x["tokens_per_s"] for x in steps)
    train_pytorch(c, findings, sizes)
    for name, model, seq, _ in sizes:
        if row := findings.figures.get("%s, sequence %d" % (name, seq)):
            judge_training(row, model, seq, gpu)
    return findings


def train_pytorch(c, findings, sizes):
    """Add PyTorch's figures, or why there are none."""
    if not torch_python():
        findings.not_run.append("PyTorch is not installed")
        return
    for kind, mode in OF_PYTORCH:
        for name, _, seq, batch in (size for size in sizes if kind in ("all", size[1]["model_type"])):
            what = "%s, sequence %d" % (name, seq)
            with findings.attempt("PyTorch, %s, %s" % (mode, what), not_run=(Missing, Failed)):
                figure = torch_speed(c, "train", c.out / name, seq, batch, mode)["tokens_per_s"]
                findings.figures.setdefault(what, {})["pytorch_" + mode] = figure


def step_times(c):
    """Where the time of a training step goes, by kernel: ms and launches of GPT-2 124M in bf16, with CUDA graphs, by CUPTI."""
    library, times = c.program("libkernel_times.so"), c.out / "kernel-times.tsv"
    times.unlink(missing_ok=True)
    small = c.options.small
    model = c.config("gpt2-tiny", GPT2_TINY) if small else c.config("gpt2-124m", GPT2_124M)
    c.train("step-times", "--model", model, "--device", "cuda", "--dtype", "bf16", "--batch", 2 if small else 16, "--seq",
            16 if small else 1024, steps=6, env={"CUDA_INJECTION64_PATH": str(library), "KERNEL_TIMES": str(times)})
    if not times.exists():
        raise Missing("CUDA did not load %s" % library)
    return kernel_times.summary(times)


def saving(c):
    """The seconds by which a save delays a step, also one that begins while the one before is still written, and how fast a run
    resumes, with its start and a step."""
    root = c.out / "saves"
    shutil.rmtree(root, ignore_errors=True)
    model = c.config("tiny", TINY) if c.options.small else c.config("gpt2-124m", GPT2_124M)
    common = ["--model", model, "--device", "cuda", "--dtype", "bf16", "--batch", 4, "--seq", 16 if c.options.small else 1024, "--ckpt",
              root]
    stalls = [x["save_seconds"] for x in c.train("saves", *common, "--save-every", 2, steps=6)]
    n_bytes = sum(f.stat().st_size for f in max(root.glob("step-*")).iterdir())
    start = time.monotonic()
    c.run(c.program("tp-train"), *common, "--data", c.text(), "--steps", 7, "--resume=must", "--quiet")
    seconds = time.monotonic() - start
    remove(root)
    return {"save_stall_s": stalls[1], "longest_save_stall_behind_another_s": max(stalls), "resume_and_one_step_s": seconds,
            "resume_GB_per_s_with_start_and_step": n_bytes / seconds / 1e9}


# They measure no speed. Ranks that share a GPU wait for each other with running kernels, beside which all else is slow.
SIDE_BY_SIDE = [kernels, losses, sanitizer]
PARTS = [device, *SIDE_BY_SIDE, layouts, reshard, bandwidth, attention, experts, step_times, saving, training]


# ---- all parts ----

def run_part(c, part):
    """A row of the report."""
    start = time.monotonic()
    try:
        found = part(c)
        row = found.row() if isinstance(found, Findings) else {"status": "passed", "figures": found}
    except Missing as e:
        row = {"status": "not run", "why": str(e), "is_end": isinstance(e, NoGpu)}
    except Failed as e:
        row = {"status": "FAILED", "why": str(e), "figures": e.figures, **({"not_run": e.not_run} if e.not_run else {})}
    except Exception as e:  # a part must not end the others
        row = {"status": "FAILED", "why": "%s: %s" % (type(e).__name__, e)}
    if row["status"] != "passed" and c.log_ends:
        row["log_ends"] = c.log_ends
    row["seconds"] = round(time.monotonic() - start, 1)
    why = row.get("why") or "; ".join("did not run: " + what for what in row.get("not_run", []))
    say("\n".join(["%-8s %-10s %6.1f s  %s" % (row["status"], part.__name__, row["seconds"], why), *row.get("log_ends", [])]))
    return row


def say(text):
    """Also where nobody listens any more: the report has it all."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def groups_of(parts, at_once):
    """Lists of parts that run side by side."""
    for is_beside, some in itertools.groupby(parts, lambda part: part in SIDE_BY_SIDE):
        some, n = list(some), at_once if is_beside else 1
        yield from (some[i:i + n] for i in range(0, len(some), n))


def run_group(c, report, parts, later):
    """Whether other parts would find anything. later: the shares of those after these."""
    def run(part):
        own, start = c.of(part, later), time.monotonic()
        own.found = lambda row: report.put(part.__name__, {**row, "seconds": round(time.monotonic() - start, 1)})
        own.found({"status": "not run", "why": "it had not ended"})
        row = run_part(own, part)
        is_end = row.pop("is_end", False)
        report.put(part.__name__, row)
        return is_end

    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        return not any(list(pool.map(run, parts)))


def exit_code(rows, is_ended):
    if is_ended or any(r["status"] == "FAILED" or (r["part"] == "device" and r["status"] == "not run") for r in rows):
        return 1
    return 0 if all(r["status"] == "passed" for r in rows) else 4


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError("%s is less than 1" % text)
    return int(text)


def read_options():
    names = ", ".join(part.__name__ for part in PARTS)
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], epilog="The parts are %s. docs/GPU.md describes them." % names)
    p.add_argument("--build", type=pathlib.Path, default=REPO / "build/plain", help="folder of gpu_check and tests/ (build/plain)")
    p.add_argument("--bin", type=pathlib.Path, default=REPO / "bin", help="folder of tp-train and the others (bin)")
    p.add_argument("--out", type=pathlib.Path, default=REPO / "build/gpu-check", help="gets report.txt and report.json (build/gpu-check)")
    p.add_argument("--seconds", type=float, default=ALL_SHARES, help="for all parts (%d); their shares grow with it" % ALL_SHARES)
    p.add_argument("--small", action="store_true", help="sizes for the fake CUDA device")
    p.add_argument("--only", metavar="PART,...", help="only these parts")
    p.add_argument("--at-once", type=at_least_one, default=4 if (os.cpu_count() or 1) >= 8 else 1, metavar="N",
                   help="parts that measure no speed and run side by side (4 on 8 cores and more, else 1)")
    options = p.parse_args()
    options.only = {part.__name__ for part in PARTS} if options.only is None else set(filter(None, options.only.split(",")))
    if not options.only:
        p.error("--only: it names no part; the parts are %s" % names)
    if unknown := options.only - {part.__name__ for part in PARTS}:
        p.error("--only: there is no part %s; the parts are %s" % (", ".join(sorted(unknown)), names))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "report.txt").touch()
    except OSError as e:
        p.error("--out: the report cannot be written: %s; name another folder" % e)
    return options


def main():
    options = read_options()
    c = Check(options)
    c.commands.end_at_signals()
    wanted = [part for part in PARTS if part.__name__ in options.only]
    if options.at_once == 1:
        wanted.sort(key=lambda part: part is sanitizer)  # it takes all time that it gets: here that of those after it
    report = Report(c.out, {part.__name__: part.__doc__ for part in wanted})
    groups = list(groups_of(wanted, options.at_once))
    is_end = False
    for i, group in enumerate(groups):
        is_end = not run_group(c, report, group, sum(max(map(share_of, some)) for some in groups[i + 1:]))
        if is_end:
            report.leave_out_not_begun()  # they would say the same
            break
    rows = report.rows()
    code = 3 if is_end else exit_code(rows, c.commands.ended_by)
    say(totals_of(rows) + ("; the report says what did not run" if code == 4 else ""))
    say("the report is in %s/report.txt and report.json" % c.out)
    sys.exit(code)


if __name__ == "__main__":
    main()
