"""`make install` and `make uninstall`: programs, libraries, headers, pkg-config and Python files.

needs: tp-train tp-reshard tp-ckpt tp-run libtp-progress.so
"""
import os
import re
import shlex
import subprocess
import sysconfig

import pytest

import harness
from conftest import make

PROGRAMS = ["tp-train", "tp-reshard", "tp-ckpt", "tp-run"]
# The folder of heartbeats; ranks per host, to try several hosts on one; and what tp-run hands down.
ENVIRONMENT = {"TP_PROGRESS_DIR", "TP_HOST_RANKS", "TP_EPOCH", "TP_RUN_ID", "TP_SUPERVISOR_ID",
               "TP_HELPER_ID", "TP_SALLOC_ID", "TP_STOP_SIGNAL", "TP_CUDA_LIBRARY",
               "TP_REMOTE_CONNECTIONS", "TP_REMOTE_TIMEOUT"}
CALLS = ["tp_progress_close", "tp_progress_collective", "tp_progress_open", "tp_progress_phase",
         "tp_progress_step"]


def output(*command, **env):
    return subprocess.run([str(c) for c in command], env={**os.environ, **env}, text=True,
                          stdout=subprocess.PIPE, check=True).stdout


def files(folder):
    return {os.path.relpath(os.path.join(base, name), folder)
            for base, _, names in os.walk(folder) for name in names}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_where_it_is_installed(installed, program):
    assert output(installed / "bin" / program, "--version").startswith(program + " ")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_knows_no_other_environment_variables(installed, program):
    """Faults and other devices for tests come from preloaded libraries and from variants of programs."""
    words = re.findall(rb"(?<=\0)TP_[A-Z_]+(?=\0)", (installed / "bin" / program).read_bytes())
    names = {w.decode() for w in words if w != b"TP_OK" and not w.startswith(b"TP_E_")}
    assert names <= ENVIRONMENT


def heartbeats(folder):
    return [name for name in os.listdir(folder) if not name.startswith(".")]


HARD = "a & b's \"c\" |d\\e;f#g*`h~!?[i]<j>"


def test_a_prefix_may_have_any_characters(tmp_path):
    prefix = tmp_path / HARD / "usr"
    make("install", "PREFIX=%s" % prefix, "DESTDIR=")
    flags = output("pkg-config", "--cflags", "--libs", "tp-progress", PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"))
    assert shlex.split(flags) == ["-I%s/include" % prefix, "-L%s/lib" % prefix, "-ltp-progress"]
    assert output(prefix / "bin/tp-ckpt", "--version").startswith("tp-ckpt ")
    make("uninstall", "PREFIX=%s" % prefix)
    assert files(prefix) == set()
    make("install", "PREFIX=/usr", "DESTDIR=%s" % (tmp_path / HARD))
    assert (tmp_path / HARD / "usr/lib/pkgconfig/tp-progress.pc").read_text().startswith("prefix=/usr\nlibdir=/usr/lib\n")


@pytest.mark.parametrize("words, message", [
    (["PREFIX=usr"], "PREFIX is 'usr', expected an absolute path"), (["PREFIX="], "PREFIX is '', expected an absolute path"),
    (["LIBDIR=lib"], "LIBDIR is 'lib', expected an absolute path"),
    (["PREFIX=/a$$b"], "PREFIX has a control character or a $, and pkg-config cannot read such a path")])
def test_a_path_that_cannot_be_is_refused_and_nothing_is_installed(tmp_path, words, message):
    assert message in make("install", "DESTDIR=%s/" % tmp_path, *words, code=2)
    assert not files(tmp_path) and not os.path.exists(harness.REPO / "usr")


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_an_example_is_compiled_with_the_pkg_config_file(installed, tmp_path, static):
    program, beats = tmp_path / "progress", tmp_path / "beats"
    beats.mkdir()
    flags = output("pkg-config", "--cflags", "--libs", "tp-progress",
                   PKG_CONFIG_PATH=str(installed / "lib/pkgconfig")).strip()
    flags = flags.replace("-ltp-progress", "-l:libtp-progress.a") if static else flags
    subprocess.run("cc -Wall -Werror %s/examples/progress.c %s -o %s" % (harness.REPO, flags, program),
                   shell=True, check=True)
    loads = "libtp-progress.so.0" in output("readelf", "-d", program)
    assert loads != static
    env = {} if static else {"LD_LIBRARY_PATH": str(installed / "lib")}
    assert output(program, TP_PROGRESS_DIR=str(beats), **env) == "100 steps\n"
    assert heartbeats(beats), "the example wrote no heartbeat"


def test_the_libraries_export_the_five_calls_and_nothing_else(installed):
    for command in (["nm", "-D"], installed / "lib/libtp-progress.so"), \
                   (["nm", "-g"], installed / "lib/libtp-progress.a"):
        lines = output(*command[0], "--defined-only", command[1]).splitlines()
        assert [line.split()[-1] for line in lines if " T " in line] == CALLS
        assert not [line for line in lines if len(line.split()) == 3 and " T " not in line]


def test_the_python_module_finds_the_installed_library(installed, tmp_path):
    folder = installed / "lib" / ("python%s" % sysconfig.get_python_version()) / "site-packages"
    done = output("/usr/bin/python3", "-B", folder / "tp_progress.py", TP_PROGRESS_DIR=str(tmp_path))
    assert done == "20 steps\n"
    assert heartbeats(tmp_path), "the module wrote no heartbeat"


def test_uninstall_removes_what_install_wrote_and_nothing_else(tmp_path):
    prefix = tmp_path / "usr"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/other").write_text("")
    make("install", "PREFIX=%s" % prefix)
    assert len(files(prefix)) > 20
    make("uninstall", "PREFIX=%s" % prefix)
    assert files(prefix) == {"bin/other"}


def test_the_cuda_library_is_installed_where_it_was_built(tmp_path):
    """The programs look for it in ../lib/tp (cli/cuda_library.c)."""
    prefix = tmp_path / "usr"
    folder = tmp_path / "lib"
    folder.mkdir()
    make("install", "PREFIX=%s" % prefix, "LIB=%s" % folder)
    assert "lib/tp/libtp-cuda.so" not in files(prefix)
    (folder / "libtp-cuda.so").write_text("")
    make("install", "PREFIX=%s" % prefix, "LIB=%s" % folder)
    assert "lib/tp/libtp-cuda.so" in files(prefix)
    make("uninstall", "PREFIX=%s" % prefix)
    assert files(prefix) == set()


def test_destdir_is_put_in_front_of_every_path(installed, tmp_path):
    make("install", "DESTDIR=%s" % tmp_path, "PREFIX=/usr/elsewhere")
    assert files(tmp_path / "usr/elsewhere") == files(installed)
    assert os.listdir(tmp_path) == ["usr"] and os.listdir(tmp_path / "usr") == ["elsewhere"]
    pc = (tmp_path / "usr/elsewhere/lib/pkgconfig/tp-progress.pc").read_text()
    assert str(tmp_path) not in pc


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_debhelper_builds_every_package_for(architecture, tmp_path):
    (tmp_path / "debian").symlink_to(harness.REPO / "packaging/debian")
    p = subprocess.run(["dh_listpackages"], cwd=tmp_path, env={**os.environ, "DEB_HOST_ARCH": architecture}, text=True,
                       stdout=subprocess.PIPE, check=True)
    control = (harness.REPO / "packaging/debian/control").read_text()
    assert p.stdout.split() == re.findall(r"^Package: (.*)", control, re.M) and p.stdout.split()
