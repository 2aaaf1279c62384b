"""A stand-in for the Hugging Face hub on 127.0.0.1: it answers `/datasets/.../resolve/REVISION/NAME`."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves `files` (name to bytes), records every request, and can be made to fail.

    cut         name to (bytes, times): the connection ends after so many bytes, so many times
    stall       names whose content never arrives in full; `stalled` is set when one is requested
    tags        name to ETag; the SHA-256 unless given
    """

    def __init__(self, files):
        self.files, self.requests, self.ranges = files, [], []
        self.cut, self.stall, self.tags = {}, set(), {}
        self.stalled, self.over = threading.Event(), threading.Event()

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *error):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()

    def fetched(self):
        return [name for method, name in self.requests if method == "GET"]

    def _handler(hub):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                self.answer()

            def do_GET(self):
                self.answer()

            def answer(self):
                start = "/datasets/kjj0/fineweb10B-gpt2/resolve/"
                revision, _, name = self.path.removeprefix(start).partition("/")
                hub.requests.append((self.command, name))
                if not self.path.startswith(start) or revision not in ("main", COMMIT) or name not in hub.files:
                    self.send_response(404)
                    self.send_header("X-Error-Code", "EntryNotFound")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_file(name, hub.files[name])

            def send_file(self, name, data):
                first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
                if first:
                    hub.ranges.append((name, first))
                self.send_response(206 if first else 200)
                if first:
                    self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - first))
                self.send_header("ETag", f'"{hub.tags.get(name, hashlib.sha256(data).hexdigest())}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.end_headers()
                if self.command == "GET":
                    self.send_body(name, data[first:])

            def send_body(self, name, data):
                stop, times = hub.cut.get(name, (len(data), 0))
                if name in hub.stall:
                    self.wfile.write(data[: len(data) // 2])
                    hub.stalled.set()
                    hub.over.wait(60)
                elif times:
                    hub.cut[name] = stop, times - 1
                    self.wfile.write(data[:stop])
                    self.close_connection = True
                else:
                    self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        return Handler
