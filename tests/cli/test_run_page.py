"""The status page of tp-run: JSON, Prometheus, the token, the webhook, and a real browser.

needs: tp-run tp-train tp-ckpt tp-reshard
covers: orchestrator/web/status_page orchestrator/web/listen_address orchestrator/web/webhook
"""
import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

import harness
from free_port import free_port
from run_job import fake_job, train_job


def get(url, token=None, host=None):
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", "Bearer " + token)
    if host:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def prometheus(text):
    """{name and labels: value}. Checks the rules of promtool: help and type come before the samples, each
    name occurs once, and only counters end in "_total"."""
    samples, types, helps = {}, {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        word = line.split(" ", 3)
        if line.startswith("# HELP "):
            assert word[2] not in helps and word[3].endswith("."), line
            helps.add(word[2])
        elif line.startswith("# TYPE "):
            assert word[2] not in types and word[3] in ("gauge", "counter"), line
            assert (word[3] == "counter") == word[2].endswith("_total"), line
            types[word[2]] = word[3]
            last = word[2]
        else:
            m = re.fullmatch(r'([a-z_]+)(\{[a-z]+="[a-z]+"\})? (-?[0-9.e+-]+)', line)
            assert m and m[1] == last and m[1] in helps, "not below its own TYPE: " + line
            assert m[1] + (m[2] or "") not in samples, line
            samples[m[1] + (m[2] or "")] = float(m[3])
    return samples


def test_json_and_metrics_agree_with_the_job(tmp_path, tiny):
    with train_job(tmp_path, tiny, steps=30000, options={"save-every": 200}) as job:
        job.start()
        page = job.await_step(260)["page"]
        os.kill(job.rank_pid(3), signal.SIGKILL)
        job.await_event("training", 2)
        job.await_step(20)
        status = json.loads(get(page + "status")[1])
        assert status["state"] in ("train", "save") and len(status["ranks"]) == 4
        assert 0 < status["goodput"] <= 1 and status["spent"]["lost"] > 0
        metrics = get(page + "metrics")[1]
        samples = prometheus(metrics)
        assert samples["tp_run_launches_total"] == 2 and samples['tp_run_spent_seconds{cause="lost"}'] > 0
        assert samples['tp_run_state{state="%s"}' % "plan"] == 0 and samples['tp_run_nodes{state="up"}'] == 4
        assert sum(v for k, v in samples.items() if k.startswith("tp_run_state{")) == 1
        goodput = float(re.search(r"^tp_run_goodput_ratio (\S+)", metrics, re.M).group(1))
        assert abs(goodput - json.loads(get(page + "status")[1])["goodput"]) < 0.1
        timeline = json.loads(get(page + "timeline")[1])
        spans = timeline["spans"]
        assert all(abs(a[1] - b[0]) < 1e-3 for a, b in zip(spans, spans[1:])), "gaps"
        assert {"training", "lost", "starting"} <= {s[2] for s in spans}
        assert {p[0] for p in timeline["curve"]} == {1, 2}
        spent = json.loads(get(page + "status")[1])["spent"]
        by_cause = {}
        for begin, end, cause in spans:
            by_cause[cause] = by_cause.get(cause, 0) + end - begin
        for cause in ("lost", "starting", "planning"):
            assert abs(by_cause.get(cause, 0) - spent[cause]) < 0.05, cause
        assert [e["event"] for e in json.loads(get(page + "events")[1])] == \
            [e["event"] for e in job.events()]
        assert get(page + "nothing")[0] == 404
        for host in ("evil.example", "localhost.evil.example", "localhostile", "bad.cafe", "dead:1", "1.2",
                     "127.0.0.1.evil.example", "127.0.0.1:80x", "[::1", "[bad.cafe]", "[::1]x", ":80"):
            assert get(page + "status", host=host)[0] == 403, host
        for host in ("localhost", "localhost:80", "127.0.0.1", "192.0.2.7:8080", "[::1]", "[::1]:80"):
            assert get(page + "status", host=host)[0] == 200, host
        ss = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True).stdout
        port = page.rstrip("/").rsplit(":", 1)[1]
        assert all("127.0.0.1:" in line for line in ss.splitlines() if (":%s " % port) in line)
        job.verb("stop", "--wait")


def test_requests_without_the_token_are_refused(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef0123\n")
    with fake_job(tmp_path, "--steps", 10000,
                  page={"listen": "0.0.0.0:0", "token_file": "token"}) as job:
        job.start()
        page = job.await_step(3)["page"].replace("0.0.0.0", "127.0.0.1")
        for path in ("", "status", "metrics", "timeline", "events"):
            assert get(page + path)[0] == 401
            assert get(page + path, token="0123456789abcdef012")[0] == 401
            assert get(page + path, token="0123456789abcdef0123")[0] == 200
            assert get(page + path + "?token=0123456789abcdef0123")[0] == 200
        job.verb("stop")


def test_a_short_token_is_refused(tmp_path):
    (tmp_path / "token").write_text("short")
    with fake_job(tmp_path, page={"listen": "0.0.0.0:0", "token_file": "token"}) as job:
        assert job.start().wait() == 2


@contextlib.contextmanager
def receiver(code=200):
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *a):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "http://127.0.0.1:%d/hook" % server.server_port, got
    server.shutdown()


