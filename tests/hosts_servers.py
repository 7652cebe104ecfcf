"""Servers of this machine's, for sandboxes that may reach them by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[tuple[int, list[str]]]:
    """A server on loopback with these files, by their paths; gives its port and what was asked.

    ``PORT`` in a file is the port itself.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            found = files.get(self.path.partition("?")[0])
            body = b"no" if found is None else found.replace(b"PORT", str(port).encode())
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield port, asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
