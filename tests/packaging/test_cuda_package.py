"""The Debian package tp-cuda: its files, its dependencies, and that the programs of tp-tools find its library.

It is built where nvcc is. Elsewhere these tests are skipped.

needs: tp-train
"""
import functools
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import harness
from conftest import make

NVCC = shutil.which("nvcc")
DEBS = harness.REPO / "build/deb"
# What the library is linked with, and the package that has it: NVIDIA's, which this one recommends, because both may have come
# in another way; or Debian's, on which it depends.
RECOMMENDED = {"libcublas.so.13": "libcublas-13-0", "libcublasLt.so.13": "libcublas-13-0", "libnccl.so.2": "libnccl2"}
REQUIRED = {"libc.so.6": "libc6", "libm.so.6": "libc6", "libstdc++.so.6": "libstdc++6", "libgcc_s.so.1": "libgcc-s1",
            "ld-linux-x86-64.so.2": "libc6", "ld-linux-aarch64.so.1": "libc6",
            "libdl.so.2": "libc6", "libpthread.so.0": "libc6", "librt.so.1": "libc6"}
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}

pytestmark = pytest.mark.skipif(not NVCC, reason="needs nvcc, without which the package is not built")


def output(*command, **env):
    return subprocess.run([str(c) for c in command], env={**os.environ, **env}, text=True, stdout=subprocess.PIPE, check=True).stdout


def is_current(deb):
    """Whether no source file is newer. (deb.sh packs a copy of the tree.)"""
    folders = [path for path in harness.REPO.iterdir() if path.is_dir() and (path / "README.md").exists()]
    sources = [path for folder in folders if folder.name not in ("tests", "docs", "examples") for path in folder.rglob("*")]
    return max(path.stat().st_mtime for path in [harness.REPO / "Makefile", *sources] if path.is_file()) < deb.stat().st_mtime


@functools.lru_cache(None)
def deb(name):
    """The package's file; `make deb` builds all of them, unless it has done so since the last change."""
    found = list(DEBS.glob(name + "_*.deb"))
    if not found or not is_current(found[0]):
        make("deb")
    return next(DEBS.glob(name + "_*.deb"))


def field(name, of):
    return output("dpkg-deb", "--field", deb(of), name).strip()


def packages(text):
    """{package: version, such as `= 0.1.0`, or ""} of a field."""
    return {m[1]: m[2] or "" for m in re.finditer(r"([a-z0-9.+-]+)(?: \(([^)]*)\))?", text)}


def install(root, *names):
    """Install with dpkg below the folder `root`, without what they depend on. dpkg refuses a file that two packages have."""
    for folder in "info", "updates":
        (root / "var/lib/dpkg" / folder).mkdir(parents=True, exist_ok=True)
    (root / "var/lib/dpkg/status").touch()
    for name in names:
        subprocess.run(["dpkg", "--root=%s" % root, "--log=%s" % (root / "log"), "--force-not-root,depends", "--no-triggers",
                        "--install", deb(name)], check=True)


def files_of(root, name):
    listed = output("dpkg", "--root=%s" % root, "--listfiles", name).splitlines()
    return {path for path in listed if not (root / path[1:]).is_dir()}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """tp-tools and tp-cuda are installed there."""
    folder = tmp_path_factory.mktemp("root")
    install(folder, "tp-tools", "tp-cuda")
    return folder


def cuda_train(root, **env):
    """What tp-train of the package says about --device cuda; no GPU is visible."""
    model = harness.write_config(root / "model")
    options = [str(word) for word in harness.train_args(model, steps=1, device="cuda")[1:]]
    r = subprocess.run([root / "usr/bin/tp-train", *options], env={**os.environ, "TP_CUDA_LIBRARY": "", **NO_GPU, **env}, text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    assert r.returncode == 2, r
    return r.stderr


def test_the_package_has_the_library_and_nothing_of_the_other_packages(root):
    ours = files_of(root, "tp-cuda")
    assert {path for path in ours if not path.startswith("/usr/share/doc/tp-cuda/")} == {"/usr/lib/tp/libtp-cuda.so"}
    assert "/usr/share/doc/tp-cuda/copyright" in ours
    tools = files_of(root, "tp-tools")
    assert "/usr/bin/tp-train" in tools and not ours & tools


def test_the_package_names_what_it_depends_on(root):
    depends, recommends = packages(field("Depends", "tp-cuda")), packages(field("Recommends", "tp-cuda"))
    assert depends["tp-tools"] == "= " + field("Version", "tp-tools")
    library = root / "usr/lib/tp/libtp-cuda.so"
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", library, LC_ALL="C")))
    assert RECOMMENDED.keys() <= needed <= RECOMMENDED.keys() | REQUIRED.keys()
    assert {RECOMMENDED[name] for name in RECOMMENDED} <= recommends.keys()
    assert {REQUIRED[name] for name in needed & REQUIRED.keys()} <= depends.keys()


def test_tp_train_finds_the_library_of_the_package(tmp_path, root):
    install(tmp_path, "tp-tools")
    assert "there is no libtp-cuda.so" in cuda_train(tmp_path)
    assert "there is no libtp-cuda.so" not in cuda_train(root)


def test_the_library_is_loaded_with_cublas_and_nccl(tmp_path, root):
    """A driver that has nothing but its name, so that the library is loaded and finds no GPU."""
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "libcuda.so.1"], check=True)
    cuda = pathlib.Path(NVCC).resolve().parent.parent / "lib"
    message = cuda_train(root, LD_LIBRARY_PATH="%s:%s" % (tmp_path, cuda))
    assert "no usable GPU" in message and "there is no libcuda.so.1" not in message and "cannot be loaded" not in message
