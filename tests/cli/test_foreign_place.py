"""People name the folder above a checkpoint of another framework, a rank's folder or file in it, or what is
none: the message says which folder is meant, or what is missing.

needs: tp-train tp-reshard tp-ckpt
covers: reshard/formats/foreign_place
"""
import json
import os
import shutil
import subprocess

import pytest

import harness
from harness import ok, run


@pytest.fixture(scope="module")
def written(tmp_path_factory, tiny):
    """A folder that has a checkpoint of each format, in a folder of its name."""
    folder = tmp_path_factory.mktemp("written")
    harness.train(tiny, folder / "ckpt", steps=2, layout="tp2")
    for kind in "safetensors", "dcp", "megatron", "torch_dist", "deepspeed":
        cut = ["--max-shard-size", "64K"] if kind == "safetensors" else []
        ok("tp-ckpt", "export", folder / "ckpt", "--format", kind, *cut, "-o", folder / kind)
    shutil.rmtree(folder / "ckpt")
    return folder


def verbs(source, tmp_path):
    yield "tp-ckpt", "import", source, "-o", tmp_path / "out"
    yield "tp-reshard", source, "--to", "tp1", "-o", tmp_path / "out"
    yield "tp-reshard", source, "--to", "tp1", "--format", "dcp", "-o", tmp_path / "out"
    yield "tp-ckpt", "export", source, "-o", tmp_path / "out"
    for verb in "ls", "show", "verify", "digest":
        yield "tp-ckpt", verb, source
    yield "tp-ckpt", "diff", source, source


def refused(source, words, tmp_path):
    for argv in verbs(source, tmp_path):
        r = run(*argv)
        assert r.rc == 2 and len(r.lines) == 1 and all(word in r.err for word in words), repr(r)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["megatron", "torch_dist"])
@pytest.mark.parametrize("tracker", [None, "100"])
def test_a_tracker_that_names_no_iteration(kind, tracker, written, tmp_path):
    folder = shutil.copytree(written / kind, tmp_path / kind)
    (folder / "latest_checkpointed_iteration.txt").unlink()
    words = ["below it is %s/iter_0000002; name this folder" % folder]
    if tracker:
        (folder / "latest_checkpointed_iteration.txt").write_text(tracker)
        words.append("although its latest_checkpointed_iteration.txt says 100;")
    refused(folder, words, tmp_path)
    ok("tp-reshard", folder / "iter_0000002", "--to", "tp1", "--config", folder / "config.json", "-o", tmp_path / "out")


@pytest.mark.parametrize("kind, step", [
    ("megatron", "iter_0000002"), ("torch_dist", "iter_0000002"), ("deepspeed", "global_step2_universal")])
def test_a_step_has_the_config_and_the_tokenizer_of_the_folder_above(kind, step, written, tmp_path):
    folder = shutil.copytree(written / kind, tmp_path / kind)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "from_above": 1}))
    (folder / "tokenizer.json").write_text("{}")
    ok("tp-reshard", folder / step, "--to", "tp1", "--format", "safetensors", "-o", tmp_path / "hf")
    assert json.loads((tmp_path / "hf/config.json").read_text())["from_above"] == 1
    assert (tmp_path / "hf/tokenizer.json").read_text() == "{}"
    assert "shapes are those of a config.json" not in ok("tp-ckpt", "verify", folder / step).out
    for tracker in folder.glob("latest*"):
        tracker.unlink()
    r = run("tp-reshard", folder / step, "--to", "tp1", "--format", "safetensors", "-o", tmp_path / "other")
    assert "there is no config.json" in r.err or r.rc == 2 and "has no config.json" in r.err, repr(r)


@pytest.mark.parametrize("kind", ["megatron", "torch_dist"])
def test_a_run_below_another_run_has_a_config_of_its_own(kind, written, tmp_path):
    above = shutil.copytree(written / kind, tmp_path / kind)
    (above / "config.json").write_text("{}")
    below = shutil.copytree(written / kind, above / "again")
    (below / "config.json").unlink()
    r = ok("tp-ckpt", "import", below, "-o", tmp_path / "out")
    assert "there is no config.json" in r.err, repr(r)


def test_a_format_that_is_not_the_folder_s(written, tmp_path):
    r = run("tp-reshard", written / "dcp", "--from-format", "megatron", "--to", "tp1", "-o", tmp_path / "out")
    assert r.rc == 2 and "dcp has the format dcp, not megatron: " in r.err, repr(r)
    (tmp_path / "empty").mkdir()
    r = run("tp-ckpt", "import", tmp_path / "empty", "-o", tmp_path / "out")
    assert r.rc == 2 and "empty: its files are of no known format" in r.err, repr(r)


