#!/usr/bin/env python3
"""Checkpoints in a store compared with curl, with as many connections.

    bench_remote.py [--width 1024] [--rounds 3] [--connections 8] [--rate 25]

A server of this machine (lib/range_server.py: files, ranges, uploads, no signature check) has the checkpoint in
/dev/shm. In turn:

  curl          curl --parallel: every file whole, to /dev/null, in ranges of 4 MiB
  verify        tp-ckpt verify http://...: all checksums and digests are computed
  tp-reshard    from http:// into /dev/shm: checksums, digests, and the writing
  curl up       curl --parallel: the same bytes, PUT in pieces of 5 MiB
  tp-reshard    from /dev/shm to s3://: checksums, digests, signatures

First each connection moves at most --rate MB per second and answers after 20 ms, as a store in a data center does; then nothing
is limited, and all share the processors of this machine, so that the checksums take time from the transfer. Without a limit
nginx serves the downloads, where it is installed, because it takes less of the processors.

Prints the medians of wall and CPU seconds, the rate, and the rate divided by curl's.
"""
import argparse
import contextlib
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
from command import run_counted  # noqa: E402

REPO = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TP_BIN", REPO / "bin"))
BUILD = pathlib.Path(os.environ.get("TP_BUILD", REPO / "build" / "plain"))
SERVER = pathlib.Path(__file__).resolve().parent / "lib" / "range_server.py"
PIECE, PART = 4 << 20, 5 << 20
NGINX = """daemon off;
worker_processes 2;
pid %(folder)s/nginx.pid;
error_log %(folder)s/nginx.log;
%(user)s
events {}
http {
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path %(folder)s/nginx;
    server { listen 127.0.0.1:%(port)d; root %(folder)s; }
}
"""
CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 8192,
 "hidden_size": %d, "intermediate_size": %d, "head_dim": %d, "num_hidden_layers": 2, "num_attention_heads": 16,
 "num_key_value_heads": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false}
"""


@contextlib.contextmanager
def store(folder, rate):
    """The URL of range_server.py."""
    with subprocess.Popen([sys.executable, str(SERVER), str(folder), str(rate)], stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def nginx():
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")


@contextlib.contextmanager
def web_server(folder):
    """The URL of nginx without a limit."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    (folder / "nginx.conf").write_text(NGINX % {"folder": folder, "port": port,
                                                "user": "" if os.getuid() else "user root;"})
    with subprocess.Popen([nginx(), "-c", str(folder / "nginx.conf"), "-e", str(folder / "nginx.log")]) as server:
        try:
            while server.poll() is None and socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.05)
            yield "http://127.0.0.1:%d" % port
        finally:
            server.terminate()


def download_list(path, url, files):
    """The configuration of curl that reads all files in pieces."""
    with open(path, "w", encoding="utf-8") as f:
        for file in files:
            for at in range(0, file.stat().st_size, PIECE):
                f.write('next\nurl = "%s/%s"\nrange = %d-%d\noutput = /dev/null\n' %
                        (url, file.name, at, min(at + PIECE, file.stat().st_size) - 1))


def upload_list(path, url, folder, size):
    """The configuration of curl that writes `size` bytes in parts."""
    part = folder / "part"
    part.write_bytes(os.urandom(PART))
    with open(path, "w", encoding="utf-8") as f:
        for i in range(-(-size // PART)):
            f.write('next\nurl = "%s/up/%d"\nupload-file = "%s"\noutput = /dev/null\n' % (url, i, part))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--width", type=int, default=1024)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--connections", type=int, default=8)
    p.add_argument("--rate", type=float, default=25)
    a = p.parse_args()
    if not shutil.which("curl"):
        raise SystemExit("bench_remote: curl is not installed, so nothing was measured")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(CONFIG % (a.width, 11 * a.width // 4, a.width // 16))
        run_counted([BUILD / "tests/make_ckpt", folder / "config.json", "tp8", folder / "ckpt", 1, 1, "bf16"])
        step = folder / "ckpt/step-00000001"
        size = sum(f.stat().st_size for f in step.glob("*.h5"))
        limited = "at most %g MB/s each, 20 ms" % a.rate
        print("%.2f GiB, %d connections, %s" % (size / (1 << 30), a.connections, limited))
        with store(folder, a.rate) as url:
            measure(a, folder, step, size, url, url)
        print("without a limit, downloads from %s" % ("nginx" if nginx() else SERVER.name))
        with store(folder, 0) as url, web_server(folder) if nginx() else contextlib.nullcontext(url) as source:
            measure(a, folder, step, size, source, url)


def measure(a, folder, step, size, source, url):
    env = {"TP_REMOTE_CONNECTIONS": str(a.connections), "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "bench",
           "AWS_SECRET_ACCESS_KEY": "bench"}
    down, up = folder / "down.curl", folder / "up.curl"
    download_list(down, source + "/ckpt/step-00000001", sorted(step.glob("*.h5")))
    upload_list(up, url, folder, size)
    curl = ["curl", "-s", "--parallel", "--parallel-immediate", "--parallel-max", a.connections, "-K"]
    reshard = [BIN / "tp-reshard", "--to", "tp4", "--out"]
    rows = [("curl", None, [*curl, down]), ("verify", "curl", [BIN / "tp-ckpt", "verify", source + "/ckpt"]),
            ("tp-reshard from http", "curl", [*reshard, folder / "out", "--force", source + "/ckpt"]),
            ("curl, upload", None, [*curl, up]),
            ("tp-reshard to s3", "curl, upload", [*reshard, "s3://bucket/%d", folder / "ckpt"])]
    seen = {label: [] for label, _, _ in rows}
    for number in range(a.rounds):
        for label, _, command in rows:
            seen[label].append(run_counted([str(c) % number if "%d" in str(c) else c for c in command], env)[:2])
    medians = {label: [statistics.median(x) for x in zip(*times)] for label, times in seen.items()}
    for label, base, _ in rows:
        wall, cpu = medians[label]
        print("%-22s %6.2f s  CPU %5.2f s  %7.0f MB/s%s" %
              (label, wall, cpu, size / wall / 1e6, "  %.2f of curl's rate" % (medians[base][0] / wall) if base else ""))


if __name__ == "__main__":
    main()
