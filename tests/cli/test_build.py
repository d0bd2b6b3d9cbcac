"""tools/link.awk: the source files that a program is linked from; and what `make test T=` builds.

needs:
"""
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import harness

SOURCES = {
    "a/box.h": "int box_size(int n);\nextern const int box_limit;\n",
    "a/box.c": '#include "a/box.h"\nconst int box_limit = 3;\nint box_size(int n)\n{\n'
               '    return n;\n}\n',
    "a/cut.h": '#include "a/box.h"\n#define CUT(n) cut_one(n)\nint cut_two(int n,\n'
               '            int m);\n',
    "a/cut.c": "int cut_one(int n)\n{\n    return box_size(n);\n}\n"
               "int cut_two(int n,\n            int m)\n{\n    return n + m;\n}\n",
    "a/table.c": "static int help(void)\n{\n    return 0;\n}\nconst struct op table_ops[] = {\n"
                 "    help,\n};\n",
    "a/help.c": "int help(void)\n{\n    return 0;\n}\n",
    "a/quick.c": "int quick(void)\n{\n    return 0;\n}\n",
    "fake/box.c": "int box_size(int n)\n{\n    return fake_size(n);\n}\n",
    "fake/size.c": "int fake_size(int n)\n{\n    return 2 * n;\n}\n",
}


