"""An endpoint for `retryrmq consume --http`, with Python's standard library alone.

    python3 endpoint.py 8080
    retryrmq topology orders --apply
    retryrmq publish --queue orders --message-id 4711 '{"id": 4711}'
    retryrmq consume orders --dlx --pause --http http://127.0.0.1:8080/orders

An order without an id is parked, one that is "busy" comes back in 5 s, and each other fails once.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are used again

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        attempt = int(self.headers["Retryrmq-Attempt"])
        key = unquote(self.headers["Retryrmq-Routing-Key"])
        try:
            order = json.loads(body)["id"]
        except (ValueError, KeyError, TypeError) as error:
            return self.answer(422, f"no order: {error!r}")  # no retry can help
        if order == "busy" and attempt == 1:
            return self.answer(503, "not now", {"Retry-After": "5"})
        if attempt == 1:
            return self.answer(500, "the database is away")
        print(f"attempt {attempt} of order {order}, published to {key}", flush=True)
        return self.answer(200, "thanks")

    def answer(self, status, text, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode("ascii"))

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders).serve_forever()
