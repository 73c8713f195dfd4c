"""Starts the built binary (HEARTH_BIN) on real models (HEARTH_TEST_MODELS) for the whole run."""
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

BIN = os.environ["HEARTH_BIN"]
MODELS = Path(os.environ["HEARTH_TEST_MODELS"])
CHAT = "smollm2"
EMBED = "minilm"
CODER = "coder"
ACCOUNT = "acc"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """One `hearth serve` process, ended by its own process id."""

    def __init__(self, data_dir, *args, models=()):
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        command = [BIN, "serve", "--listen", f"127.0.0.1:{self.port}", "--data-dir", str(data_dir), *args]
        for name, path in models:
            command += ["--model", f"{name}={path}"]
        self.log = open(Path(data_dir) / "server.log", "wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        try:
            self.wait_until_it_answers(models)
        except BaseException:
            self.process.kill()
            raise

    def wait_until_it_answers(self, models):
        deadline = time.monotonic() + 120
        while True:
            assert self.process.poll() is None, Path(self.log.name).read_text()
            assert time.monotonic() < deadline, "the server did not become healthy within two minutes"
            try:
                urllib.request.urlopen(f"{self.base}/healthz").read()
                break
            except urllib.error.HTTPError:
                if not models:
                    break  # A server without models answers, and says that it is not ready.
            except OSError:
                pass
            time.sleep(0.05)

    def metrics(self):
        """Prometheus samples by name with labels."""
        samples = {}
        for line in urllib.request.urlopen(f"{self.base}/metrics").read().decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.log.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(
        tmp_path_factory.mktemp("data"),
        models=[
            (CHAT, MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"),
            (EMBED, MODELS / "all-MiniLM-L6-v2"),
        ],
    )
    yield server
    server.stop()


@pytest.fixture(scope="session")
def coder(tmp_path_factory):
    """A server of its own for the model that calls tools."""
    model = MODELS / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    server = Server(tmp_path_factory.mktemp("coder"), models=[(CODER, model)])
    yield server
    server.stop()


@pytest.fixture
def openai_client(server):
    import openai

    return openai.OpenAI(base_url=f"{server.base}/v1", api_key="unused", max_retries=0)


@pytest.fixture
def cloudflare_client(server):
    import cloudflare

    return cloudflare.Cloudflare(base_url=f"{server.base}/client/v4", api_token="unused", max_retries=0)
