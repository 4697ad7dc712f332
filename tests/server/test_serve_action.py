"""`flare +recipe=… action=serve` as a process: what it prints, and how SIGTERM ends it."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.recipes.tiny_core import tiny_overrides

HOUSE = Path(__file__).resolve().parents[2]
START_S = 60.0


@contextmanager
def process(folder: Path, *more: str):
    words = ["+recipe=smollm2", "action=serve", "serving.port=0", *tiny_overrides(folder / "model"), *more]
    started = subprocess.Popen(
        [sys.executable, "-m", "flare", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(HOUSE), "FLARE_API_KEY": "k3y"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def line(server, file) -> str:
    """The next line; a process that says nothing is ended."""
    patience = threading.Timer(START_S, server.kill)
    patience.start()
    try:
        return file.readline()
    finally:
        patience.cancel()


def test_it_says_where_it_is_answers_and_drains_on_sigterm(tmp_path):
    with process(tmp_path, "output=json") as server:
        about = json.loads(line(server, server.stdout))
        assert about["model"] == "smollm2" and about["graphs"] > 1 and about["memory_bytes"] > 0
        url, key = about["url"], {"Authorization": "Bearer k3y"}
        assert httpx.get(url + "/v1/models").status_code == 401
        body = {"prompt": "hello", "max_tokens": 300, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", url + "/v1/completions", json=body, headers=key, timeout=START_S) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: {")
            server.send_signal(signal.SIGTERM)
            assert list(lines)[-2] == "data: [DONE]"
        assert server.wait(START_S) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/health")


def test_a_person_is_told_url_model_catalog_memory_and_how_to_call(tmp_path):
    with process(tmp_path) as server:
        lines = [line(server, server.stdout) for _ in range(5)]
        assert [told.split()[0] for told in lines] == ["serving", "model", "catalog", "memory", "call"]
        assert "http://127.0.0.1:" in lines[0] and "curl" in lines[4] and "FLARE_API_KEY" in lines[4]
        server.send_signal(signal.SIGINT)
        assert server.wait(START_S) == 0


def test_a_signal_while_loading_ends_it(tmp_path):
    with process(tmp_path) as server:
        assert "answers 503" in line(server, server.stderr)
        server.send_signal(signal.SIGTERM)
        assert server.wait(START_S) in (0, -signal.SIGTERM)
