"""A model's provider over TLS that accepts one key only, and what looks for that key inside.

It answers in pieces: the next is sent once whoever reads the answer has said so.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import certificates

from podbot.egress import HOST_NAME

REAL = "real-key-5ca1ab1e-0f-the-host"
PIECES = 4
PATIENCE = 120.0

STREAM = """
import http.client, json, os, sys
from urllib.parse import urlsplit
place = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
line = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
line.request("POST", place.path + "/v1/messages", b"{}",
             {"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
answer = line.getresponse()
print(answer.status, flush=True)
while piece := answer.readline():
    print(piece.decode().strip(), flush=True)
"""
"""A client of the model, as agents have it: what it reads is printed as it comes."""

SEARCH = """
import glob, json, os, sys
key = sys.argv[1][::-1].encode()  # or it would be found in what looks for it
found, seen = [], 0
def look(path):
    global seen
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 20)
    except OSError:
        return
    seen += 1
    if key in data:
        found.append(path)
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    look(path)
if any(key in os.fsencode(value) for value in os.environ.values()):
    found.append("env")
for top in [*sys.argv[2:], "/tmp", "/var/tmp", "/run", "/dev/shm"]:
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                look(path)
print(json.dumps([found, seen]))
"""
"""Looks through everybody's environment, and the files below the folders it is given."""

BACKWARDS = REAL[::-1]
"""What `SEARCH` is told, so that it does not find itself."""


class Model:
    """A provider at work: where it is, and with which keys it was asked."""

    def __init__(self, port: int):
        self.base = f"https://{HOST_NAME}:{port}"
        self.keys: list[str] = []
        self.seen = threading.Semaphore(0)
        """Released by whoever has read a piece."""


@contextmanager
def model(folder: Path) -> Iterator[Model]:
    """Serve on the loopback. Its certificates are in ``folder``, the authority as ``ca.pem``."""
    papers = certificates.make(folder, model=(f"/CN={HOST_NAME}", f"DNS:{HOST_NAME}"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            key = self.headers.get("X-Api-Key", "")
            made.keys.append(key)
            self.send_response(200 if key == REAL else 401)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(PIECES if key == REAL else 0):
                self.wfile.write(b"7\r\npiece%d\n\r\n" % number)
                assert made.seen.acquire(timeout=PATIENCE)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(papers / "model.pem", papers / "model-key.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made = Model(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pieces(process: Any, model: Model) -> list[str]:
    """What a program that runs `STREAM` prints: a piece is awaited before the next is sent."""
    said: list[str] = []
    text = ""
    while data := process.stdout.read(timeout=PATIENCE):
        text += data.decode()
        *whole, text = text.split("\n")
        for line in whole:
            said.append(line)
            if re.fullmatch(r"piece\d", line):
                model.seen.release()
    return said
