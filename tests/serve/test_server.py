"""`normscope serve` as a program, on loopback, with real models."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import uvicorn
from typer.testing import CliRunner

import normscope
from normscope.cli import app as cli
from normscope.models.architectures import tiny_model
from normscope.serve import server as serving_program
from tests.helpers.serving import TEXT, Server, body, run, server
from tests.helpers.tiny import tokenizer

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder–decoder model."""
    path = tmp_path_factory.mktemp("models") / "tiny-bart"
    tiny_model("bart").save_pretrained(path)
    tokenizer(pair=False).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    arguments = ("--model", DEFAULT, "--model", str(folder))
    with server(*arguments, "--max-length", "40", "--rate", "6000") as one:
        yield one


def analyse(running: Server, **fields: Any) -> tuple[httpx.Client, dict[str, Any]]:
    answer = running.http.post("/api/jobs", **body(**fields))
    assert answer.status_code == 202, answer.text
    return running.http, running.finish(answer.json()["id"])


def test_a_connection_that_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_program, "HEAD_SECONDS", 0.3)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.0)  # longer than a head may take: an answer is not cut off
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def test() -> None:
        config = uvicorn.Config(
            app,
            port=0,
            log_level="error",
            http=serving_program.Impatient,
            lifespan="off",
            ws="none",
        )
        program = uvicorn.Server(config)
        task = asyncio.create_task(program.serve())
        while not program.started:
            await asyncio.sleep(0.01)
        port = program.servers[0].sockets[0].getsockname()[1]
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: a\r\nX: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 204")
        writer.close()
        program.should_exit = True
        await task

    run(test())


def test_from_text_to_files(running: Server, tmp_path: Path) -> None:
    maps = ["attn_w", "attn_n", "atb_ff_res_ln"]
    client, told = analyse(running, model=DEFAULT, text=TEXT, text_pair="It slept.", maps=maps)
    assert told["state"] == "done"
    assert told["reconstruction_error"] < 1e-5
    base = f"/api/jobs/{told['id']}"
    file = tmp_path / "result.safetensors"
    file.write_bytes(client.get(f"{base}/result.safetensors").content)
    loaded = normscope.load(file)
    expected = normscope.analyze(None, text=TEXT, text_pair="It slept.", maps=maps)
    assert loaded.tokens == expected.tokens
    assert loaded.signature == told["signature"]
    for name in maps:
        np.testing.assert_allclose(loaded[name].values, expected[name].values, rtol=1e-4, atol=1e-6)
    plain = client.get(f"{base}/result.json").json()
    assert plain["maps"]["attn_n"] == loaded["attn_n"].values.tolist()
    rows = list(csv.DictReader(io.StringIO(client.get(f"{base}/result.csv").text)))
    assert len(rows) == sum(loaded[name].values.size for name in maps)
    assert [float(row["value"]) for row in rows[:5]] == loaded["attn_w"].values.ravel()[:5].tolist()
    page = client.get(f"{base}/page")
    assert page.headers["content-type"].startswith("text/html")
    assert page.text == client.get(f"{base}/result.html").text
    assert "Content-Security-Policy" in page.text


def test_single_heads_and_source_with_target(running: Server, tmp_path: Path) -> None:
    about = running.http.get("/api/models").json()["models"]
    found = [(one["name"], one["target"], one["max_length"]) for one in about]
    assert found[0] == (DEFAULT, False, 40)
    assert found[1][:2] == ("tiny-bart", True)
    texts = {"text": "the cat sat on the mat", "target": "the dog ran"}
    client, told = analyse(running, model="tiny-bart", heads="each", **texts)
    assert told["state"] == "done", told
    file = tmp_path / "result.safetensors"
    file.write_bytes(client.get(f"/api/jobs/{told['id']}/result.safetensors").content)
    loaded = normscope.load(file)
    assert list(loaded.parts) == ["encoder", "decoder", "cross"]
    assert "head" in loaded.cross["attn_n"].axes


@pytest.mark.parametrize(
    "text",
    [
        "</script><img src=x onerror=alert(1)>",
        "nul \x00 byte",
        "\u202eright to left\u202c",
        "🙂" * 9,
    ],
)
def test_hostile_text_is_text(running: Server, text: str) -> None:
    client, told = analyse(running, text=text)
    assert told["state"] == "done", told
    page = client.get(f"/api/jobs/{told['id']}/page").text
    assert "<img" not in page
    assert page.lower().count("</script") == page.lower().count("<script")
    assert "\x00" not in page


def test_texts_that_cannot_be_analysed_fail_with_a_reason(running: Server) -> None:
    _, long = analyse(running, text="cat " * 100)
    assert long["state"] == "failed"
    assert "102 tokens" in long["error"]
    assert "at most 40" in long["error"]
    _, empty = analyse(running, model="tiny-bart", text="the cat", target="\u200b")
    assert empty["state"] in ("done", "failed")


