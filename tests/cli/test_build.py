"""tools/link.awk: the source files that a program is linked from; and what `make test T=` builds.

needs:
"""
import json
import os
import subprocess

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
    "fake/box.c": "int box_size(int n)\n{\n    return fake_size(n);\n}\n",
    "fake/size.c": "int fake_size(int n)\n{\n    return 2 * n;\n}\n",
}


@pytest.fixture
def uses(tmp_path):
    """uses(main, folder) is the files that the awk program finds for a program with this main()."""
    for path, text in SOURCES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("/* A file. */\n" + text)

    def of(main, folder=None):
        (tmp_path / "main.c").write_text("/* A program. */\n" + main)
        program = "tool=main.c" + (",%s" % folder if folder else "")
        p = subprocess.run(["awk", "-f", harness.REPO / "tools/link.awk", program, "--", *SOURCES],
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
], ids=["macro-and-prototype", "comments-and-strings", "static-function-of-its-own"])
def test_prototypes_comments_strings_and_static_functions_link_nothing(uses, main):
    assert uses(main) == ({"a/cut", "a/box"} if "cut.h" in main else set())


def test_an_included_source_file_counts_as_part_of_the_file_that_includes_it(uses):
    assert uses('#include "a/cut.c"\nint main(void)\n{\n    return cut_one(1);\n}\n') == {"a/box"}


def test_a_variant_prefers_the_definitions_of_its_folder(uses):
    main = "int main(void)\n{\n    return cut_one(1) + box_size(1);\n}\n"
    assert uses(main) == {"a/cut", "a/box"}
    assert uses(main, "fake") == {"a/cut", "fake/box", "fake/size"}


@pytest.mark.parametrize("pattern,targets", [
    ("layout_box", ["tests/layout_box"]),
    ("box/formats_as*", ["tests/layout_box"]),
    ("mpi-comm_plain", ["tests/mpi/comm_plain"]),
    ("check-deps", []),
    ("no test has this in its name", None),
], ids=["program", "criterion", "mpirun", "check", "wrong"])
def test_a_pattern_builds_what_its_tests_need_and_nothing_else(tmp_path, pattern, targets):
    env = {**os.environ, "T": pattern, "BUILD": str(tmp_path), "BIN": str(tmp_path / "bin")}
    p = subprocess.run(["/usr/bin/python3", "-B", "tests/runner/run.py", "--targets"], cwd=harness.REPO,
                       env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if targets is None:
        assert p.returncode == 1 and p.stderr == "no test matches T='%s'\n" % pattern
        return
    assert p.stdout.split() == ["%s/%s" % (tmp_path, t) for t in targets]
    selected = json.loads((tmp_path / "selected-tests.json").read_text())
    assert not selected["pytest"]
