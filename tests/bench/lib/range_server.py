"""A fast web server and store for bench_remote.py and bench_hosts.py: range_server.py FOLDER [RATE [TOTAL [LOG]]] prints its URL
and serves FOLDER. The file LOG gets a line for each request: when it began and ended, in seconds, method, path, query or range, bytes.

With RATE, each connection moves at most so many MB per second, and answers after 20 ms, as a store in a data center does.
With TOTAL, all connections together move at most so many MB per second, in each direction.

GET with ranges uses sendfile. Of what is uploaded only the size is kept. Signatures are not checked. Threads share one interpreter,
which sendfile and recv leave while they work.
"""
import os
import re
import socket
import sys
import threading
import time
import urllib.parse

DELAY_S = 0.02
SIZES = {}  # of uploaded objects
LOG = []    # the file
TEXTS = {"uploads": b"<R><UploadId>1</UploadId></R>", "uploadId": b"<CompleteMultipartUploadResult/>"}


class Total:
    """What the storage moves at most in one direction; 0: without a limit."""

    def __init__(self, rate):
        self.rate, self.busy_until, self.lock = rate, 0.0, threading.Lock()

    def take(self, n):
        """Returns when the storage has moved n bytes after those of all others."""
        with self.lock:
            self.busy_until = max(self.busy_until, time.monotonic()) + (n / self.rate if self.rate else 0)
            return self.busy_until


class Pace:
    """Holds a connection back to its rate, and to what is left of the storage's."""

    def __init__(self, rate, total):
        self.rate, self.total, self.bytes, self.begin = rate, total, 0, time.monotonic()

    def wait(self, n):
        self.bytes += n
        if self.rate:
            time.sleep(max(0, self.begin + DELAY_S + self.bytes / self.rate - time.monotonic(),
                           self.total.take(n) - time.monotonic()))

    @property
    def piece(self):
        return 1 << 18 if self.rate else 1 << 30


def head(status, length, extra=""):
    return ("HTTP/1.1 %s\r\ncontent-length: %d\r\netag: \"x\"\r\n%s\r\n" % (status, length, extra)).encode()


def read_request(f):
    line = f.readline().decode()
    headers = {}
    while line:
        field = f.readline().decode().strip()
        if not field:
            break
        name, _, value = field.partition(":")
        headers[name.lower()] = value.strip()
    return line.split(), headers


def send_file(conn, path, headers, pace):
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return conn.sendall(head("404 Not Found", 0))
    try:
        size = os.fstat(fd).st_size
        found = re.match(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        first, last = (int(found[1]), min(int(found[2]), size - 1)) if found else (0, size - 1)
        conn.sendall(head("206 Partial Content" if found else "200 OK", last - first + 1,
                          "content-range: bytes %d-%d/%d\r\n" % (first, last, size) if found else ""))
        while first <= last:
            n = os.sendfile(conn.fileno(), fd, first, min(last - first + 1, pace.piece))
            first += n
            pace.wait(n)
    finally:
        os.close(fd)


def serve(conn, folder, rate, totals):
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    f = conn.makefile("rb", buffering=1 << 16)
    buffer = bytearray(1 << 20)
    while True:
        request, headers = read_request(f)
        if not request:
            return
        url = urllib.parse.urlsplit(request[1])
        left = int(headers.get("content-length", 0))
        pace = Pace(rate, totals[request[0] == "PUT"])
        begin = time.monotonic()
        if headers.get("expect"):
            conn.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while left > 0:
            n = f.readinto(memoryview(buffer)[:min(left, len(buffer), pace.piece)])
            left -= n
            pace.wait(n)
        if request[0] == "PUT":
            SIZES[url.path] = SIZES.get(url.path, 0) + int(headers["content-length"])
        if request[0] != "GET":
            body = next((text for name, text in TEXTS.items() if name in url.query), b"") if request[0] == "POST" else b""
            conn.sendall(head("200 OK", len(body)) + body)
        elif "list-type" in url.query:
            prefix = url.path + "/" + urllib.parse.parse_qs(url.query)["prefix"][0]
            text = "".join("<Contents><Key>%s</Key><Size>%d</Size></Contents>" % (k, n)
                           for k, n in list(SIZES.items()) if k.startswith(prefix)).encode()
            text = b"<ListBucketResult>" + text + b"</ListBucketResult>"
            conn.sendall(head("200 OK", len(text)) + text)
        else:
            send_file(conn, folder + urllib.parse.unquote(url.path), headers, pace)
        if LOG:
            LOG[0].write("%.3f %.3f %s %s %s %d\n" %
                         (begin, time.monotonic(), request[0], url.path, url.query or headers.get("range", "-"), pace.bytes))


def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    rate = float(sys.argv[2]) * 1e6 if len(sys.argv) > 2 else 0
    if len(sys.argv) > 4:
        LOG.append(open(sys.argv[4], "w", buffering=1, encoding="utf-8"))
    totals = [Total(float(sys.argv[3]) * 1e6 if len(sys.argv) > 3 else 0) for _ in range(2)]
    print("http://127.0.0.1:%d" % listener.getsockname()[1], flush=True)
    while True:
        conn, _ = listener.accept()
        threading.Thread(target=serve, args=(conn, sys.argv[1], rate, totals), daemon=True).start()


if __name__ == "__main__":
    main()