def test_failures_are_sent_to_the_webhook(tmp_path):
    with receiver() as (url, got):
        with fake_job(tmp_path, "--exit-at", 3, 7, webhook=url,
                      restart={"no_progress": 2, "backoff": "0.1s"}) as job:
            assert job.start().wait() == 3
        assert [e["event"] for e in got][-1] == "failed"
        assert "rank_exit" in [e["event"] for e in got] and all(e["job"] == "job" for e in got)


def test_events_are_sent_again_when_the_webhook_was_away(tmp_path):
    got = []

    def serve_once(server):
        server.settimeout(60)
        server.listen()
        with server.accept()[0] as connection:
            got.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # the port is taken, and connections are refused
        with fake_job(tmp_path, "--steps", 3000, webhook="http://127.0.0.1:%d/" % server.getsockname()[1]) as job:
            job.start()
            job.await_step(3)
            os.kill(job.rank_pid(1), signal.SIGKILL)
            job.await_event("rank_exit")
            time.sleep(0.5)  # by now the first attempt was refused
            serve_once(server)
            job.verb("stop", "--wait")
    assert got and b'"event":"rank_exit"' in got[0], got


def test_a_webhook_that_fails_does_not_disturb_the_job(tmp_path):
    with fake_job(tmp_path, "--steps", 20, webhook="http://127.0.0.1:9/none") as job:
        assert job.start().wait() == 0


