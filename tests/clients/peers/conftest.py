"""The servers of ../python/conftest.py, and behind a Hearth without models: a LiteLLM proxy and a llama.cpp server."""
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# What the proxy asks for, which does not start without.
KEY = "sk-" + secrets.token_hex(16)
_spec = importlib.util.spec_from_file_location("hearth_servers", HERE.parent / "python" / "conftest.py")
servers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(servers)

server, coder = servers.server, servers.coder


def wait_for(url, process, log):
    deadline = time.monotonic() + 180
    while True:
        assert process.poll() is None, Path(log).read_text()
        assert time.monotonic() < deadline, f"nothing answers at {url}"
        try:
            return urllib.request.urlopen(url).read()
        except OSError:
            time.sleep(0.1)


@pytest.fixture(scope="session")
def litellm_proxy(coder, tmp_path_factory):
    """A LiteLLM proxy in front of a Hearth that has the model."""
    folder, port = tmp_path_factory.mktemp("litellm"), servers.free_port()
    settings = {"model": f"openai/{servers.CODER}", "api_base": f"{coder.base}/v1", "api_key": "unused"}
    (folder / "config.yaml").write_text(json.dumps({"model_list": [{"model_name": "coder", "litellm_params": settings}]}))
    log = open(folder / "log", "wb")
    command = [Path(sys.executable).parent / "litellm", "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_MASTER_KEY": KEY}
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    base = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{base}/health/liveliness", process, log.name)
        yield base
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="session")
def llamacpp(tmp_path_factory):
    """llama.cpp's own server."""
    model = servers.MODELS / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    command = [sys.executable, HERE.parents[2] / "bench" / "peer_llamacpp.py", model, "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        base = process.stdout.readline().strip()
        wait_for(f"{base}/health", process, os.devnull)
        yield base
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="session")
def front(litellm_proxy, llamacpp, coder, tmp_path_factory):
    """A Hearth without models before all of them."""
    folder = tmp_path_factory.mktemp("front")
    settings = folder / "hearth.toml"
    settings.write_text(
        f"""
[providers.llamacpp]
base-url = "{llamacpp}/v1"

[providers.hearth]
base-url = "{coder.base}/v1"

[providers.custom-litellm]
base-url = "{litellm_proxy}/v1"
keys = [{{ key = "{KEY}" }}]

[providers.custom-litellm-messages]
base-url = "{litellm_proxy}/v1"
dialect = "anthropic"
keys = [{{ key = "{KEY}" }}]
"""
    )
    front = servers.Server(folder, "--config", str(settings))
    yield front
    front.stop()
