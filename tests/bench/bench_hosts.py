#!/usr/bin/env python3
"""tp-reshard on several hosts that share a storage: the rate grows with the hosts until the storage is full.

    bench_hosts.py [--width 1024] [--hosts 1,2,4,8] [--connections 2] [--rate 3] [--total 30] [--shared]

The hosts are processes of mpirun on this machine, and the storage is a server (lib/range_server.py). Each connection moves at most
--rate MB per second and answers after 20 ms, so a host with --connections of them moves at most their product, in each direction.
All hosts together move at most --total MB per second in each direction. A tp8 checkpoint is read from http:// and written to s3://
at tp4, without a local copy.

--shared: the storage is a file system that all hosts share instead, with the same limits (tests/fault/slow_storage.c).

Prints for each number of hosts the wall seconds, MB per second, the most that connections and storage allow, and our part of that.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from bench_remote import BIN, BUILD, CONFIG, SERVER, run_counted

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]


def measure(a, folder, url):
    step = folder / "ckpt/step-00000001"
    size = sum(f.stat().st_size for f in step.glob("*.h5"))
    env = {"TP_REMOTE_CONNECTIONS": str(a.connections), "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "bench",
           "AWS_SECRET_ACCESS_KEY": "bench"}
    print("%.2f GiB, %d connections of %g MB/s for each host, storage of %g MB/s" %
          (size / (1 << 30), a.connections, a.rate, a.total))
    for hosts in map(int, a.hosts.split(",")):
        wall, cpu, _ = run_counted([*MPIRUN, hosts, BIN / "tp-reshard", url + "/ckpt", "--to", "tp4", "--jobs", 2, "--out",
                         "s3://bucket/%d" % hosts], env)
        most = min(hosts * a.connections * a.rate, a.total) * 1e6
        print("%d hosts  %6.2f s  CPU %5.2f s  %6.1f MB/s of %.0f, %.2f" %
              (hosts, wall, cpu, size / wall / 1e6, most / 1e6, size / wall / most), flush=True)


def measure_shared(a, folder):
    """Each process is a host, whose reads and writes are delayed."""
    size = sum(f.stat().st_size for f in folder.glob("ckpt/step-*/*.h5"))
    clock = folder / "clock"
    host = a.connections * a.rate
    print("%.2f GiB, %g MB/s for each host, a shared file system of %g MB/s" % (size / (1 << 30), host, a.total))
    for hosts in map(int, a.hosts.split(",")):
        clock.write_bytes(bytes(16))
        env = {"LD_PRELOAD": str(BUILD / "tests/fault/slow_storage.so"), "TP_SLOW_DIR": str(folder),
               "TP_SLOW_RATES": "%g %g" % (host, a.total), "TP_SLOW_CLOCK": str(clock)}
        wall, cpu, _ = run_counted([*MPIRUN, hosts, BIN / "tp-reshard", folder / "ckpt", "--to", "tp4", "--jobs", 8, "--no-clone",
                         "--out", folder / str(hosts)], env)
        most = min(hosts * host, a.total) * 1e6
        print("%d hosts  %6.2f s  CPU %5.2f s  %6.1f MB/s of %.0f, %.2f" %
              (hosts, wall, cpu, size / wall / 1e6, most / 1e6, size / wall / most), flush=True)
        shutil.rmtree(folder / str(hosts))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--width", type=int, default=1024)
    p.add_argument("--hosts", default="1,2,4,8")
    p.add_argument("--connections", type=int, default=2)
    p.add_argument("--rate", type=float, default=3)
    p.add_argument("--total", type=float, default=30)
    p.add_argument("--shared", action="store_true")
    a = p.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(CONFIG % (a.width, 11 * a.width // 4, a.width // 16))
        run_counted([BUILD / "tests/make_ckpt", folder / "config.json", "tp8", folder / "ckpt", 1, 1, "bf16"])
        os.environ.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")  # Open MPI 4
        os.environ.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")  # Open MPI 5
        if a.shared:
            measure_shared(a, folder)
            return
        with subprocess.Popen([sys.executable, str(SERVER), str(folder), str(a.rate), str(a.total)],
                              stdout=subprocess.PIPE, text=True) as server:
            try:
                measure(a, folder, server.stdout.readline().strip())
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