@pytest.mark.parametrize("kind", ["safetensors", "dcp", "megatron", "torch_dist", "deepspeed"])
def test_a_folder_that_is_called_like_a_step_is_known_by_its_files(kind, written, tmp_path):
    """Other programs call theirs so, too."""
    folder = shutil.copytree(written / kind, tmp_path / "outputs/step-00000007")
    config = ("--config", folder / "config.json")
    for verb in "ls", "show", "verify", "digest":
        assert ok("tp-ckpt", verb, folder).out.replace(str(folder), "X") == ok(
            "tp-ckpt", verb, written / kind).out.replace(str(written / kind), "X")
    ok("tp-ckpt", "diff", folder, written / kind)
    ok("tp-ckpt", "import", str(folder) + "/", *config, "-o", tmp_path / "ckpt")
    ok("tp-reshard", folder, "--to", "tp2", "--format", "tp", *config, "-o", tmp_path / "out")
    assert ok("tp-ckpt", "digest", tmp_path / "ckpt").out == ok("tp-ckpt", "digest", tmp_path / "out").out
    r = run("tp-reshard", tmp_path / "ckpt", "--to", "tp2", "-o", folder)
    assert r.rc == 2 and "has the name of a step" in r.err and len(r.lines) == 1, repr(r)


def test_the_folder_above_one_that_is_called_like_a_step(written, tmp_path):
    folder = shutil.copytree(written / "dcp", tmp_path / "outputs/step-00000007")
    refused(tmp_path / "outputs", ["below it is %s; name this folder" % folder], tmp_path)
    ok("tp-ckpt", "import", folder, "-o", tmp_path / "outputs", "--step", 3)  # beside a step of tp-train it is none of its steps
    r = ok("tp-ckpt", "show", tmp_path / "outputs")
    assert "step-00000003" in r.out and "falling back" in r.err, repr(r)
    r = run("tp-ckpt", "import", tmp_path / "outputs", "-o", tmp_path / "out")
    assert r.rc == 2 and "needs no import" in r.err, repr(r)


def test_a_step_without_its_manifest_stays_one(written, tmp_path):
    ok("tp-ckpt", "import", written / "deepspeed", "--config", written / "deepspeed/config.json", "-o", tmp_path / "ckpt")
    step, = harness.steps(tmp_path / "ckpt")
    (step / "manifest.json").unlink()
    for argv in (["tp-ckpt", "show", step], ["tp-reshard", step, "--to", "tp1"]):
        r = run(*argv)
        assert r.rc in (2, 3) and "has no manifest.json" in r.err and len(r.lines) == 1, repr(r)


def test_a_latest_that_names_no_folder(written, tmp_path):
    folder = shutil.copytree(written / "deepspeed", tmp_path / "deepspeed")
    (folder / "latest_universal").write_text("global_step99\n")
    refused(folder, ["latest_universal says global_step99", "%s/global_step2_universal" % folder], tmp_path)


def test_the_default_output_of_the_current_folder_is_beside_it(written, tmp_path):
    shutil.copytree(written / "safetensors", tmp_path / "hf")
    for source, spec in (".", "tp1"), ("./", "tp2"):
        before = os.listdir(tmp_path / "hf")
        ok("tp-reshard", source, "--to", spec, "--format", "dcp", cwd=tmp_path / "hf")
        assert (tmp_path / ("hf-" + spec) / ".metadata").exists() and os.listdir(tmp_path / "hf") == before


def test_the_folder_above(written, tmp_path):
    shutil.copytree(written / "dcp", tmp_path / "run/checkpoint/step-500")
    refused(tmp_path / "run", ["%s/run/checkpoint/step-500; name this folder" % tmp_path], tmp_path)
    shutil.copytree(written / "dcp", tmp_path / "run/checkpoint/step-1000")
    refused(tmp_path / "run/checkpoint", ["/step-1000, ", "/step-500; name one of them"], tmp_path)
    cache = tmp_path / "hub/models--me--llama/snapshots/abc"
    cache.parent.mkdir(parents=True)
    cache.symlink_to(written / "safetensors")
    refused(tmp_path / "hub", ["%s; name this folder" % cache], tmp_path)


def test_checkpoints_of_this_project_are_named_too(trained, tmp_path):
    harness.copy(trained, tmp_path / "runs/ckpt")
    r = run("tp-ckpt", "ls", tmp_path / "runs")
    assert r.rc == 2 and "below it is %s/runs/ckpt; name this folder" % tmp_path in r.err, repr(r)


@pytest.mark.parametrize("part, whole", [
    ("megatron/iter_0000002/mp_rank_01", "megatron/iter_0000002"),
    ("deepspeed/global_step2_universal/zero", "deepspeed/global_step2_universal"),
    ("deepspeed/global_step2_universal/zero/lm_head.weight", "deepspeed/global_step2_universal")])
def test_a_folder_below(part, whole, written, tmp_path):
    refused(written / part, ["is a part of the checkpoint in %s; name that folder" % (written / whole)], tmp_path)


@pytest.mark.parametrize("part, whole", [
    ("megatron/latest_checkpointed_iteration.txt", "megatron"), ("dcp/__0_0.distcp", "dcp"),
    ("megatron/iter_0000002/mp_rank_00/model_optim_rng.pt", "megatron/iter_0000002")])
def test_a_file(part, whole, written, tmp_path):
    r = run("tp-reshard", written / part, "--to", "tp1", "-o", tmp_path / "out")
    assert r.rc == 2 and "in %s; name that folder" % (written / whole) in r.err, repr(r)


