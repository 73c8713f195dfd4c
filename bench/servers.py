"""Starts the servers that the benches compare, each on one model file and a free port: Hearth, llama.cpp from PyPI, and llama-server.

All are asked for the model `m`. `close` ends the process and waits for it; a server that does not come up raises ChildProcessError.
"""
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
# Seconds that a server has for its end.
CLOSE_LIMIT = 20
# And for one token.
ANSWER_LIMIT = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def health(base, path, process):
    while True:
        if process.poll() is not None:
            raise ChildProcessError(f"the server of {base} ended with status {process.returncode}")
        try:
            urllib.request.urlopen(base + path).read()
            return
        except OSError:
            time.sleep(0.005)


class Server:
    def wait_for(self, path):
        """Returns when the server answers there. One that does not come up is not left behind."""
        try:
            health(self.base, path, self.process)
        except BaseException:
            self.close()
            raise

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(CLOSE_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Hearth(Server):
    name = "hearth"

    def __init__(self, binary, model, threads, context=8192, data=None, extra=()):
        """`data` is a folder where packed weights stay for the next start; without it nothing is kept."""
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        self.data = None if data else tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", data or self.data.name, "--packed-weights", "on" if data else "off",
             "--model", f"m={model}", "--threads", str(threads), "--context", str(context), *extra],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for("/healthz")


class LlamaCpp(Server):
    name = "llama.cpp"

    def __init__(self, model, threads, context=8192):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "peer_llamacpp.py"), str(model), str(threads), str(context)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.base = self.process.stdout.readline().strip()
        self.wait_for("/health")


class LlamaServer(Server):
    """llama.cpp's own server, from the folder of bench/llamacpp.sh."""
    name = "llama.cpp"

    def __init__(self, folder, model, threads, flags=()):
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [folder / "llama-server", "-m", str(model), "--alias", "m", "--host", "127.0.0.1", "--port", str(port),
             "-t", str(threads), *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for("/health")


def first_token(base):
    """Asks for one token, and returns when it is there."""
    body = {"model": "m", "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=ANSWER_LIMIT).read()


def rss_mib(server):
    """Resident memory of a server in MiB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
