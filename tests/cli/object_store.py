"""A web server and S3-compatible store for tests, with faults on request.

It is written from the public description of the S3 API and shares no code with storage/. Every S3
request must have a valid signature (AWS Signature Version 4), and every uploaded body its hash.

    with ObjectStore() as store:
        store.add_tree("bucket/ckpt", folder)
        store.faults.append(Fault("reset", times=2, path="rank-00001.h5"))
        harness.run("tp-ckpt", "digest", "s3://bucket/ckpt", env=store.environment())

Objects are also served without signatures, at store.url + "/bucket/...", when store.public is set.
"""
import contextlib
import hashlib
import hmac
import http.client
import http.server
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.parse
import xml.sax.saxutils

import harness

ACCESS_KEY = "AKIATESTACCESSKEY01"
SECRET_KEY = "tests/Secret+Key0123456789"
TOKEN = "tests-session-token-0123456789"


class Fault:
    """What goes wrong with requests whose method and path match.

    kind: a status (503), "reset", "drop" (the connection ends in the middle of the body),
    "truncate" (a shorter body, of the length that its header says), "stall", "etag" (another ETag
    than before), "error200" (200 with an error document), "page200" (200 with a page of some proxy), "redirect" (to `location`), "ignore range",
    "wrong range", "longer" (a body with one byte more), "garbage" (no HTTP), "same page" (of a listing), "lost reply" (the request is served, but not answered); or a function that is called with the store before the request is served.
    """

    def __init__(self, kind, times=1, method="GET", path="", after=0, seconds=0, headers=None,
                 code="InternalError", location=None):
        self.kind, self.times, self.method, self.path = kind, times, method, path
        self.after, self.seconds, self.headers, self.code = after, seconds, headers or {}, code
        self.location = location
        self.seen = 0

    def strikes(self, method, path):
        if method != self.method or not re.search(self.path, path):
            return False
        self.seen += 1
        return self.after < self.seen <= self.after + self.times


def interrupt(store, argv, **env):
    """SIGTERM to a program while a fault of the store stays. Returns exit code, stderr, and the seconds until it ended."""
    fault = store.faults[-1]
    p = subprocess.Popen(harness.command(argv), stderr=subprocess.PIPE, text=True,
                         env={**os.environ, **store.environment(TP_REMOTE_TIMEOUT="24", **env)})
    deadline = time.monotonic() + 60
    while fault.seen <= fault.after + 1 and p.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    p.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    _, err = p.communicate(timeout=60)
    return p.returncode, err, time.monotonic() - begin