def test_a_receiver_that_does_not_answer_delays_no_restart(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = "http://127.0.0.1:%d/" % silent.getsockname()[1]
        with fake_job(tmp_path, "--steps", 100000, webhook=url, nodes="[a, b, c]", restart={"spares": 1}) as job:
            job.start()
            for attempt in (1, 2):
                job.await_event("training", attempt)
                os.kill(job.rank_pid(1), signal.SIGKILL)
            job.await_event("training", 3)
            assert not job.events("webhook_failed"), "the first request waits for its answer"
            assert job.verb("stop").rc == 0 and job.wait() == 75
            (failed,) = job.events("webhook_failed")
            assert failed["lost"] == 3 and "3 events could not be sent before tp-run ended" in failed["message"]


def test_a_name_server_that_does_not_answer_does_not_delay_the_end(tmp_path):
    """It would for minutes, because libcurl waits for its thread that resolves the name, also in tp-run's loop."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent, \
            fake_job(tmp_path, "--steps", 5, webhook="http://hook.example/") as job:
        try:
            silent.bind(("127.0.0.77", 53))
            subprocess.run(["unshare", "-m", "true"], check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("needs root, for another /etc/resolv.conf")
        (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.77\noptions timeout:30 attempts:5\n")
        r = subprocess.run(["unshare", "-m", "sh", "-c", 'mount --bind "$1" /etc/resolv.conf && exec "$2" "$3"', "sh",
                            tmp_path / "resolv.conf", harness.BIN / "tp-run", job.path], timeout=60, capture_output=True)
        assert r.returncode == 0, r
        assert "1 events could not be sent before tp-run ended" in job.events("webhook_failed")[0]["message"]


def test_every_kind_of_end_is_sent_to_the_webhook(tmp_path):
    for args, keys, end, rc in ((["--steps", 5], {}, "done", 0),
                                (["--exit-at", 3, 7], {"restart": {"no_progress": 1}}, "failed", 3),
                                (["--steps", 10000], {}, "stopped", 75)):
        with receiver() as (url, got), fake_job(tmp_path / end, *args, webhook=url, **keys) as job:
            job.start()
            if end == "stopped":
                job.await_step(3)
                job.verb("stop")
            assert job.wait() == rc
            assert [e["event"] for e in got][-1] == end


@pytest.mark.parametrize("code", [301, 404, 500, None])
def test_a_webhook_that_cannot_be_reached_is_reported_with_the_number_of_lost_events(tmp_path, code):
    with receiver(code) as (url, got):
        url = url if code else "http://127.0.0.1:9/secret"
        with fake_job(tmp_path, "--exit-at", 3, 7, webhook=url, restart={"no_progress": 2, "backoff": "0.1s"}) as job:
            assert job.start().wait() == 3
            failed = job.events("webhook_failed")
            assert failed[0]["reason"] == "webhook_unreachable"
            assert 1 <= len(failed) <= 2, "the first one, and at the end the others"
            sent = [e for e in job.events() if e["event"] in ("rank_exit", "node_lost", "failed")]
            assert sum(e["lost"] for e in failed) == len(sent) > 2
            assert failed[0]["message"].startswith("127.0.0.1: ") and "secret" not in failed[0]["message"]
            if code:
                assert "HTTP %d" % code in failed[0]["message"]


@pytest.mark.parametrize("keys, sentence", [
    ({"webhook": "ftp://a/b"}, "not an http or https URL"),
    ({"webhook": "http://"}, "is not a URL"),
    ({"webhook": "http://a:70000/"}, "is not a URL"),
    ({"webhook": "http://a b/"}, "is not a URL"),
    ({"page": {"listen": "127.0.0.1"}}, "expected address:port"),
    ({"page": {"listen": '"host.example:80"'}}, "is not an IP address"),
    ({"page": {"listen": '"192.0.2.1:0"', "token_file": "token"}}, "not an address of this host"),
    ({"page": {"textfile": "none/job.prom"}}, "cannot write into"),
])
def test_a_wrong_address_is_an_error_at_the_start(tmp_path, keys, sentence):
    (tmp_path / "token").write_text("0123456789abcdef0123\n")
    with fake_job(tmp_path, "--steps", 3, **keys) as job:
        assert job.start().wait() == 2
        assert sentence in job.output.read_text() and not job.events("launch")


@pytest.mark.parametrize("address", ["::1", "[::1]"])
def test_the_url_of_an_ipv6_address_has_brackets(tmp_path, address):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    with fake_job(tmp_path, "--steps", 3, page={"listen": '"%s:0"' % address}) as job:
        assert job.start().wait() == 0
        assert re.search(r"http://\[::1\]:\d+/\n", job.output.read_text())


def test_a_busy_port_is_an_error_at_the_start_but_not_at_a_takeover(tmp_path):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        with fake_job(tmp_path / "start", "--steps", 3, page={"listen": "127.0.0.1:%d" % port}) as job:
            assert job.start().wait() == 2
            assert "another program listens on 127.0.0.1:%d" % port in job.output.read_text()
    with fake_job(tmp_path / "takeover", "--steps", 100000, page={"listen": "127.0.0.1:%d" % port}) as job:
        job.start()
        job.await_step(3)
        job.process.kill()
        job.process.wait()
        with socket.create_server(("127.0.0.1", port)):
            job.start()
            job.await_event("takeover")
            step = job.await_step(3)["step"]
            assert job.await_step(step + 10)["attempt"] == 1
            assert job.events("page_failed")[0]["reason"] == "page_unavailable"
            assert job.process.poll() is None
        assert job.verb("stop", "--wait").rc == 0


def test_slow_clients_of_the_page_and_of_the_socket_delay_nothing(tmp_path):
    with fake_job(tmp_path, "--steps", 100000) as job, contextlib.ExitStack() as stack:
        job.start()
        page = job.await_step(3)["page"]
        port = int(page.rstrip("/").rsplit(":", 1)[1])
        for i in range(200):
            s = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            s.sendall(b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n"[:i % 30])
        directory = os.open(job.state, os.O_PATH)
        for i in range(40):
            s = stack.enter_context(socket.socket(socket.AF_UNIX))
            s.connect("/proc/self/fd/%d/control" % directory)
            s.sendall(b"{"[:i % 2])
        os.close(directory)
        for ask in lambda: get(page + "metrics")[0] == 200, lambda: job.status()["step"] >= 3:
            begin = time.monotonic()
            assert ask()
            assert time.monotonic() - begin < 9  # the page ends a slow client after 10 s
        job.await_step(job.status()["step"] + 20)
        job.verb("stop", "--wait")


def test_prometheus_sees_how_the_job_ended(tmp_path):
    with fake_job(tmp_path, "--exit-at", 3, 7, page={"textfile": "job.prom"},
                  restart={"no_progress": 1}) as job:
        assert job.start().wait() == 3
        text = (tmp_path / "job.prom").read_text()
        assert 'tp_run_state{tp_job="job",state="failed"} 1\n' in text
        assert abs(float(re.search(r"^tp_run_time_seconds\S* (\S+)", text, re.M)[1]) - time.time()) < 60
        assert list(tmp_path.glob("job.prom?*")) == [], "a temporary file is left"


def test_the_page_works_in_a_browser_also_during_a_rescale(tmp_path, tiny):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if not browser:
        pytest.skip("needs chromium")

    def dom(page):
        r = subprocess.run([browser, "--headless=new", "--no-sandbox", "--disable-gpu",
                            "--virtual-time-budget=4000", "--user-data-dir=%s" % (tmp_path / "b"),
                            "--dump-dom", page], capture_output=True, text=True, timeout=90)
        return r.stdout

    with train_job(tmp_path, tiny, steps=100000, allow="[tp2pp2, tp2, tp1]") as job:
        job.start()
        page = job.await_step(20)["page"]
        text = dom(page)
        assert text.count('class="stage"') == 2 and "stage 1" in text
        assert text.count('class="rank"') == 4 and "<polyline" in text and "<rect" in text, text
        assert '<span id="stale"></span>' in text, "the page says that tp-run does not answer"
        threading.Timer(0.5, lambda: job.verb("resize", "tp2")).start()
        dom(page)  # during the rescale
        job.await_event("training", 2)
        text = dom(page)
        assert text.count('class="stage"') == 1 and text.count('class="rank"') == 2 and 'data-attempt="2"' in text
        assert "rescale" in text and '<span id="stale"></span>' in text
        assert not re.search(r'(src|href)="', text), "the page loads files from other places"
        job.verb("stop", "--wait")
