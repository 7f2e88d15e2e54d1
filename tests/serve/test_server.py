"""`normscope serve` as a program, with real models."""

from __future__ import annotations

import asyncio
import csv
import io
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
    with server(*arguments, "--max-length", "40", "--rate", "6000") as program:
        yield program


def analyse(running: Server, **fields: Any) -> tuple[httpx.Client, dict[str, Any]]:
    answer = running.http.post("/api/jobs", **body(**fields))
    assert answer.status_code == 202, answer.text
    return running.http, running.finish(answer.json()["id"])


def test_a_connection_that_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_program, "HEAD_SECONDS", 0.3)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.0)  # longer than HEAD_SECONDS: a response is not cut off
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def test() -> None:
        config = uvicorn.Config(
            app,
            port=0,
            log_level="error",
            http=serving_program.IdleTimeoutProtocol,
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


@pytest.mark.slow
def test_from_text_to_files(running: Server, tmp_path: Path) -> None:
    maps = ["attn_w", "attn_n", "atb_ff_res_ln"]
    client, job = analyse(running, model=DEFAULT, text=TEXT, text_pair="It slept.", maps=maps)
    assert job["state"] == "done"
    assert job["reconstruction_error"] < 1e-5
    base = f"/api/jobs/{job['id']}"
    file = tmp_path / "result.safetensors"
    file.write_bytes(client.get(f"{base}/result.safetensors").content)
    loaded = normscope.load(file)
    expected = normscope.analyze(None, text=TEXT, text_pair="It slept.", maps=maps)
    assert loaded.tokens == expected.tokens
    assert loaded.signature == job["signature"]
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
    models = running.http.get("/api/models").json()["models"]
    assert [(model["name"], model["target"]) for model in models] == [
        (DEFAULT, False),
        ("tiny-bart", True),
    ]
    assert models[0]["max_length"] == 40
    assert models[0]["suggested"] == ["attn_w", "attn_n", "attn_res_ln_n", "atb_ff_res_ln"]
    assert models[0]["per_head"] == ["attn_w", "attn_n"]
    texts = {"text": "the cat sat on the mat", "target": "the dog ran"}
    client, job = analyse(running, model="tiny-bart", heads="each", **texts)
    assert job["state"] == "done", job
    file = tmp_path / "result.safetensors"
    file.write_bytes(client.get(f"/api/jobs/{job['id']}/result.safetensors").content)
    loaded = normscope.load(file)
    assert list(loaded.parts) == ["encoder", "decoder", "cross"]
    assert "head" in loaded.cross["attn_n"].axes


def test_an_attribution_by_the_worker_process(running: Server, tmp_path: Path) -> None:
    models = {m["name"]: m for m in running.http.get("/api/models").json()["models"]}
    assert list(models[DEFAULT]["questions"]) == ["maps", "similar"]
    texts = {"text": TEXT, "similar_to": "A cat is sitting."}
    client, job = analyse(running, model=DEFAULT, question="similar", **texts)
    assert job["state"] == "done", job
    file = tmp_path / "result.safetensors"
    file.write_bytes(client.get(f"/api/jobs/{job['id']}/result.safetensors").content)
    expected = normscope.attribute(None, text=TEXT, similar_to=texts["similar_to"])
    loaded = normscope.load(file)
    assert isinstance(loaded, normscope.Attribution)
    np.testing.assert_allclose(loaded.scores.values, expected.scores.values, rtol=1e-4, atol=1e-6)
    page = client.get(f"/api/jobs/{job['id']}/page")
    assert page.headers["content-security-policy"].startswith("sandbox allow-scripts")


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
    client, job = analyse(running, text=text)
    assert job["state"] == "done", job
    page = client.get(f"/api/jobs/{job['id']}/page").text
    assert "<img" not in page
    assert page.lower().count("</script") == page.lower().count("<script")
    assert "\x00" not in page


def test_a_text_that_is_too_long_fails_with_a_reason(running: Server) -> None:
    _, long = analyse(running, text="cat " * 100)
    assert long["state"] == "failed"
    assert "102 tokens" in long["error"]
    assert "at most 40" in long["error"]
    _, empty = analyse(running, model="tiny-bart", text="the cat", target="\u200b")
    assert empty["state"] in ("done", "failed")


def raw(running: Server, *parts: bytes) -> bytes:
    """Return the response to these bytes."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as connection:
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:  # the server closed the connection
            pass
        return answer


def test_foreign_hosts_and_large_bodies_in_raw_http(running: Server) -> None:
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
    """Return a running job that cannot end, because its worker is suspended."""
    worker = running.worker
    worker.suspend()
    client = running.http
    name = client.post("/api/jobs", **body(text=TEXT)).json()["id"]
    while client.get(f"/api/jobs/{name}").json()["state"] != "running":
        time.sleep(0.02)
    return client, name, worker


@pytest.mark.slow
def test_cancellation_ends_the_worker(running: Server) -> None:
    client, name, worker = held(running)
    assert client.delete(f"/api/jobs/{name}").json()["state"] == "cancelled"
    assert client.get("/").status_code == 200
    _, job = analyse(running, text=TEXT)
    assert job["state"] == "done"
    assert not worker.is_running()


@pytest.mark.slow
def test_a_crash_of_the_worker_fails_its_job(running: Server) -> None:
    _, name, worker = held(running)
    worker.kill()
    job = running.finish(name)
    assert "status -9" in job["error"]
    _, after = analyse(running, text=TEXT)
    assert after["state"] == "done"


@pytest.mark.slow
def test_a_token_and_a_killed_server_without_leftover_worker() -> None:
    with server(NORMSCOPE_TOKEN=TOKEN) as program:
        assert program.url.endswith(f"/#token={TOKEN}")
        with program.client() as client:
            assert client.get("/api/models").status_code == 401
        with program.client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            assert client.get("/api/models").status_code == 200
        worker = program.worker
        program.process.kill()
        program.process.wait()
        assert not psutil.wait_procs([worker], timeout=10)[1]


@pytest.mark.slow
def test_ctrl_c_while_the_models_are_loaded() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "normscope", "serve", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(normscope.__file__).parents[1])},
        # Background jobs of a shell ignore SIGINT, and child processes inherit that.
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


@pytest.mark.slow
def test_wrong_options(tmp_path: Path) -> None:
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


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("normscope.serve.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'normscope[serve]'" in refused()
