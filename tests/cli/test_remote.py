"""Checkpoints on web servers and in S3-compatible stores: identical bytes, or a clear error.

needs: tp-ckpt tp-reshard make_ckpt fault/no_threads.so
covers: storage/http storage/remote storage/remote_object storage/remote_segment storage/remote_range storage/s3_list
covers: storage/remote_request
covers: storage/folder ckpt/step_remote ckpt/shard_opener reshard/engine/look_ahead cli/remote_env
"""
import json
import os
import re
import signal
import subprocess
import time

import pytest

import harness
from object_store import ACCESS_KEY, SECRET_KEY, TOKEN, Fault, ObjectStore, fails, ok, run
from test_faults import preload

CERTIFICATE = harness.REPO / "tests/fixture/localhost.pem"
SHARD = "rank-00001.h5"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A root with two steps, tp2 and tp4."""
    folder = tmp_path_factory.mktemp("remote")
    config = harness.write_config(folder)
    for step, spec in ((1, "tp4"), (2, "tp2")):
        harness.ok(harness.built("make_ckpt"), config, spec, folder / "ckpt", step, 11, "bf16")
    return folder / "ckpt"


@pytest.fixture(scope="module")
def digest(root):
    return harness.ok("tp-ckpt", "digest", root).out


@pytest.fixture
def store(root):
    with ObjectStore() as s:
        s.add_tree("bucket/runs/ckpt", root)
        yield s


@pytest.fixture
def web(root):
    with ObjectStore(public=True) as s:
        s.add_tree("runs/ckpt", root)
        yield s


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


CKPT = "s3://bucket/runs/ckpt"


@pytest.mark.parametrize("fault", [503, "stall"])
def test_a_signal_while_the_server_cannot_be_reached_keeps_what_was_copied(store, root, tmp_path, fault):
    out = tmp_path / "out"
    argv = ["tp-reshard", CKPT, "--to", "tp1", "-o", out]
    store.faults.append(Fault(fault, times=10 ** 6, path=SHARD, after=1, seconds=60))  # after its index
    p = subprocess.Popen(harness.command(argv), stderr=subprocess.PIPE, text=True,
                         env={**os.environ, **store.environment(TP_REMOTE_TIMEOUT="24")})
    deadline = time.monotonic() + 60
    while not (out.exists() and store.faults[0].seen > 1) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 75 and "run the same command again" in err, err
    assert list(out.glob("step-00000002.tmp-*/progress")), os.listdir(out)
    store.faults.clear()
    assert "resuming an interrupted run" in ok(store, *argv).err
    assert harness.digest(out) == harness.digest(root)


def test_a_process_that_cannot_start_a_thread_says_so(store, root, tmp_path):
    """It waited for ever."""
    env = {"LD_PRELOAD": preload(harness.built("fault/no_threads.so"))}
    for argv in (["verify", CKPT], ["digest", CKPT, "--jobs", "1"], ["diff", CKPT, root],
                 ["export", CKPT, "-o", tmp_path / "hf"]):
        r = fails(store, "tp-ckpt", *argv, says="no thread can be started", **env)
        assert "ulimit -u" in r.err, repr(r)


def test_every_command_answers_as_for_a_local_checkpoint(store, root, tmp_path):
    for argv in (["show"], ["show", "--json"], ["verify", "--json"], ["digest"], ["digest", "--index"],
                 ["show", "--step", "1"]):
        here = harness.ok("tp-ckpt", argv[0], root, *argv[1:])
        there = ok(store, "tp-ckpt", argv[0], CKPT, *argv[1:])
        strip = lambda text: re.sub(r'"seconds": [\d.e-]+', "", text)  # noqa: E731
        assert strip(there.out).replace(CKPT, "ROOT") == strip(here.out).replace(str(root), "ROOT")
    assert [s["step"] for s in json.loads(ok(store, "tp-ckpt", "ls", CKPT, "--json").out)] == [1, 2]
    assert ok(store, "tp-ckpt", "diff", CKPT, root).rc == 0
    ok(store, "tp-ckpt", "export", CKPT, "-o", tmp_path / "there")
    harness.ok("tp-ckpt", "export", root, "-o", tmp_path / "here")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert all("Authorization" in {k.title() for k in h} for _, _, h in store.requests)


def reshard(store, ckpt, out, *more, **changes):
    return run(store, "tp-reshard", ckpt, "--to", "tp4pp2", "--out", out, *more, **changes)


def test_a_remote_source_is_resharded_to_the_same_bytes(store, web, root, digest, tmp_path):
    harness.ok("tp-reshard", root, "--to", "tp4pp2", "--out", tmp_path / "here")
    for number, ckpt in enumerate((CKPT, CKPT + "/step-00000002/", web.url + "/runs/ckpt")):
        out = tmp_path / str(number)
        assert reshard(store, ckpt, out).rc == 0
        for shard in (tmp_path / "here/step-00000002").glob("*.h5"):
            assert (out / "step-00000002" / shard.name).read_bytes() == shard.read_bytes()
        assert harness.ok("tp-ckpt", "digest", out).out == digest


def test_compressed_checkpoints_are_read(root, digest, tmp_path):
    harness.ok("tp-reshard", root, "--to", "tp2", "--out", tmp_path / "ckpt", "--zstd")
    with ObjectStore() as store:
        store.add_tree("bucket/runs/ckpt", tmp_path / "ckpt")
        ok(store, "tp-ckpt", "verify", CKPT)
        assert ok(store, "tp-ckpt", "digest", CKPT).out == digest
        assert reshard(store, CKPT, tmp_path / "raw", "--mem", "128M").rc == 0
        assert reshard(store, CKPT, tmp_path / "zstd", "--zstd").rc == 0
    for out in ("raw", "zstd"):
        assert harness.ok("tp-ckpt", "digest", tmp_path / out).out == digest


def fetched(store, folder):
    """What was sent of the shards in a folder: bytes, and requests."""
    ranges = [re.search(r"bytes=(\d+)-(\d+)", h.get("range", "")) for m, path, h in store.requests
              if m == "GET" and "step-00000001" in path and path.endswith(".h5")]
    return sum(int(r[2]) - int(r[1]) + 1 for r in ranges), len(ranges), sum(f.stat().st_size for f in folder.glob("*.h5"))


# With a sanitizer the program itself needs more.
MEM = "192M" if harness.SANITIZE else "96M"


@pytest.mark.parametrize("zstd", [[], ["--zstd"]], ids=["raw", "zstd"])
def test_each_byte_is_fetched_once_and_in_few_requests(zstd, figure, tmp_path):
    config = harness.write_config(tmp_path, hidden_size=256, intermediate_size=704, vocab_size=2000)
    harness.ok(harness.built("make_ckpt"), config, "tp4", tmp_path / "raw", 1, 11, "bf16")
    harness.ok("tp-reshard", tmp_path / "raw", "--to", "tp4", "--out", tmp_path / "ckpt", *zstd)
    for argv in (["tp-ckpt", "verify", CKPT, "--jobs", "4"],
                 ["tp-reshard", CKPT, "--to", "tp2", "--out", tmp_path / "out", "--mem", MEM, "--jobs", "4"],
                 ["tp-ckpt", "export", CKPT, "-o", tmp_path / "hf"]):
        with ObjectStore() as store:
            store.add_tree("bucket/runs/ckpt", tmp_path / "ckpt")
            ok(store, *argv)
            sent, requests, size = fetched(store, tmp_path / "ckpt/step-00000001")
        if "-o" not in argv:
            figure("%s%s: bytes fetched / bytes of the shards" % (argv[0], " ".join(["", *zstd])), sent / size)
        assert sent < 1.1 * size, argv
        assert requests < 16 + 12 * 4 + sent / 100e3, argv


def test_a_web_server_needs_no_listing(web, root, digest):
    url = web.url + "/runs/ckpt"
    for argv in ([url], [url + "/"], [url + "/step-00000002"], [url, "--step", "2"]):
        assert ok(web, "tp-ckpt", "digest", *argv).out == digest
    older = ok(web, "tp-ckpt", "digest", url, "--step", "1").out
    assert older == harness.ok("tp-ckpt", "digest", root, "--step", "1").out
    assert not any("Authorization" in h for _, _, h in web.requests)
    fails(web, "tp-ckpt", "show", web.url + "/nothing", says="latest/manifest.json", code=2)
    fails(web, "tp-ckpt", "show", url, "--step", "9", says="step-00000009", code=2)
    for key in [k for k in web.objects if "/latest/" in k]:
        del web.objects[key]
    for verb in "show", "verify", "digest":
        assert ok(web, "tp-ckpt", verb, url, "--step", "1").out == ok(web, "tp-ckpt", verb, url + "/step-00000001").out
    ok(web, "tp-reshard", url, "--step", "1", "--to", "tp1", "--dry-run", "-o", "nowhere")
    fails(web, "tp-ckpt", "verify", url, says="or --step N", code=2)
    fails(web, "tp-ckpt", "verify", url, "--step", "9", says="step-00000009: has no manifest.json", code=2)


def test_urls_with_secrets_are_refused_and_not_repeated(web):
    for url in (web.url.replace("//", "//user:hidden@") + "/runs/ckpt", web.url + "/runs/ckpt?X-Amz-Signature=hidden"):
        r = fails(web, "tp-ckpt", "show", url, says="the URL has", code=2)
        assert "hidden" not in r.out + r.err


def test_a_misspelt_url_is_no_local_folder(root, tmp_path):
    for url in "S3://bucket/k", "s3:/bucket/k", "HTTPS://host/k", "http:/host/k":
        for command in (["tp-ckpt", "ls", url], ["tp-reshard", root, "--to", "tp2", "-o", url],
                        ["tp-ckpt", "export", root, "-o", url]):
            r = harness.run(*command, cwd=tmp_path)
            assert r.rc == 2 and "a URL begins with s3://, https:// or http://" in r.err, r.err
    assert not list(tmp_path.iterdir())


# ---- credentials ----

def test_credentials_come_from_profiles_too(store, digest, tmp_path):
    no = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"), "")
    store.token = TOKEN
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        "[default]\naws_access_key_id = other\naws_secret_access_key = other\n\n# comment\n[job]\n"
        "aws_access_key_id=%s\naws_secret_access_key = %s\naws_session_token = %s\n" %
        (ACCESS_KEY, SECRET_KEY, TOKEN))
    (tmp_path / ".aws/config").write_text(
        "[default]\nregion = us-west-1\n[profile job]\nregion = eu-west-7\nendpoint_url = %s\n" % store.url)
    env = {**no, "HOME": str(tmp_path), "AWS_PROFILE": "job"}
    assert ok(store, "tp-ckpt", "digest", CKPT, **env).out == digest
    assert all("/eu-west-7/" in h["authorization"] for _, _, h in store.requests)
    fails(store, "tp-ckpt", "digest", CKPT, **{**env, "AWS_PROFILE": "nobody"}, code=2, says="nobody")
    fails(store, "tp-ckpt", "digest", CKPT, **{**env, "AWS_PROFILE": "", "AWS_ENDPOINT_URL": store.url},
          says="InvalidAccessKeyId")
    fails(store, "tp-ckpt", "digest", CKPT, **no, HOME=str(tmp_path / "none"), code=2, says="AWS_ACCESS_KEY_ID")
    fails(store, "tp-ckpt", "digest", CKPT, AWS_SECRET_ACCESS_KEY="", code=2, says="AWS_SECRET_ACCESS_KEY is not")


def test_wrong_and_expired_credentials_are_named_and_not_tried_again(store):
    fails(store, "tp-ckpt", "digest", CKPT, AWS_SECRET_ACCESS_KEY="wrong", says="SignatureDoesNotMatch")
    fails(store, "tp-ckpt", "digest", CKPT, AWS_SESSION_TOKEN="extra", says="InvalidToken")
    assert len(store.requests) == 2
    store.faults.append(Fault(400, times=99, code="ExpiredToken", path="rank"))
    fails(store, "tp-ckpt", "digest", CKPT, says="expired: get new ones")
    store.faults[:] = [Fault(403, times=99, code="AccessDenied")]
    fails(store, "tp-ckpt", "show", CKPT, says="AccessDenied.*may do this")


def test_no_other_host_gets_a_remote_request(store, web):
    store.faults.append(Fault("redirect", times=99, path="rank", location=web.url))
    fails(store, "tp-ckpt", "digest", CKPT, says="redirects the request to another host")
    assert web.requests == []
    fault = Fault(301, times=99, code="PermanentRedirect", headers={"x-amz-bucket-region": "ap-test-3"})
    store.faults[:] = [fault]
    fails(store, "tp-ckpt", "digest", CKPT, says="the region ap-test-3; set AWS_REGION")


def test_a_web_server_may_redirect_to_another_host(web, root, digest):
    with ObjectStore(public=True) as other:
        other.faults.append(Fault("redirect", times=9999, location=web.url))
        assert ok(other, "tp-ckpt", "digest", other.url + "/runs/ckpt").out == digest
        assert not any(n.lower() in ("authorization", "cookie") for _, _, h in web.requests for n in h)


def test_advice_about_a_web_server_is_not_that_about_a_store(web):
    """It named credentials and AWS_ENDPOINT_URL."""
    for status, says in (403, "403 .*to GET; it is not there, or not public"), (302, "302 .*to GET$"):
        web.faults[:] = [Fault(status, times=9999, path="rank")]
        assert "AWS" not in fails(web, "tp-ckpt", "digest", web.url + "/runs/ckpt", says=says).err


def test_a_redirect_from_https_to_http_is_not_followed(web):
    with ObjectStore(tls=CERTIFICATE, public=True) as secure:
        secure.faults.append(Fault("redirect", times=9999, location=web.url))
        fails(secure, "tp-ckpt", "digest", secure.url + "/runs/ckpt", AWS_CA_BUNDLE=str(CERTIFICATE),
              says="redirects to another kind of URL")
        assert secure.requests and not web.requests


def test_a_file_of_credentials_that_is_missing_is_no_missing_checkpoint(store):
    fails(store, "tp-ckpt", "ls", CKPT, AWS_CONFIG_FILE="/absent/config", code=2, says="^tp-ckpt: /absent/config: there is no such")


def test_only_valid_certificates_are_accepted(root, digest):
    with ObjectStore(tls=CERTIFICATE) as store:
        store.add_tree("bucket/runs/ckpt", root)
        fails(store, "tp-ckpt", "digest", CKPT, says="certificate is not valid.*AWS_CA_BUNDLE")
        assert store.requests == []
        assert ok(store, "tp-ckpt", "digest", CKPT, AWS_CA_BUNDLE=str(CERTIFICATE)).out == digest


# ---- faults that pass ----

PASSING = {
    "500": Fault(500, times=3),
    "503": Fault(503, code="SlowDown", times=3),
    "retry_after": Fault(503, code="SlowDown", headers={"retry-after": "1"}),
    "429": Fault(429, times=2),
    "reset": Fault("reset", times=3),
    "drop": Fault("drop", times=3, after=1),
    "truncate": Fault("truncate", times=3, after=1),
    "stall": Fault("stall", seconds=4),
    "stall_in_the_body": Fault("stall in the body", seconds=4, after=1),
    "error200": Fault("error200", code="SlowDown", times=3, after=1),
    "listing_error200": Fault("error200", times=2, path="list-type"),
    "listing_slow_down": Fault("error200", code="SlowDown", path="list-type"),
}


@pytest.mark.parametrize("name", PASSING)
def test_faults_that_pass_change_no_byte(store, digest, name):
    spec = dict(PASSING[name].__dict__)
    del spec["seen"]
    fault = Fault(**{"path": SHARD, **{k: v for k, v in spec.items() if k != "path" or v}})
    store.faults.append(fault)
    assert ok(store, "tp-ckpt", "digest", CKPT, TP_REMOTE_TIMEOUT="6").out == digest
    assert fault.seen > fault.times + fault.after, "the request was not tried again"


# ---- faults that stay ----

LASTING = {
    "500": (Fault(500), "answers 500 .InternalError.*tries in"),
    "retry_after": (Fault(503, code="SlowDown", headers={"retry-after": "100000"}), "503 .SlowDown.*; 1 tries"),
    "reset": (Fault("reset"), "tries in"),
    "truncate": (Fault("truncate", after=1), r"sent \d+ bytes, expected \d+"),
    "etag": (Fault("etag", after=1), "ETag has changed"),
    "range": (Fault("wrong range", after=1), "were requested"),
    "longer": (Fault("longer", after=1), "sends more than the .* bytes that were requested"),
    "garbage": (Fault("garbage"), "not HTTP; if it uses TLS, write https://"),
    "no_ranges": (Fault("ignore range"), "does not support ranges"),
    "error200": (Fault("error200"), "answers 200"),
    "gone": (Fault(404, code="NoSuchKey", after=1), "removed or replaced"),
}


@pytest.mark.parametrize("name", LASTING)
def test_faults_that_stay_are_an_error_and_write_nothing(store, tmp_path, name):
    fault, says = LASTING[name]
    fault.times, fault.path, fault.seen = 9999, SHARD, 0
    store.faults.append(fault)
    r = reshard(store, CKPT, tmp_path / "out", TP_REMOTE_TIMEOUT="2")
    assert r.rc == 3 and re.search(says, r.err) and SHARD in r.err, repr(r)
    assert not list(tmp_path.glob("out/step*"))


def test_a_shard_that_changes_between_reads_is_an_error(store, root):
    def change(s):
        key = "bucket/runs/ckpt/step-00000002/" + SHARD
        s.put(key, s.objects[key][0][:-1] + b"x")

    store.faults.append(Fault(change, path=SHARD, after=1))
    fails(store, "tp-ckpt", "digest", CKPT, says="another program replaced it|was replaced")


def test_a_config_that_is_replaced_at_any_time_is_read(store, tmp_path):
    """It is short, so one request gets all of it."""
    key = "bucket/model/config.json"
    config = harness.write_config(tmp_path).read_bytes()

    def change(s):
        s.put(key, config + b" " * len(s.requests))

    store.put(key, config)
    store.faults.append(Fault(change, times=99, path="config.json"))
    r = ok(store, "tp-reshard", "--dry-run", "--model", "s3://" + key, "--from", "tp4", "--to", "tp2")
    assert "tp4" in r.out and [path for _, path, _ in store.requests] == ["/" + key], repr(store.requests)


def test_damage_and_missing_shards_are_found(store, root):
    key = "bucket/runs/ckpt/step-00000002/" + SHARD
    data = bytearray(store.objects[key][0])
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))
    r = run(store, "tp-ckpt", "verify", CKPT)
    assert r.rc == 1 and SHARD in r.out + r.err, repr(r)
    del store.objects[key]
    r = ok(store, "tp-ckpt", "show", CKPT)  # the older step is intact
    assert "the shard of rank 1 is missing; falling back to step-00000001" in r.err
    fails(store, "tp-ckpt", "show", CKPT, "--step", "2", says="missing")


def test_a_step_that_is_being_saved_or_removed_is_no_damage(store, root):
    """Its shards are in the store, and no manifest."""
    store.put("bucket/runs/ckpt/step-00000003/rank-00000.h5", b"of a save")
    assert "intact: %s/step-00000002:" % CKPT in ok(store, "tp-ckpt", "verify", CKPT).out
    for step in 3, 4:  # of the latter there is nothing
        fails(store, "tp-ckpt", "verify", "%s/step-%08d" % (CKPT, step), says="has no manifest.json, so it is not a complete", code=2)
    for step in 1, 2:
        del store.objects["bucket/runs/ckpt/step-%08d/manifest.json" % step]
    fails(store, "tp-ckpt", "verify", CKPT, says="no complete checkpoint, only what an interrupted save left", code=2)


def test_an_unreachable_store_is_an_error_soon(store):
    fails(store, "tp-ckpt", "ls", CKPT, AWS_ENDPOINT_URL="http://127.0.0.1:1", TP_REMOTE_TIMEOUT="1", says="tries in")
    r = fails(store, "tp-ckpt", "ls", CKPT, AWS_ENDPOINT_URL="http://127.0.0.1:1", TP_REMOTE_TIMEOUT="7", says="tries in")
    assert len(r.lines) == 2 and CKPT in r.lines[0] and "trying again, for at most" in r.lines[0], repr(r)
    fails(store, "tp-ckpt", "ls", "s3://", code=2, says="bucket")
    fails(store, "tp-ckpt", "ls", "s3://bucket/none", code=2, says="no object")
    fails(store, "tp-ckpt", "ls", "s3://bucket", TP_REMOTE_TIMEOUT="soon", code=2, says="TP_REMOTE_TIMEOUT")


# ---- how it is read ----

def test_listings_of_many_pages_are_read_to_the_end(store, digest):
    store.page = 1
    assert ok(store, "tp-ckpt", "digest", CKPT).out == digest


def test_a_listing_that_does_not_advance_is_an_error(store):
    store.page = 1
    store.faults.append(Fault("same page", path="list-type", times=9999))
    fails(store, "tp-ckpt", "ls", CKPT, says="same part of the listing")


def test_the_least_memory_that_is_named_is_enough(tmp_path):
    """What is fetched in advance takes a part of the memory, and less where the memory is short."""
    config = harness.write_config(tmp_path, hidden_size=256, intermediate_size=768, head_dim=32)
    harness.ok(harness.built("make_ckpt"), config, "tp2", tmp_path / "ckpt", 1, 5)
    with ObjectStore() as store:
        store.add_tree("bucket/ckpt", tmp_path / "ckpt")
        command = ["tp-reshard", "s3://bucket/ckpt", "--to", "tp4", "--out", tmp_path / "out", "--json", "--mem"]
        least = re.search(r"at least ([0-9.]+) MiB", run(store, *command, "8M").err)
        memory = int((float(least[1]) + 1) * 2 ** 20)
        r = ok(store, *command, memory)
        assert harness.SANITIZE or json.loads(r.out)["peak_rss_bytes"] <= memory


def test_several_requests_are_in_flight_within_the_memory(tmp_path):
    config = harness.write_config(tmp_path, hidden_size=256, intermediate_size=768, head_dim=32)
    harness.ok(harness.built("make_ckpt"), config, "tp2", tmp_path / "ckpt", 1, 5)
    with ObjectStore() as store:
        store.add_tree("bucket/ckpt", tmp_path / "ckpt")
        store.delay = 0.02
        r = ok(store, "tp-reshard", "s3://bucket/ckpt", "--to", "tp4", "--out", tmp_path / "out", "--mem", "96M",
               "--json")
        assert store.most_in_flight >= 4
        assert json.loads(r.out)["peak_rss_bytes"] <= 96 << 20
        sent = sum(1 for _, path, _ in store.requests if ".h5" in path)
        size = sum(f.stat().st_size for f in (tmp_path / "ckpt/step-00000001").glob("*.h5"))
        assert sent < size / (256 << 10), "%d requests for %d bytes" % (sent, size)
