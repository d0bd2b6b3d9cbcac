"""tp-reshard between random layouts of random models, compared with an independent resharder; and its
memory, processes and options. Each test prints its seed; TP_SEED sets it.

needs: tp-reshard tp-ckpt make_ckpt
covers: cli/reshard/tp_reshard cli/reshard/reshard_print cli/copy_options reshard/engine/share reshard/target_layout
"""
import filecmp
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
import naive_reshard

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
MAKE = harness.built("make_ckpt")


def make(folder, spec, config=None, seed=1, dtype="bf16", step=5):
    """A checkpoint root of random values."""
    folder.mkdir(parents=True, exist_ok=True)
    config = harness.write_config(folder, **(config or {}))
    harness.ok(MAKE, config, spec, folder / "ckpt", step, seed, dtype)
    return folder / "ckpt"


def random_config(rng):
    heads = 2 ** rng.randint(0, 3)
    shared = rng.randint(0, heads.bit_length() - 1)
    return {"num_attention_heads": heads, "num_key_value_heads": heads >> shared,
            "head_dim": 2 * rng.randint(1, 6), "hidden_size": rng.randint(1, 40),
            "intermediate_size": 8 * rng.randint(1, 8), "vocab_size": rng.randint(1, 70),
            "num_hidden_layers": rng.randint(1, 6), "tie_word_embeddings": rng.random() < 0.5}


