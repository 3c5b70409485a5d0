"""Probes and metrics of a process that only consumes: ``/healthz``, ``/readyz`` and ``/metrics``."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import retryrmq


def serve_probes(app: retryrmq.App, port: int) -> None:
    """Answers on threads of its own, until the process ends."""

    class Probes(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind = "text/plain; charset=utf-8"
            trouble = app.trouble()
            if self.path == "/healthz":  # the process responds: the broker is not asked
                status, text = 200, "fine\n"
            elif self.path == "/readyz":
                status, text = (503, f"{trouble}\n") if trouble else (200, "fine\n")
            elif self.path == "/metrics":
                try:
                    status, text = 200, app.metrics_text()
                    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
                except retryrmq.ClosedError:  # it is not connected for the first time yet
                    status, text = 503, "not connected\n"
            else:
                status, text = 404, "not found\n"
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A probe every few seconds is not worth a line."""

    server = ThreadingHTTPServer(("", port), Probes)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    print(f"probes and metrics at http://127.0.0.1:{server.server_port}", flush=True)