@pytest.mark.parametrize("kind, lost, words", [
    ("dcp", ".metadata", ".distcp, but there is no .metadata"),
    ("torch_dist", "iter_0000002/.metadata", ".distcp, but there is no .metadata"),
    ("megatron", "iter_0000002/mp_rank_00", "mp_rank_01, but there is no complete mp_rank_00"),
    ("safetensors", "model.safetensors.index.json", ".safetensors, but there is no model.safetensors.index.json")])
def test_a_file_that_was_not_copied(kind, lost, words, written, tmp_path):
    folder = shutil.copytree(written / kind, tmp_path / kind)
    if (folder / lost).is_dir():
        shutil.rmtree(folder / lost)
    else:
        (folder / lost).unlink()
    refused(folder, [words], tmp_path)


@pytest.mark.parametrize("name, words", [
    ("adapter_config.json", "merge it into its base model"), ("model.gguf", "GGUF is written and not read"),
    ("consolidated.01.pth", "there is no consolidated.00.pth"),
    ("consolidated-00001-of-00005.safetensors", "import the model's files of Hugging Face")])
def test_what_is_no_checkpoint(name, words, tiny, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tiny, folder / "config.json")
    (folder / name).write_text(json.dumps({"peft_type": "LORA"}))
    refused(folder, [words], tmp_path)


def test_a_config_json_that_is_needed_is_asked_for(written, tmp_path):
    folder = shutil.copytree(written / "dcp", tmp_path / "dcp")
    (folder / "config.json").unlink()
    for argv in (["tp-ckpt", "import", folder, "-o", tmp_path / "out"],
                 ["tp-reshard", folder, "--to", "tp1", "-o", tmp_path / "out"]):
        r = run(*argv)
        assert r.rc == 2 and "has no config.json" in r.err and "--config FILE" in r.err, repr(r)


def test_export_names_the_program_that_converts(written, tmp_path):
    r = run("tp-ckpt", "export", written / "dcp", "--format", "safetensors", "-o", tmp_path / "hf")
    said = "tp-reshard %s --to tp1 --format safetensors -o %s converts it" % (written / "dcp", tmp_path / "hf")
    assert r.rc == 2 and "has the format dcp" in r.err and said in r.err, repr(r)
    ok(*said[:-len(" converts it")].split())
    assert (tmp_path / "hf/model.safetensors").exists()


@pytest.mark.parametrize("name", ["my model", "it's $(touch ran); \"x\"", "-o", "two\nlines \\ \x1b[31m", "caf\udce9"])
def test_a_command_in_a_message_can_be_copied_into_a_shell(name, written, tmp_path):
    shutil.copytree(written / "safetensors", tmp_path / name)
    r = run("tp-ckpt", "export", "-o", name + "2", "--format", "dcp", "--", name, cwd=tmp_path)
    command = r.err[r.err.index("; tp-reshard ") + 2:r.err.index(" converts it")]
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": "%s:%s" % (harness.BIN, os.environ["PATH"])}, capture_output=True)
    assert r.rc == 2 and done.returncode == 0 and (tmp_path / (name + "2")).is_dir(), (repr(r), done)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["safetensors", "dcp"])
def test_steps_come_before_files_of_another_framework_beside_them(kind, written, tmp_path, tiny):
    """tp-train resumes from the steps, so no program may read the older weights beside them instead."""
    both, plain = tmp_path / "both", tmp_path / "plain"
    harness.train(tiny, plain, steps=3, layout="tp2")
    shutil.copytree(plain, both)
    shutil.copytree(written / kind, both, dirs_exist_ok=True)
    r = ok("tp-ckpt", "ls", both)
    assert "step-00000003" in r.out and "also has files of" in r.err and str(both) in r.err, repr(r)
    assert "also has" not in ok("tp-ckpt", "ls", plain).err
    assert harness.digest(both) == harness.digest(plain)
    assert "both/step-00000003: " in ok("tp-ckpt", "verify", both).out
    assert "tp2: 2 ranks" in ok("tp-ckpt", "show", both).out
    ok("tp-ckpt", "diff", both, plain)
    assert "resharded tp2 -> tp1, step 3" in ok("tp-reshard", both, "--to", "tp1", "-o", tmp_path / "out").out


def test_weights_without_a_step_are_resharded_without_one(written, tmp_path):
    """Safetensors have no step; one that is given, or that is written, is named."""
    source = written / "safetensors"
    r = ok("tp-reshard", source, "--to", "tp1", "-o", tmp_path / "a")
    assert r.out.splitlines()[0] == "resharded safetensors -> safetensors", repr(r)
    assert json.loads(ok("tp-reshard", source, "--to", "tp1", "-o", tmp_path / "b", "--json").out)["step"] == 0
    r = ok("tp-reshard", source, "--to", "tp1", "-o", tmp_path / "c", "--step", 7)
    assert r.out.splitlines()[0] == "resharded safetensors -> safetensors, step 7", repr(r)
    r = ok("tp-reshard", source, "--to", "tp1", "-o", tmp_path / "d", "--format", "tp")
    assert r.out.splitlines()[0] == "resharded safetensors -> tp at tp1, step 0", repr(r)
