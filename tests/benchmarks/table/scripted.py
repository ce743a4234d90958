"""Stand-ins for every program that the table runs; their output depends on their arguments alone.

scripted.py server NAME PORT              a server that lists the model NAME and is ready at /health
scripted.py ours serve|engine ...         the two commands that stand for tlserve
scripted.py load NAME STREAMS SHARED      a load generator's line: what the server of that name can do
scripted.py prefill FORMAT TOKENS         llama-bench's JSON
scripted.py in-process FORMAT STREAMS     a line with tokens/s
scripted.py fail                          a message on standard error, and exit code 3
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

SPEED = {"tlserve": 300.0, "Q4": 100.0, "Q8": 120.0}
FIRST_MS = {"tlserve": 20.0, "Q4": 40.0, "Q8": 80.0}


def serve(name: str, port: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": name}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


def ours(kind: str, *arguments: str) -> None:
    if kind == "serve":
        serve("tlserve", arguments[arguments.index("--port") + 1])
    prefill = {"work": "prefill", "tokens_per_s": {"median": 3000.0}}
    print(json.dumps({"steps": [prefill], "through_http": {"engine_ms": 3.0, "http_ms": 3.3}}))


def load(name: str, streams: str, shared: str) -> None:
    speed = SPEED[name] * int(streams) + int(shared)
    print("a word before it")
    print(json.dumps({"out_tok_s": speed, "ttft_p50_ms": FIRST_MS[name] * int(streams), "tpot_p50_ms": 2.0}))


def prefill(format_: str, tokens: str) -> None:
    rate = {"Q4": 1000.0, "Q8": 1500.0}[format_]
    entry = {"n_prompt": int(tokens), "n_gen": 0, "avg_ts": rate}
    print(json.dumps([entry, {**entry, "avg_ts": rate / 2}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 9999.0}]))


def in_process(format_: str, streams: str) -> None:
    print(f"{streams} streams of {format_}\nout tok/s 6900.5 in all")


def fail() -> None:
    sys.stderr.write("first\nthe model is not there\n")
    sys.exit(3)


if __name__ == "__main__":
    parts: dict[str, Callable[..., None]] = {
        "server": serve,
        "ours": ours,
        "load": load,
        "prefill": prefill,
        "in-process": in_process,
        "fail": fail,
    }
    parts[sys.argv[1]](*sys.argv[2:])
