"""A command's own Prefect server: spoken to once it answers, and never where another is to be used."""

import signal
import subprocess
import sys

from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows import own_server


def test_a_server_that_did_not_come_up_leaves_it_to_prefect():
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with temporary_settings({PREFECT_API_URL: "http://before/api"}), own_server._spoken_to(ended, 1):
        assert PREFECT_API_URL.value() == "http://before/api"
        assert PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() is not None


def test_none_is_started_beside_one_that_is_configured(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with temporary_settings({PREFECT_API_URL: "http://theirs/api"}), own_server.start_own_server():
        assert PREFECT_API_URL.value() == "http://theirs/api"


COMPLAINING = """
import sys
from prefect.server.api import server
from flows import own_server

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    print("before", file=sys.stderr)
    await receive()
    await send({"type": "lifespan.startup.complete"})
    print("up", flush=True)
    await receive()
    print("after", file=sys.stderr)
    await send({"type": "lifespan.shutdown.complete"})

server.create_app = lambda **_: app
own_server._serve(own_server._free_port())
"""


def test_what_its_end_cuts_short_is_not_heard():
    command = [sys.executable, "-c", COMPLAINING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "up\n"
        server.send_signal(signal.SIGTERM)
        assert server.communicate() == ("", "before\n")


def test_flows_speak_to_the_one_that_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        waits = own_server.start_own_server()
        assert PREFECT_API_URL.value() is None
        with waits:
            assert PREFECT_API_URL.value().startswith("http://127.0.0.1:")
            assert PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() is None
        assert PREFECT_API_URL.value() is None