class ObjectStore(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, tls=None, public=False, token=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.public, self.token = public, token
        self.expired = set()  # tokens that were valid
        self.objects, self.uploads, self.faults, self.requests = {}, {}, [], []
        self.lock = threading.Lock()
        self.in_flight = self.most_in_flight = 0
        self.delay = self.n_uploads = 0
        self.page = 1000
        self.is_nginx = False  # a range of an object without bytes gets all of it
        self.checks_condition_first = False  # of a completion; stores differ
        self.is_old_ceph = False  # it ignores the condition of a completion, and wants If-Match without quotes
        scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            scheme = "https"
        self.url = "%s://127.0.0.1:%d" % (scheme, self.server_address[1])

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Clients that hang up are part of the tests."""

    def add_tree(self, prefix, folder):
        for directory, _, files in os.walk(folder, followlinks=True):
            for name in files:
                path = os.path.join(directory, name)
                with open(path, "rb") as f:
                    self.put(prefix + "/" + os.path.relpath(path, folder), f.read())

    def put(self, key, data):
        self.objects[key] = (data, '"%s"' % hashlib.md5(data).hexdigest())

    def tree(self, prefix):
        return {k[len(prefix):]: v[0] for k, v in self.objects.items() if k.startswith(prefix)}

    def environment(self, **changes):
        env = {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": ACCESS_KEY,
               "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "eu-test-1",
               "TP_REMOTE_TIMEOUT": "8"}
        if self.token:
            env["AWS_SESSION_TOKEN"] = self.token
        return {**env, **changes}


def quote(text, safe=""):
    return urllib.parse.quote(text, safe=safe + "-._~")


def signature(method, path, query, headers, signed, date, region):
    """The signature of a request, from the specification."""
    pairs = sorted((quote(k), quote(v)) for k, v in urllib.parse.parse_qsl(query, keep_blank_values=True))
    canonical = "\n".join([
        method, path, "&".join("%s=%s" % p for p in pairs),
        "".join("%s:%s\n" % (n, " ".join(headers[n].split())) for n in signed), ";".join(signed),
        headers["x-amz-content-sha256"]])
    scope = "%s/%s/s3/aws4_request" % (date[:8], region)
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + SECRET_KEY).encode()
    for part in (date[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class S3Reply:
    def __init__(self, reply):
        self.status, self.headers, self.body = reply.status, reply.headers, reply.read()


def s3_request(url, method, path, body=b"", headers=None, region="us-east-1"):
    """Send one request, signed with ACCESS_KEY, to a store of others. Only what S3 demands is signed."""
    host, date = url.partition("://")[2], time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signed = {"host": host, "x-amz-content-sha256": hashlib.sha256(body).hexdigest(), "x-amz-date": date}
    names = sorted(signed)
    proof = "AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request, SignedHeaders=%s, Signature=%s" % (
        ACCESS_KEY, date[:8], region, ";".join(names), signature(method, path, "", signed, names, date, region))
    with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as c:
        c.request(method, path, body, {**signed, "authorization": proof, **(headers or {})})
        return S3Reply(c.getresponse())


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, *_):
        pass

    # ---- what arrives ----

    def serve(self):
        store = self.server
        self.url = urllib.parse.urlsplit(self.path)
        self.key = urllib.parse.unquote(self.url.path)[1:]
        self.query = dict(urllib.parse.parse_qsl(self.url.query, keep_blank_values=True))
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with store.lock:
            store.requests.append((self.command, self.path, dict(self.headers)))
            store.in_flight += 1
            store.most_in_flight = max(store.most_in_flight, store.in_flight)
            fault = next((f for f in store.faults if f.strikes(self.command, self.path)), None)
        self.fault = None
        try:
            time.sleep(store.delay)
            if fault and not self.strike(fault):
                return
            problem = None if store.public else self.check_signature()
            if problem:
                self.error(403, problem)
            else:
                getattr(self, "on_" + self.command.lower())()
        finally:
            with store.lock:
                store.in_flight -= 1

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve

    def check_signature(self):
        """The error code of a request that is not signed as it must be; None: it is."""
        headers = {k.lower(): v for k, v in self.headers.items()}
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?"
                             r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})",
                             headers.get("authorization", ""))
        if not found:
            return "AccessDenied"
        key, day, region, names, given = found.groups()
        signed, date = names.split(";"), headers.get("x-amz-date", "")
        must = {"host"} | {n for n in headers if n.startswith("x-amz-")}
        if key != ACCESS_KEY:
            return "InvalidAccessKeyId"
        if day != date[:8] or signed != sorted(signed) or not must <= set(signed):
            return "AuthorizationHeaderMalformed"
        if headers.get("x-amz-security-token") in self.server.expired:
            return "ExpiredToken"
        if headers.get("x-amz-security-token") != self.server.token:
            return "InvalidToken"
        if headers.get("x-amz-content-sha256") != hashlib.sha256(self.body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        if signature(self.command, self.url.path, self.url.query, headers, signed, date, region) != given:
            return "SignatureDoesNotMatch"
        return None

    # ---- faults ----

    def strike(self, fault):
        """Do what the fault says. True: then serve the request."""
        if callable(fault.kind):
            fault.kind(self.server)
            return True
        if isinstance(fault.kind, int):
            self.error(fault.kind, fault.code, fault.headers)
        elif fault.kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault.kind == "error200":
            self.reply(200, self.error_document(fault.code))
        elif fault.kind == "page200":
            self.reply(200, b"<html>log in here</html>")
        elif fault.kind == "redirect":
            self.reply(307, b"", {"location": fault.location + self.path})
        elif fault.kind == "garbage":
            self.wfile.write(b"\x15\x03\x01\x00\x02\x02\x46")
            self.close_connection = True
        elif fault.kind == "stall":
            time.sleep(fault.seconds)
            self.close_connection = True
        else:
            self.fault = fault
            return True
        return False

    def send_body(self, body):
        kind = self.fault.kind if self.fault else None
        try:
            if kind in ("drop", "stall in the body"):
                self.wfile.write(body[:len(body) // 2])
                self.wfile.flush()
                if kind != "drop":
                    time.sleep(self.fault.seconds)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self.wfile.write(body)
        except OSError:
            self.close_connection = True

    # ---- replies ----

    def reply(self, status, body=b"", headers=None):
        if self.fault and self.fault.kind == "lost reply":
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.send_body(body)

    @staticmethod
    def error_document(code):
        return ("<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>secret text of the server"
                "</Message><AWSAccessKeyId>%s</AWSAccessKeyId></Error>" % (code, ACCESS_KEY)).encode()

    def error(self, status, code, headers=None):
        self.reply(status, self.error_document(code), headers)

    def on_get(self):
        if "list-type" in self.query:
            self.list()
        elif "uploadId" in self.query:
            if self.query["uploadId"] not in self.server.uploads:
                return self.error(404, "NoSuchUpload")
            self.reply(200, b"<ListPartsResult></ListPartsResult>")
        elif self.key not in self.server.objects:
            self.error(404, "NoSuchKey")
        else:
            self.get()

    on_head = on_get

    def get(self):
        data, etag = self.server.objects[self.key]
        kind = self.fault.kind if self.fault else None
        if self.headers.get("if-match", etag) != etag:
            return self.error(412, "PreconditionFailed")
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if kind == "etag":
            etag = '"another"'
        if not found or kind == "ignore range" or (self.server.is_nginx and not data):
            return self.reply(200, data, {"etag": etag})
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        if first >= len(data):
            return self.reply(416, b"", {"content-range": "bytes */%d" % len(data)})
        if kind == "wrong range":
            first, last = first - 1, last - 1
        part = data[first:last + 1]
        if kind == "longer":
            part += b"x"
        if kind == "truncate":
            part = part[:len(part) // 2]
        self.reply(206, part, {"etag": etag, "content-range": "bytes %d-%d/%d" % (first, last, len(data))})

    def list(self):
        prefix, token = self.query.get("prefix", ""), self.query.get("continuation-token", "")
        begin = self.key.split("/")[0] + "/"
        names = set()
        for key in self.server.objects:
            if key.startswith(begin + prefix):
                rest = key[len(begin + prefix):]
                names.add(prefix + (rest.split("/")[0] + "/" if "/" in rest else rest))
        if self.fault and self.fault.kind == "same page":
            token = ""
        names = sorted(n for n in names if n > token)
        page = names[:self.server.page]
        text = "".join(
            "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>" % xml.sax.saxutils.escape(n)
            if n.endswith("/") else
            "<Contents><Key>%s</Key><Size>%d</Size></Contents>" %
            (xml.sax.saxutils.escape(n), len(self.server.objects[begin + n][0])) for n in page)
        if len(names) > len(page):
            text += "<NextContinuationToken>%s</NextContinuationToken>" % xml.sax.saxutils.escape(page[-1])
        self.reply(200, ("<ListBucketResult>%s</ListBucketResult>" % text).encode())

    # ---- writing ----

    def blocked(self):
        """Whether a condition of the request forbids to create the object."""
        return self.headers.get("if-none-match") == "*" and self.key in self.server.objects

    def matches(self):
        """Whether the object is the one that the request wants to replace."""
        wanted = self.headers.get("if-match")
        found = self.server.objects.get(self.key, (None, ""))[1]
        return wanted in (None, found.strip('"') if self.server.is_old_ceph else found)

    def on_put(self):
        with self.server.lock:
            if "uploadId" in self.query:
                parts = self.server.uploads.get(self.query["uploadId"])
                if parts is None:
                    return self.error(404, "NoSuchUpload")
                parts[int(self.query["partNumber"])] = self.body
            elif self.blocked() or not self.matches():
                return self.error(412, "PreconditionFailed")
            else:
                self.server.put(self.key, self.body)
        self.reply(200, b"", {"etag": '"%s"' % hashlib.md5(self.body).hexdigest()})

    def on_post(self):
        store = self.server
        if "uploads" in self.query:
            with store.lock:
                store.n_uploads += 1
                upload = "upload+/%d" % store.n_uploads
                store.uploads[upload] = {}
            return self.reply(200, ("<InitiateMultipartUploadResult><UploadId>%s</UploadId>"
                                    "</InitiateMultipartUploadResult>" % upload).encode())
        with store.lock:
            parts = store.uploads.get(self.query.get("uploadId"))
            if store.checks_condition_first and self.blocked():
                return self.error(412, "PreconditionFailed")
            if parts is None:
                return self.error(404, "NoSuchUpload")
            if self.blocked() and not store.is_old_ceph:
                return self.error(412, "PreconditionFailed")
            wanted = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>([^<]*)</ETag>", self.body.decode())
            numbers = [int(n) for n, _ in wanted]
            for number, etag in wanted:
                part = parts.get(int(number), None)
                if part is None or etag.strip('"').replace("&quot;", "") != hashlib.md5(part).hexdigest():
                    return self.error(400, "InvalidPart")
            if numbers != sorted(numbers) or not numbers:
                return self.error(400, "InvalidPartOrder")
            if any(len(parts[n]) < 5 << 20 for n in numbers[:-1]):
                return self.error(400, "EntityTooSmall")
            del store.uploads[self.query["uploadId"]]
            store.put(self.key, b"".join(parts[n] for n in numbers))
        return self.reply(200, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")

    def on_delete(self):
        with self.server.lock:
            if "uploadId" in self.query:
                self.server.uploads.pop(self.query["uploadId"], None)
            else:
                self.server.objects.pop(self.key, None)
        self.reply(204)


# ---- programs that use the store ----

def clean(r):
    """No credential and no text of the server's in what a program printed."""
    for secret in (SECRET_KEY, ACCESS_KEY, TOKEN, "Signature=", "secret text"):
        assert secret not in r.out + r.err, repr(r)
    return r


def run(store, *argv, **changes):
    return clean(harness.run(*argv, env=store.environment(**changes)))


def ok(store, *argv, **changes):
    r = run(store, *argv, **changes)
    assert r.rc == 0, repr(r)
    return r


def fails(store, *argv, says, code=3, **changes):
    r = run(store, *argv, **changes)
    assert r.rc == code and re.search(says, r.err), repr(r)
    assert len([line for line in r.lines if "trying again, for at most" not in line]) == 1, repr(r)
    return r
