#!/usr/bin/env python3
"""tp-reshard compared with copying the same files, and with a PyTorch script that does the same.

    bench_reshard.py [--width 512] [--rounds 3] [--folder /dev/shm] [--torch PYTHON] [--least]

For each conversion these commands run in turn, each round beginning with another one, from the page cache, and end when
everything is on the disk (in /dev/shm at once):

  tp-reshard   all checksums and digests are computed and compared (tp-ckpt export for safetensors)
  cp -r        the source; for safetensors, which has no optimizer state, the exported folder
  cp, cksum    the same, then `cksum` of the source and of the copy: what a careful copy costs
  dd, fsync    each file with `dd bs=1M conv=fsync`: for a --folder on a disk
  PyTorch      lib/torch_reshard.py: torch.load of all files, cat and split, torch.save; checks nothing.
               Without the start of Python and PyTorch, which takes seconds. Left out, with a line that says so, without --torch

Prints wall and CPU seconds, the medians of the rounds, their ratio to `cp -r`, and the most resident memory. --least
prints the least of the rounds: in a virtual machine, memory that the host must supply first makes commands slower.
CPU seconds mean more on a machine that does other work, too. The checkpoint is a Llama of 8 layers with bf16
weights, fp32 masters and moments: 0.4 GiB at width 384, 0.7 GiB at 512, 2.1 GiB at 1024.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
from command import run_counted  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TP_BIN", REPO / "bin"))
BUILD = pathlib.Path(os.environ.get("TP_BUILD", REPO / "build" / "plain"))
LIB = pathlib.Path(__file__).resolve().parent / "lib"
CONVERSIONS = [("tp8", "tp4"), ("tp4", "tp8"), ("tp8", "tp2pp2"), ("tp4", "tp4dp4zero1"), ("tp8", "safetensors")]
CHECKPOINT = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
 "vocab_size": 32000, "hidden_size": %d, "intermediate_size": %d, "head_dim": %d, "num_hidden_layers": 8,
 "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "tie_word_embeddings": false}
"""


def shell(script, *args):
    return run_counted(["bash", "-euc", script, "bash", *args])


def make(folder, width):
    config = folder / "config.json"
    config.write_text(CHECKPOINT % (width, 11 * width // 4, width // 16))
    run_counted([BUILD / "tests" / "make_ckpt", config, "tp8", folder / "tp8", 1, 1, "bf16"])
    run_counted([BIN / "tp-reshard", folder / "tp8", "--to", "tp4", "-o", folder / "tp4"])


def competitors(folder, source, target, args):
    """The name of each command, and a function that runs it once."""
    ckpt, new, copy = folder / source, folder / "new", folder / "copy"
    if target == "safetensors":  # weights only, so the others copy what it writes
        export = [BIN / "tp-ckpt", "export", ckpt, "--format", "safetensors", "--json", "-o"]
        ours, ckpt = [*export, new], folder / "exported"
        run_counted([*export, ckpt])
    else:
        ours = [BIN / "tp-reshard", ckpt, "--to", target, "-o", new, "--json"]
    yield f"{source} to {target}", lambda: run_counted(ours), new
    yield "cp -r", lambda: shell('cp -r "$1" "$2"; sync -f "$2"', ckpt, copy), copy
    yield ("cp -r, cksum of both",
           lambda: shell('cp -r "$1" "$2"; sync -f "$2"; find "$1" "$2" -type f -exec cksum {} +', ckpt, copy), copy)
    if args.dd:
        yield ("dd, fsync", lambda: shell(
            'cd "$1"; find . -type d -exec mkdir -p "$2/{}" \\;; find . -type f -exec dd status=none "if={}" "of=$2/{}" '
            'bs=1M conv=fsync \\;', ckpt, copy), copy)
    if args.torch:
        saved = folder / f"torch-{source}-{ckpt.name}"
        if not saved.exists():
            run_counted([args.torch, LIB / "torch_reshard.py", "make", saved, source[2:], du(ckpt)])
        yield ("PyTorch", lambda: run_counted([args.torch, LIB / "torch_reshard.py", "convert", saved, target, new]), new)


def du(folder):
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def print_times(times, peaks, of):
    """A line for each command. times: {name: [(wall, CPU seconds)]}; peaks: {name: bytes} of those that are known; of: which
    of the rounds, statistics.median or min. Returns {name: [wall, CPU seconds]}."""
    chosen = {name: [of(t[i] for t in all_times) for i in (0, 1)] for name, all_times in times.items()}
    cp = chosen["cp -r"]
    for name, (wall, cpu) in chosen.items():
        peak = f"{peaks[name] / 2**20:6.0f} MiB" if name in peaks else ""
        print(f"{name:26} {wall:7.2f} s {wall / cp[0]:6.2f} x  {cpu:7.2f} s cpu {cpu / cp[1]:6.2f} x {peak}",
              flush=True)
    return chosen


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    parser.add_argument("--torch", metavar="PYTHON")
    parser.add_argument("--only", metavar="FROM,TO", help="one conversion")
    parser.add_argument("--least", dest="of", action="store_const", const=min, default=statistics.median)
    args = parser.parse_args()
    if not args.torch:
        print("PyTorch: not compared, because --torch names no Python that has it")
    return args


def measure(folder, source, target, args):
    commands = list(competitors(folder, source, target, args))
    times = {name: [] for name, _, _ in commands}
    peaks = []
    for i in range(args.rounds):
        first = i % len(commands)  # what runs after PyTorch gets memory that the host must supply again
        for name, command, output in commands[first:] + commands[:first]:
            shutil.rmtree(output, ignore_errors=True)
            wall, cpu, out = command()
            if name == "PyTorch":
                wall, cpu = json.loads(out)["wall"], json.loads(out)["cpu"]
            times[name].append((wall, cpu))
            if output.name == "new" and name != "PyTorch":
                peaks.append(json.loads(out).get("peak_rss_bytes", 0))
            size = du(output)
            shutil.rmtree(output, ignore_errors=True)
            if name != "PyTorch" and target != "safetensors" and size < du(folder / source) * 0.9:
                raise SystemExit(f"{name}: wrote {size} bytes")
    print_times(times, {commands[0][0]: max(peaks)} if max(peaks) else {}, args.of)
    print()


def main():
    args = arguments(__doc__)
    args.dd = args.folder != "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="bench-reshard-", dir=args.folder) as name:
        folder = pathlib.Path(name)
        make(folder, args.width)
        print(f"{du(folder / 'tp8') / 1e9:.2f} GB, {args.rounds} round{'s' * (args.rounds != 1)}, load {os.getloadavg()[0]:.0f}")
        for source, target in [tuple(args.only.split(","))] if args.only else CONVERSIONS:
            measure(folder, source, target, args)


if __name__ == "__main__":
    main()
