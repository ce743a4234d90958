"""Run the README's first command and use the server as a user would.

Start; a streamed answer of the real model; SIGTERM during a second stream, which must reach [DONE]; exit code 0. Run in
a clean clone, by a Python that has this project's test requirements.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from readme_command import readme_command

API, HEALTH = "127.0.0.1:8000", "127.0.0.1:9464"
START_LIMIT_S, END_LIMIT_S = 600, 60


def main() -> None:
    """Do all of it, or raise."""
    server = subprocess.Popen(["bash", "-c", readme_command("serve")], stdin=subprocess.DEVNULL)
    try:
        wait_until_ready(server)
        print("first stream:", "".join(piece for piece in stream("Hi", 40)))
        second = stream("Count from one to one hundred.", 200)
        next(second)
        os.kill(serving_process(server.pid), signal.SIGTERM)
        print("second stream, through SIGTERM:", len(list(second)), "more pieces, then [DONE]")
        code = server.wait(END_LIMIT_S)
        assert code == 0, f"exit code {code}"
    finally:
        if server.poll() is None:
            os.kill(serving_process(server.pid), signal.SIGKILL)
            server.kill()


def wait_until_ready(server: subprocess.Popen) -> None:
    """Ask /readyz until it says 200."""
    begin = time.monotonic()
    while time.monotonic() - begin < START_LIMIT_S:
        assert server.poll() is None, f"the command ended with {server.returncode} before it was ready"
        try:
            if get_status("/readyz") == 200:
                print(f"ready after {time.monotonic() - begin:.0f} s, installing included")
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError("the server did not get ready")


def get_status(path: str) -> int:
    """Return the status of a GET on the health port."""
    connection = http.client.HTTPConnection(HEALTH, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def stream(text: str, max_tokens: int):
    """Yield the pieces of a streamed chat; raises if it does not end with a finish and [DONE]."""
    body = {"model": "smol-135m", "messages": [{"role": "user", "content": text}], "stream": True}
    connection = http.client.HTTPConnection(API, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body | {"max_tokens": max_tokens, "temperature": 0}))
    response = connection.getresponse()
    assert response.status == 200, response.read()
    finish, done = None, False
    for line in response:
        if line.startswith(b"data: [DONE]"):
            done = True
        elif line.startswith(b"data: "):
            choice = json.loads(line.removeprefix(b"data: "))["choices"][0]
            finish = choice["finish_reason"]
            if choice["delta"].get("content"):
                yield choice["delta"]["content"]
    assert done, "the stream did not reach [DONE]"
    assert finish in ("stop", "length"), finish


def serving_process(shell: int) -> int:
    """Return the process that serves: the shell's child, or the shell itself where it gave way to its last command."""
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    return int(children[0]) if children else shell


if __name__ == "__main__":
    main()