def raw(running: Server, *parts: bytes) -> bytes:
    """What the server answers to these very bytes."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as connection:
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:  # it has hung up on what was too much
            pass
        return answer


def test_foreign_hosts_and_oversized_bodies_on_the_wire(running: Server) -> None:
    close = b"Connection: close\r\n\r\n"
    assert raw(running, b"GET /health HTTP/1.1\r\nHost: evil.example\r\n" + close).startswith(
        b"HTTP/1.1 421 "
    )
    assert b" 421 " in raw(running, b"GET /health HTTP/1.0\r\n\r\n")
    own = f"Host: 127.0.0.1:{running.port}\r\n".encode()
    assert raw(running, b"GET /health HTTP/1.1\r\n" + own + close).startswith(b"HTTP/1.1 200 ")
    post = b"POST /api/jobs HTTP/1.1\r\n" + own + b"Content-Type: application/json\r\n"
    large = raw(running, post + b"Content-Length: 99999999\r\n\r\n")
    assert large.startswith(b"HTTP/1.1 413 ")
    chunk = b"2000\r\n" + b"a" * 0x2000 + b"\r\n"
    chunked = raw(running, post + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 20)
    assert chunked.startswith(b"HTTP/1.1 413 ")
    cross = raw(running, post + b"Origin: http://evil.example\r\nContent-Length: 0\r\n" + close)
    assert cross.startswith(b"HTTP/1.1 403 ")
    assert running.http.get("/health").status_code == 200


def held(running: Server) -> tuple[httpx.Client, str, psutil.Process]:
    """A job that runs and cannot end: its worker is stopped in its tracks."""
    worker = running.worker
    worker.suspend()
    client = running.http
    name = client.post("/api/jobs", **body(text=TEXT)).json()["id"]
    while client.get(f"/api/jobs/{name}").json()["state"] != "running":
        time.sleep(0.02)
    return client, name, worker


def test_a_cancelled_analysis_ends_its_process_and_the_next_runs(running: Server) -> None:
    client, name, worker = held(running)
    assert client.delete(f"/api/jobs/{name}").json()["state"] == "cancelled"
    assert client.get("/").status_code == 200
    _, told = analyse(running, text=TEXT)
    assert told["state"] == "done"
    assert not worker.is_running()


def test_a_crash_of_the_worker_is_told_and_mended(running: Server) -> None:
    _, name, worker = held(running)
    worker.kill()
    told = running.finish(name)
    assert "status -9" in told["error"]
    _, after = analyse(running, text=TEXT)
    assert after["state"] == "done"


def test_a_server_that_is_killed_leaves_no_worker_and_a_token_guards_it() -> None:
    with server(NORMSCOPE_TOKEN=TOKEN) as one:
        assert one.url.endswith(f"/#token={TOKEN}")
        with one.client() as client:
            assert client.get("/api/models").status_code == 401
        with one.client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            assert client.get("/api/models").status_code == 200
        worker = one.worker
        one.process.kill()
        one.process.wait()
        assert not psutil.wait_procs([worker], timeout=10)[1]


def test_ctrl_c_while_the_models_load_ends_everything() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "normscope", "serve", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(normscope.__file__).parents[1])},
        # A shell ignores Ctrl-C for what it runs in the background, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    assert "loading" in process.stderr.readline()
    while not (children := psutil.Process(process.pid).children()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=20)[1]
    assert process.returncode == 0, rest
    assert "Traceback" not in rest
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() for child in children)


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, ["serve", *arguments], prog_name="normscope")
    assert done.exit_code == 2, done.output
    return str(done.stderr)


def test_mistakes_at_the_start(tmp_path: Path) -> None:
    assert "--allow-remote" in refused("--host", "0.0.0.0")
    assert "up to 65535" in refused("--port", "99999")
    assert "--queue must be a number above 0" in refused("--queue", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refused("--port", str(taken.getsockname()[1]))
        assert "choose another --port" in said
    done = subprocess.run(
        [sys.executable, "-m", "normscope", "serve", "--port", "0", "--model", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(normscope.__file__).parents[1])},
    )
    assert done.returncode == 2
    assert "error: no model in the folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("normscope.serve.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'normscope[serve]'" in refused()


def test_the_documented_settings_are_the_real_ones() -> None:
    # The page of the docs has a table of limits; what it says is what a server starts with.
    from normscope.serve.settings import Settings

    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    settings = Settings()
    told = {
        "max-length": settings.max_length,
        "time-limit": f"{settings.time_limit:g}",
        "queue": settings.queue,
        "rate": settings.rate,
        "port": settings.port,
    }
    for option, value in told.items():
        assert f"`--{option}` | {value} " in text, option
    assert json.dumps(settings.in_flight) in text