def random_spec(rng, config):
    spec = "tp%d" % rng.choice([t for t in (1, 2, 4, 8) if t <= config["num_attention_heads"]])
    pp = rng.randint(1, config["num_hidden_layers"])
    vpp = rng.randint(1, config["num_hidden_layers"] // pp) if pp > 1 else 1
    return spec + "pp%dvpp%ddp%dcp%dzero%d" % (pp, vpp, rng.randint(1, 3), rng.randint(1, 2),
                                              rng.choice([0, 1, 3]))


def reshard(ckpt, spec, out, *more):
    return json.loads(harness.ok("tp-reshard", ckpt, "--to", spec, "-o", out, "--json", *more).out)


def step_dir(root):
    return harness.steps(root)[-1]


def same_shards(a, b):
    """Whether two step directories have the same shards. Their manifests differ in the save id."""
    names = sorted(p.name for p in a.glob("rank-*"))
    return names == sorted(p.name for p in b.glob("rank-*")) and all(
        filecmp.cmp(a / n, b / n, shallow=False) for n in names)


@pytest.mark.parametrize("n", range(60 if harness.LONG else 8))
def test_random_layouts_agree_with_the_naive_resharder(n, tmp_path):
    rng = random.Random(SEED + n)
    config = random_config(rng)
    a, b, c = (random_spec(rng, config) for _ in range(3))
    print("TP_SEED=%d: %s -> %s -> %s of %s" % (SEED + n, a, b, c, config))
    root = make(tmp_path, a, config, seed=n, dtype=rng.choice(["bf16", "fp32"]))
    before = harness.tree(root)

    reshard(root, b, tmp_path / "b", "--jobs", rng.randint(1, 3))
    naive_reshard.check(step_dir(root), step_dir(tmp_path / "b"), b)
    reshard(tmp_path / "b", c, tmp_path / "c")
    reshard(root, c, tmp_path / "direct")
    assert same_shards(step_dir(tmp_path / "c"), step_dir(tmp_path / "direct")), "A-C is not A-B-C"
    reshard(tmp_path / "b", a, tmp_path / "back")
    assert same_shards(step_dir(root), step_dir(tmp_path / "back")), "A-B-A is not A"
    for out in ("b", "c", "back"):
        assert harness.digest(tmp_path / out) == harness.digest(root)
        harness.ok("tp-ckpt", "verify", tmp_path / out)
    assert harness.tree(root) == before, "the source was written to"


def test_the_naive_resharder_finds_differences(tmp_path):
    """This shows that the test above can fail."""
    root = make(tmp_path, "tp4")
    reshard(root, "tp2", tmp_path / "b")
    with pytest.raises(naive_reshard.Differs, match="only 1 ranks|other elements"):
        naive_reshard.check(step_dir(root), step_dir(tmp_path / "b"), "tp1")
    shard = step_dir(tmp_path / "b") / "rank-00001.h5"
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    with pytest.raises(naive_reshard.Differs):
        naive_reshard.check(step_dir(root), step_dir(tmp_path / "b"), "tp2")


def test_out_is_named_after_ckpt_and_spec(tmp_path):
    root = make(tmp_path, "tp2")
    harness.ok("tp-reshard", str(root) + "/", "--to", "tp4")
    harness.ok("tp-reshard", step_dir(root), "--to", "tp=1")
    harness.ok("tp-reshard", ".", "--to", "tp8", cwd=root)
    harness.ok("tp-reshard", "ckpt", "--to", "tp2pp2", cwd=tmp_path)
    for name in ("ckpt-tp4", "ckpt-tp1", "ckpt-tp8", "ckpt-tp2pp2"):
        assert harness.digest(tmp_path / name) == harness.digest(root)


def test_a_slash_after_out_is_no_part_of_its_name(tmp_path):
    root = make(tmp_path, "tp2")
    out = harness.ok("tp-reshard", root, "--to", "tp4", "-o", str(tmp_path / "new") + "//").out
    assert "%s/new/step-" % tmp_path in out
    assert harness.digest(tmp_path / "new") == harness.digest(root)


def test_axes_that_to_does_not_name_are_kept(tmp_path):
    root = make(tmp_path, "tp4dp2zero1")
    assert reshard(root, "tp2", tmp_path / "b", "--from", "tp4")["to"] == "tp2dp2zero1"
    assert reshard(root, "dp1", tmp_path / "c", "--from", "zero1dp2")["to"].startswith("tp4")


def test_only_the_axes_that_from_names_are_checked(tmp_path):
    root = make(tmp_path, "tp4dp2")
    r = harness.run("tp-reshard", root, "--from", "tp8", "--to", "tp2")
    assert r.rc == 2 and "tp4dp2" in r.err and "tp8" in r.err
    assert not (tmp_path / "ckpt-tp2").exists()


def test_force_replaces_a_step_even_the_source(tmp_path):
    root = make(tmp_path, "tp4")
    digest = harness.digest(root)
    before = harness.tree(root)
    assert harness.run("tp-reshard", root, "--to", "tp2", "-o", root).rc == 2
    assert harness.tree(root) == before
    reshard(root, "tp2", root, "--force")
    assert harness.digest(root) == digest
    assert len(list(step_dir(root).glob("rank-*"))) == 2
    assert [p.name for p in root.glob("*.tmp*")] == []


def test_no_optim_copies_only_the_weights(tmp_path):
    root = make(tmp_path, "tp4")
    reshard(root, "tp2", tmp_path / "b", "--no-optim")
    lines = [line for line in harness.ok("tp-ckpt", "digest", root).out.splitlines()
             if "param/" in line]
    assert lines and harness.ok("tp-ckpt", "digest", tmp_path / "b").out.splitlines()[:-1] == lines


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_dtype_casts_only_the_weights(dtype, tmp_path):
    root = make(tmp_path, "tp4")
    result = reshard(root, "tp2", tmp_path / "b", "--dtype", dtype)
    _, types_a, a, _ = naive_reshard.assemble(step_dir(root))
    _, types_b, b, _ = naive_reshard.assemble(step_dir(tmp_path / "b"))
    for key in a:
        if key[0] == "param":
            assert types_b[key] == dtype
            wide = (a[key].astype("u4") << 16).view("f4")
            want = (a[key] if dtype == "bf16" else wide.view("u4") if dtype == "f32" else
                    naive_reshard.np.asarray(wide, "f2").view("u2"))
            assert naive_reshard.np.array_equal(want, b[key]), key
        else:
            assert types_b[key] == types_a[key] and (a[key] == b[key]).all()
    n_params = sum(key[0] == "param" for key in a)
    assert result["casts"] == (0 if dtype == "bf16" else n_params)
    assert result["digests_equal"] == len(a) - result["casts"]


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    root = make(tmp_path, "tp8")
    before = harness.tree(tmp_path)
    text = harness.ok("tp-reshard", root, "--to", "tp4", "--dry-run").out
    plan = reshard(root, "tp4", tmp_path / "b", "--dry-run")
    assert harness.tree(tmp_path) == before
    assert "model.layers.#.self_attn.q_proj.weight" in text and "merge" in text
    assert plan["dry_run"] and {k["what"] for k in plan["plan"]} >= {"merge", "copy"}
    done = reshard(root, "tp4", tmp_path / "b")
    for field in ("bytes_read", "bytes_written", "boxes", "files", "windows", "tensors"):
        assert plan[field] == done[field], field
    assert sum(k["bytes"] for k in plan["plan"]) == done["bytes_written"]
    assert sum(k["count"] for k in plan["plan"]) == done["tensors"]
    if not harness.SANITIZE:  # sanitizers use memory themselves
        assert done["peak_rss_bytes"] <= plan["peak_rss_bytes"]


def test_help_says_what_a_gpu_needs():
    text = " ".join(harness.ok("tp-reshard", "--help").out.split())
    assert "--device cuda needs libtp-cuda.so, as tp-train does (docs/GPU.md)." in text


def test_json_has_the_fields_of_the_contract(tmp_path):
    root = make(tmp_path, "tp4", step=70)
    result = reshard(root, "tp2", tmp_path / "b")
    assert {"from", "to", "step", "tensors", "boxes", "bytes_read", "bytes_written", "seconds",
            "peak_rss_bytes", "device", "out"} <= set(result)
    assert (result["from"], result["to"], result["step"]) == ("tp4", "tp2", 70)
    assert result["bytes_read"] == result["bytes_written"]
    assert result["digests_equal"] == result["tensors"]


# ---- memory ----

MEASURE = """
import resource, subprocess, sys
p = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
sys.stderr.buffer.write(p.stderr)
print(p.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def peak(*argv):
    """Run a program. Returns its exit code, the kernel's count of its peak resident bytes, and its stderr. A
    second, small Python starts it, because a child starts with the peak of its parent."""
    p = subprocess.run(["/usr/bin/python3", "-I", "-S", "-c", MEASURE, *harness.command(argv)],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rc, rss = p.stdout.split()
    return int(rc), int(rss), p.stderr


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of about 500 MiB whose tensors are larger than the buffers."""
    return make(tmp_path_factory.mktemp("large"), "tp8", {
        "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 8000, "head_dim": 64,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 2})


@pytest.mark.skipif(bool(harness.SANITIZE), reason="sanitizers use memory themselves")
@pytest.mark.parametrize("spec,jobs", [("tp4", 1), ("tp1pp2", 2), ("tp8dp3zero1", 2)])
def test_memory_stays_within_mem_for_a_checkpoint_ten_times_as_large(spec, jobs, large, tmp_path, figure):
    size = sum(p.stat().st_size for p in large.rglob("*.h5"))
    mem = 48 << 20
    assert size > 10 * mem
    rc, rss, err = peak("tp-reshard", large, "--to", spec, "-o", tmp_path / "b", "--mem", "48M",
                        "--jobs", jobs)
    assert rc == 0, err
    assert rss <= mem
    figure("MiB of --mem 48M to reshard %.0f MiB to %s" % (size / 2 ** 20, spec), round(rss / 2 ** 20, 1))
    assert harness.digest(tmp_path / "b") == harness.digest(large)


@pytest.mark.skipif(bool(harness.SANITIZE), reason="sanitizers use memory themselves")
@pytest.mark.parametrize("options", [[], ["--zstd"]], ids=["raw", "zstd"])
def test_too_little_memory_is_refused_and_the_named_number_is_enough(options, large, tmp_path):
    r = harness.run("tp-reshard", large, "--to", "tp4", "-o", tmp_path / "b", *options, "--mem", "8M")
    assert r.rc == 2 and "at least" in r.err
    assert not (tmp_path / "b").exists()
    need = float(r.err.split("at least ")[1].split()[0])
    mem = "%dk" % ((need + 1) * 1024)
    rc, rss, err = peak("tp-reshard", large, "--to", "tp4", "-o", tmp_path / "b", *options, "--mem", mem)
    assert rc == 0, err
    assert rss <= (need + 1) * 2 ** 20


# ---- several processes ----

def mpirun(n, *argv):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", n, *harness.command(argv)]


@pytest.mark.parametrize("n", [2, 3])
def test_several_processes_share_the_work_and_write_the_same_bytes(n, tmp_path):
    root = make(tmp_path, "tp8dp2zero1")
    one = reshard(root, "tp2pp2", tmp_path / "one")
    r = harness.ok(*mpirun(n, "tp-reshard", root, "--to", "tp2pp2", "-o", tmp_path / "many",
                           "--json"))
    many = json.loads(r.out)
    assert many["processes"] == n
    assert many["bytes_read"] == one["bytes_read"], "some bytes are read by two processes"
    assert same_shards(step_dir(tmp_path / "one"), step_dir(tmp_path / "many"))
    harness.ok("tp-ckpt", "verify", tmp_path / "many")


@pytest.mark.parametrize("n", [2, 5])
def test_several_processes_plan_the_same_as_one(n, tmp_path):
    """Each plans its own tensors; the parts add up, and every box is still proved."""
    root = make(tmp_path, "tp8dp2zero1", {"num_hidden_layers": 3})
    argv = ["tp-reshard", root, "--to", "tp2pp3", "--dry-run"]
    same = ["bytes_read", "bytes_written", "splits", "merges", "copies", "boxes", "boxes_from", "windows"]

    def plans(*prefix):
        text = harness.ok(*prefix, *argv).out.splitlines()
        report = json.loads(harness.ok(*prefix, *argv, "--json").out)
        return [line for line in text if "param" in line or "exp_avg" in line or "master" in line], {
            key: report[key] for key in same}

    assert plans(*mpirun(n)) == plans()
    assert plans()[0], "the table of kinds is compared too"


def test_several_processes_find_damage(tmp_path):
    root = make(tmp_path, "tp4", {"hidden_size": 256, "vocab_size": 3000})
    shard = sorted(step_dir(root).glob("rank-*"))[2]
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 4
    shard.write_bytes(data)
    r = harness.run(*mpirun(2, "tp-reshard", root, "--to", "tp2", "-o", tmp_path / "b"))
    assert r.rc == 3 and shard.name in r.err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("start,to,name,kept", [
    ("tp8", "tp4", "tp4", None), ("tp8", "dp2", "tp8dp2", "tp8"), ("tp2pp2", "tp4", "tp4pp2", "pp2"),
    ("tp2dp2zero1", "pp=2", "tp2pp2dp2zero1", "tp2dp2zero1"), ("tp2pp2", "pp1", "tp2", "tp2")])
def test_the_default_output_is_the_whole_layout_and_kept_axes_are_named(start, to, name, kept, tmp_path):
    root = make(tmp_path, start)
    for more in (["--dry-run"], []):
        r = harness.ok("tp-reshard", root, "--to", to, *more)
        first, = [x for x in r.out.splitlines()[:1]]
        assert "%s -> %s, step 5" % (start, name) in first
        assert ("(%s kept" % kept in first) if kept else first.endswith("step 5")
    assert [p.name for p in tmp_path.glob("ckpt-*")] == ["ckpt-" + name]
    r = json.loads(harness.ok("tp-reshard", root, "--to", to, "--json", "--force").out)
    assert r["kept"] == (kept or "") and r["out"].endswith("ckpt-" + name)
