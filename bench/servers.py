"""Starts the servers that the benches compare, each on one model file and a free port: Hearth, and llama.cpp from PyPI.

Both are asked for the model `m`. `close` ends the process and waits for it.
"""
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def health(base, path, process):
    while True:
        if process.poll() is not None:
            raise SystemExit(f"the server of {base} ended with status {process.returncode}")
        try:
            urllib.request.urlopen(base + path).read()
            return
        except OSError:
            time.sleep(0.005)


class Server:
    def close(self):
        self.process.send_signal(signal.SIGTERM)
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
        health(self.base, "/healthz", self.process)


class LlamaCpp(Server):
    name = "llama.cpp"

    def __init__(self, model, threads, context=8192):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "peer_llamacpp.py"), str(model), str(threads), str(context)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.base = self.process.stdout.readline().strip()
        health(self.base, "/health", self.process)