# Debian's awk is mawk until gawk is installed, and they iterate over tables in different orders.
@pytest.fixture(params=[a for a in ("mawk", "gawk", "awk") if shutil.which(a)])
def uses(tmp_path, request):
    """uses(main, folder) is the files that the awk program finds for a program with this main()."""
    for path, text in SOURCES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("/* A file. */\n" + text)

    def of(main, folder=None):
        (tmp_path / "main.c").write_text("/* A program. */\n" + main)
        program = "tool=main.c" + (",%s" % folder if folder else "")
        p = subprocess.run([request.param, "-f", harness.REPO / "tools/link.awk", program, "--", *SOURCES],
                           cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
        name, files = p.stdout.strip().split(" :=")
        assert name == "uses_tool"
        return set(files.split()) - {"main"}

    return of


@pytest.mark.parametrize("main,files", [
    ("int main(void)\n{\n    return box_size(1);\n}\n", {"a/box"}),
    ("int main(void)\n{\n    return box_limit;\n}\n", {"a/box"}),
    ("int main(void)\n{\n    return cut_two(1, 2);\n}\n", {"a/cut", "a/box"}),
    ("int main(void)\n{\n    return table_ops[0].n;\n}\n", {"a/table"}),
], ids=["function", "variable", "what-it-mentions-in-turn", "static-name-of-another-file"])
def test_a_program_is_linked_from_the_files_that_define_what_it_uses(uses, main, files):
    assert uses(main) == files


@pytest.mark.parametrize("main", [
    '#include "a/cut.h"\nint main(void)\n{\n    return 0;\n}\n',
    "#include \"a/box.h\"\n/* Not box_size,\n * but cut_two. */\nint main(void)\n{\n"
    "    return puts(\"box_size\") + '\"'; // cut_one, '\"'\n}\n",
    "static int box_size(int n)\n{\n    return n;\n}\nint main(void)\n{\n    return box_size(1);\n}\n",
    "MAYBE_UNUSED static int box_size(int n)\n{\n    return n;\n}\nint main(void)\n{\n    return box_size(1);\n}\n",
    "static int n __attribute__((quick, aligned(8)));\nint main(void)\n{\n    return 0;\n}\n",
], ids=["macro-and-prototype", "comments-and-strings", "static-function-of-its-own", "static-after-a-macro", "attribute"])
def test_prototypes_comments_strings_and_static_functions_link_nothing(uses, main):
    assert uses(main) == ({"a/cut", "a/box"} if "cut.h" in main else set())


def test_an_included_source_file_counts_as_part_of_the_file_that_includes_it(uses):
    assert uses('#include "a/cut.c"\nint main(void)\n{\n    return cut_one(1);\n}\n') == {"a/box"}


def test_a_variant_prefers_the_definitions_of_its_folder(uses):
    main = "int main(void)\n{\n    return cut_one(1) + box_size(1);\n}\n"
    assert uses(main) == {"a/cut", "a/box"}
    assert uses(main, "fake") == {"a/cut", "fake/box", "fake/size"}


def test_builds_with_and_without_werror_share_objects_without_warnings(tmp_path):
    for name in ("Makefile", "tools"):
        (tmp_path / name).symlink_to(harness.REPO / name)
    (tmp_path / "core").mkdir()
    (tmp_path / "core/clean.c").write_text("int clean(void);\nint clean(void)\n{\n    return 0;\n}\n")
    (tmp_path / "core/warned.c").write_text("int warned(void);\nint warned(void)\n{\n    int unused;\n    return 0;\n}\n")
    objects = {n: tmp_path / "build/plain/core" / (n + ".o") for n in ("clean", "warned")}

    def make(*knobs):
        p = subprocess.run(["make", "-k", "CC=gcc", "build/plain/core/clean.o", "build/plain/core/warned.o", *knobs], cwd=tmp_path,
                           env={k: v for k, v in os.environ.items() if k not in ("WERROR", "MAKEFLAGS", "MAKELEVEL", "SANITIZE")},
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return p.returncode, p.stdout

    rc, out = make()
    assert rc == 0 and "unused" in out, out
    first = objects["clean"].stat().st_mtime_ns
    assert "CC " not in make()[1]
    rc, out = make("WERROR=1")
    assert rc != 0 and "unused" in out and "core/clean.c" not in out and not objects["warned"].exists(), out
    rc, out = make()
    assert rc == 0 and "core/clean.c" not in out and objects["clean"].stat().st_mtime_ns == first, out
    (tmp_path / "core/warned.c").write_text("int warned(void);\nint warned(void)\n{\n    return 0;\n}\n")
    assert make("WERROR=1")[0] == 0
    assert "CC " not in make()[1]


@pytest.fixture
def tree(tmp_path):
    """A tree with the unit tests and one file of pytest."""
    (tmp_path / "tests/cli").mkdir(parents=True)
    for path in ("cli", "tests/runner", "tests/unit", "tests/mpi", "tests/pytest.ini"):
        (harness.copy if path == "tests/runner" else lambda a, b: b.symlink_to(a))(harness.REPO / path, tmp_path / path)
    (tmp_path / "tests/cli/test_few.py").write_text('"""Tests.\n\nneeds: tp-run make_ckpt bench/bench_few\n"""\ndef test_a_few():\n    pass\n')
    return tmp_path


@pytest.mark.parametrize("pattern,targets,files", [
    ("layout_box", ["build/tests/layout_box"], []),
    ("box/formats_as*", ["build/tests/layout_box"], []),
    ("mpi-comm_plain", ["build/tests/mpi/comm_plain"], []),
    ("check-deps", [], []),
    ("a_few", ["bin/tp-run", "build/bench/bench_few", "build/tests/make_ckpt"], ["tests/cli/test_few.py"]),
    ("", ["tests", "build/bench/bench_few"], ["tests/cli/test_few.py"]),
    ("no test has this in its name", None, []),
], ids=["program", "criterion", "mpirun", "check", "pytest", "all", "wrong"])
def test_a_pattern_builds_what_its_tests_need_and_nothing_else(tree, pattern, targets, files):
    env = {**os.environ, "T": pattern, "BUILD": "build", "BIN": "bin"}
    p = subprocess.run(["/usr/bin/python3", "-B", "tests/runner/run.py", "--targets"], cwd=tree,
                       env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if targets is None:
        assert p.returncode == 1 and p.stderr == "no test matches T='%s'\n" % pattern
        return
    assert p.stdout.split() == targets, p.stderr
    selected = json.loads((tree / "build/selected-tests.json").read_text())
    assert selected["pytest"] == files


@pytest.mark.parametrize("more,left_out", [({"SANITIZE": "address"}, True), ({"SANITIZE": "address", "LONG": "1"}, False), ({}, False)],
                         ids=["sanitize", "long", "plain"])
def test_with_a_sanitizer_the_fake_device_is_not_tested_again(tmp_path, more, left_out):
    """Nothing that a sanitizer changes runs in these tests; make test-long still selects them."""
    env = {**os.environ, "BUILD": str(tmp_path), "BIN": str(tmp_path / "bin"), "T": "", "SANITIZE": "", "LONG": "", **more}
    subprocess.run(["/usr/bin/python3", "-B", "tests/runner/run.py", "--targets"], cwd=harness.REPO, env=env, stdout=subprocess.PIPE, check=True)
    selected = json.loads((tmp_path / "selected-tests.json").read_text())
    again = {"kernels_cuda", "kernels_cuda_products", "tests/cli/test_fakecuda.py", "tests/cli/test_kernel_traffic.py", "tests/cli/test_build.py"}
    kept = {"device_cuda", "device_cuda_graph", "tests/cli/test_cuda.py", "tests/cli/test_gpu_check.py"}
    names = {*selected["units"], *selected["pytest"]}
    assert kept <= names and names & again == (set() if left_out else again), again - names


# ---- tools/setup.sh --------------------------------------------------------------------------

@pytest.mark.parametrize("words, message", [
    (["--check", "build", "tset"], "there is no group 'tset'; there are: browser build"), (["--chek", "build"], "no group '--chek'"),
    (["--list", "build demo"], "no group 'build demo'"), (["--check"], "name a group; there are: browser build")])
def test_setup_refuses_a_group_that_it_does_not_have(words, message):
    p = subprocess.run([harness.REPO / "tools/setup.sh", *words], capture_output=True, text=True, check=False)
    assert p.returncode == 2 and p.stdout == "" and message in p.stderr, p


def test_setup_lists_the_packages_of_groups():
    p = subprocess.run([harness.REPO / "tools/setup.sh", "--list", "demo", "slurm"], capture_output=True, text=True, check=False)
    assert p.returncode == 0 and {"hdf5-tools", "slurmd"} <= set(p.stdout.split()) and "gcc" not in p.stdout.split(), p


@pytest.mark.parametrize("installs, code, message", [
    (True, 0, "setup: warning: apt-get update failed, its output is above; continuing with the lists that it has"),
    (False, 1, "setup: apt-get could not install them; its output is above")])
def test_setup_continues_when_a_source_of_apt_fails(tmp_path, installs, code, message):
    """A source of others, which may have none of the packages."""
    for name in "bash", "cat", "cut", "env", "grep", "mktemp", "rm", "sort", "touch", "chmod":
        (tmp_path / name).symlink_to(shutil.which(name))
    for name, lines in (("id", "echo 0"), ("apt-get", """case $1 in
        update) echo "E: The repository 'http://elsewhere' does not have a Release file." >&2; exit 100 ;;
        install) %s ;;
    esac""" % ("touch %s/h5dump && chmod 755 %s/h5dump" % (tmp_path, tmp_path) if installs else "echo no candidate; exit 100"))):
        (tmp_path / name).write_text("#!%s\n%s\n" % (shutil.which("bash"), lines))
        (tmp_path / name).chmod(0o755)
    p = subprocess.run([tmp_path / "bash", harness.REPO / "tools/setup.sh", "demo"], capture_output=True, text=True, check=False,
                       env={"PATH": str(tmp_path)})
    assert p.returncode == code and message in p.stderr and "elsewhere" in p.stderr, p
    assert p.stdout.endswith("setup: installed\n") == installs


# ---- examples/curve.awk ----------------------------------------------------------------------

def curve(folder, losses, *words):
    log = folder / "log.jsonl"
    log.write_text("".join('{"step": %d, "loss": %s, "layout": "tp%d"}\n' % (i + 1, x, 1 + i // 2) for i, x in enumerate(losses)))
    return subprocess.run(["awk", "-f", harness.REPO / "examples/curve.awk", *words, log], capture_output=True, text=True,
                          check=False, timeout=60)


@pytest.mark.parametrize("losses", [[2.5, 2.25, 2, 1.5], [2.5, 2.5], [0, 0]])
def test_a_curve_is_a_picture_with_its_texts(tmp_path, losses):
    p = curve(tmp_path, losses, "-v", "title=A & B <x>", "-v", "note=1 < 2")
    assert p.returncode == 0, p
    texts = [t.text for t in xml.etree.ElementTree.fromstring(p.stdout).iter("{http://www.w3.org/2000/svg}text")]
    assert "A & B <x>" in texts and "1 < 2" in texts and "nan" not in p.stdout
    assert ("tp-reshard tp1 \u2192 tp2" in texts) == (len(losses) > 2)


@pytest.mark.parametrize("losses, words, message", [
    ([2.5], [], "curve: the logs have fewer than two steps"),
    ([2.5, 2], ["-v", "ref=nowhere.jsonl"], "curve: nowhere.jsonl: cannot be read")])
def test_a_curve_of_nothing_is_refused(tmp_path, losses, words, message):
    p = curve(tmp_path, losses, *words)
    assert (p.returncode, p.stderr, p.stdout) == (1, message + "\n", ""), p


FLAKY = """
import os, pytest
def test_good():
    pass
@pytest.mark.parametrize("n", ["a b", "[c]"])
def test_once(n):
    path = os.environ["TRIES"] + str(n == "[c]")
    again = os.path.exists(path)
    open(path, "w").close()
    assert again, "busy"
def test_bad():
    assert 1 == 2, "wrong number"
"""


def run_tests(folder, content, **more):
    """Run a file of tests by a copy of the runner in the folder."""
    for path in ("tests/runner/run.py", "tests/runner/selection.py", "tests/pytest.ini", "tests/conftest.py"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(harness.REPO / path, folder / path)
    (folder / "tests/some").mkdir()
    (folder / "tests/some/test_some.py").write_text(content)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TP_", "PYTEST"))}
    env.update(T="", BUILD="out", TRIES=str(folder / "tries"), PYTHON=sys.executable, **more)
    return subprocess.run([sys.executable, "-B", "tests/runner/run.py", "--folder", "tests/some"],
                          cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=False)


def test_failed_tests_run_again_alone(tmp_path):
    """A test that passes then counts as passed and is listed; one that fails again is shown at the end."""
    p = run_tests(tmp_path, FLAKY)
    assert p.returncode == 1
    assert p.stdout.endswith("\n3 passed, 1 failed\n")
    listed = [line for line in p.stdout.splitlines() if "failed beside other tests" in line]
    assert len(listed) == 2 and "test_once[a b]" in listed[0] and "test_once[[c]]" in listed[1]
    end = p.stdout.split("---- pytest failed")[1]
    assert "FAILED tests/some/test_some.py::test_bad" in end and "wrong number" in end


UNTIMED = """
import os
def test_untimed():
    assert "TP_TESTS_UNTIL" not in os.environ
"""


def test_failed_tests_run_again_although_the_time_is_over(tmp_path):
    p = run_tests(tmp_path, UNTIMED, TP_TESTS_UNTIL="99999999999")
    assert p.returncode == 0 and p.stdout.endswith("\n1 passed, 0 failed\n"), p.stdout
    assert "test_untimed: failed beside other tests, passed alone" in p.stdout


def test_an_end_of_the_time_that_is_empty_is_none(tmp_path):
    p = run_tests(tmp_path, "def test_good():\n    pass\n", TP_TESTS_UNTIL="")
    assert p.returncode == 0 and p.stdout.endswith("\n1 passed, 0 failed\n"), p.stdout


REPORTING = """
import os
def test_reports():
    options = dict(o.split("=") for o in os.environ["ASAN_OPTIONS"].split(":"))
    with open(options["log_path"] + ".17", "w") as f:
        f.write(%r)
    assert %s
"""


@pytest.mark.parametrize("passes, counts", [(False, "0 passed, 1 failed"), (True, "1 passed, 1 failed")])
def test_a_report_of_a_sanitizer_is_a_failure_once(tmp_path, passes, counts):
    p = run_tests(tmp_path, REPORTING % ("==17==ERROR: AddressSanitizer: heap-use-after-free\n", passes))
    assert p.returncode == 1 and p.stdout.endswith("\n%s\n" % counts)
    assert "==17==ERROR: AddressSanitizer: heap-use-after-free" in p.stdout


@pytest.mark.parametrize("text", ["", "==17==LeakSanitizer has encountered a fatal error.\n"])
def test_a_sanitizer_that_reported_nothing_is_no_failure(tmp_path, text):
    """A killed process can leave an empty file."""
    p = run_tests(tmp_path, REPORTING % (text, True))
    assert p.returncode == 0 and p.stdout.endswith("\n1 passed, 0 failed\n")


@pytest.mark.parametrize("sanitize,options,firsts", [("address", [], 8), ("", ["--folder", "tests/clients"], 8), ("", [], 1)])
def test_runs_that_may_not_end_begin_with_different_files(sanitize, options, firsts):
    """Each has all files. The end of a run has no time on a slow machine, so that it must not always be the same."""
    files, first = ["tests/cli/test_%s.py" % name for name in "abcdefgh"], set()
    for until in range(1, 30):
        env = {**os.environ, "SANITIZE": sanitize, "TP_TESTS_UNTIL": str(until)}
        p = subprocess.run(["/usr/bin/python3", "-B", "-c", "import run; print(*run.order(%r))" % files, *options], cwd=harness.REPO / "tests/runner",
                           env=env, stdout=subprocess.PIPE, text=True, check=True)
        assert sorted(p.stdout.split()) == files
        first.add(p.stdout.split()[0])
    assert len(first) == firsts
