"""`normscope serve` as a program, with real models."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import normscope
from normscope.cli import app as cli
from normscope.models.architectures import tiny_model
from normscope.serve import server as serving_program
from tests.helpers.serving import TEXT, Server, body, listening, run, server, until_over
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
    with server(*arguments, "--max-length", "40") as program:
        yield program


def analyse(running: Server, **fields: Any) -> tuple[httpx.Client, dict[str, Any]]:
    answer = running.http.post("/api/jobs", **body(**fields))
    assert answer.status_code == 202, answer.text
    return running.http, running.finish(answer.json()["id"])


# ---- connections, with a fake worker

SIZE = 95_000_000


async def opened(port: int, *sent: bytes, address: str = "127.0.0.1") -> socket.socket:
    """Return a connection from this address, which sent these bytes and reads nothing."""
    connection = socket.socket()
    connection.bind((address, 0))
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", port))
    for part in sent:
        await loop.sock_sendall(connection, part)
    return connection


async def received(connection: socket.socket, seconds: float = 10.0) -> bytes:
    """Return everything that a connection receives until the server closes it."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while piece := await asyncio.wait_for(
            asyncio.get_running_loop().sock_recv(connection, 65536), seconds
        ):
            answer += piece
    connection.close()
    return answer


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def finished(client: httpx.AsyncClient, text: str) -> str:
    """Return the path of a finished job."""
    name = (await client.post("/api/jobs", **body(text=text))).json()["id"]
    assert (await until_over(client, name))["state"] == "done"
    return f"/api/jobs/{name}"


async def in_time(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def test_clients_that_do_not_read_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_program, "PATIENCE", 1.0)

    async def test() -> None:
        async with listening() as (client, port, _):
            path = await finished(client, f"size {SIZE}")
            await client.get("/")
            program = psutil.Process()
            before = program.memory_info().rss
            sent = get(f"{path}/result.safetensors")
            connections = [await opened(port, sent) for _ in range(8)]
            largest = before
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                largest = max(largest, program.memory_info().rss)
                assert (await client.get("/health")).status_code == 200
                await asyncio.sleep(0.02)
            assert largest - before < 16 * 2**20  # and not 8 × 95 MB
            await asyncio.sleep(2.0)  # PATIENCE has been exceeded by all
            for connection in connections:
                assert len(await received(connection)) < SIZE / 2

    run(test())


def test_a_client_that_reads_slowly_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_program, "PATIENCE", 0.5)
    size = 2_000_000

    async def test() -> None:
        async with listening() as (client, port, _):
            path = await finished(client, f"size {size}")
            connection = await opened(port)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, get(f"{path}/result.safetensors"))
            count = 0
            started = time.monotonic()
            while count < size:
                piece = await loop.sock_recv(connection, 16384)
                assert piece, count
                count += len(piece)
                await asyncio.sleep(0.02)
            assert time.monotonic() - started > 1.5  # longer than PATIENCE
            connection.close()

    run(test())


def test_pipelined_requests_of_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_program, "PATIENCE", 0.5)

    async def test() -> None:
        async with listening() as (client, port, _):
            connection = await opened(port)
            loop = asyncio.get_running_loop()
            many = get("/") * 200_000
            with pytest.raises(ConnectionError):  # they are not read without an end
                await asyncio.wait_for(loop.sock_sendall(connection, many), 20)
            connection.close()
            assert (await client.get("/health")).status_code == 200

    run(test())


def test_a_connection_that_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_program, "PATIENCE", 0.3)

    async def test() -> None:
        async with listening() as (client, port, jobs):
            for sent in (b"", b"GET / HTTP/1.1\r\nHost: a\r\nX: "):
                assert await received(await opened(port, sent)) == b""
            # After a complete request, too.
            answer = await received(await opened(port, get("/health") + b"GET / HT"))
            assert answer.count(b"HTTP/1.1 200") == 1
            # A response that comes late is not cut off.
            name = (await client.post("/api/jobs", **body(text="sleep 20"))).json()["id"]
            sent = get(f"/api/jobs/{name}?wait=1.5&state=running")
            await in_time(lambda: jobs.running is not None)
            answer = await received(await opened(port, sent))
            assert answer.startswith(b"HTTP/1.1 200")

    run(test())


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_program, "PATIENCE", 0.3)
    monkeypatch.setattr("normscope.serve.requests.BODY_SECONDS", 0.3)

    async def test() -> None:
        async with listening() as (_, port, _):
            chunked = b"Host: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
            json_type = b"Content-Type: application/json\r\n\r\n"
            for target in (b"POST /api/jobs", b"POST /static/app.js", b"GET /health"):
                connection = await opened(port, target + b" HTTP/1.1\r\n" + chunked + json_type)
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(10):
                    with contextlib.suppress(ConnectionError):
                        while True:
                            await loop.sock_sendall(connection, b"1\r\n \r\n")
                            await asyncio.sleep(0.05)
                connection.close()

    run(test())


def test_slow_bodies_do_not_keep_others_out() -> None:
    async def test() -> None:
        async with listening() as (client, port, _):
            head = b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n"
            head += b"Content-Type: application/json\r\n\r\n{"
            connections = [await opened(port, head) for _ in range(140)]
            await finished(client, "a")
            for connection in connections:
                connection.close()

    run(test())


@pytest.mark.parametrize("what", ["long poll", "download"])
def test_work_ends_with_its_client(what: str) -> None:
    async def test() -> None:
        async with listening() as (client, port, jobs):
            done = await finished(client, "a")
            name = (await client.post("/api/jobs", **body(text="sleep 20"))).json()["id"]
            await in_time(lambda: jobs.running is not None)
            poll = get(f"/api/jobs/{name}?wait=20&state=running")
            sent = poll if what == "long poll" else get(f"{done}/result.csv")

            def waiting() -> int:
                polls = sum(job.clients for job in jobs._jobs.values())
                return polls + sum(download.clients for download in jobs._conversions.values())

            connections = [await opened(port, sent) for _ in range(200)]
            await in_time(lambda: waiting() == 200)
            for connection in connections:
                connection.close()
            await in_time(lambda: waiting() == 0, 2.0)
            await client.delete(f"/api/jobs/{name}")
            await finished(client, "b")
            assert not jobs._conversions
            assert "csv" not in jobs._jobs[done.rpartition("/")[2]].files

    run(test())


def test_connections_of_one_address_are_limited_if_others_are_let_in() -> None:
    async def test() -> None:
        async with listening(connections=16, allow_remote=True, token=TOKEN) as (_, port, _):
            silent = [await opened(port) for _ in range(40)]
            await asyncio.sleep(0.1)
            assert await received(await opened(port, get("/health"))) == b""
            other = await opened(port, get("/health"), address="127.0.0.2")
            answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(other, 999), 5)
            assert answer.startswith(b"HTTP/1.1 200")
            other.close()
            for connection in silent:
                connection.close()
            await asyncio.sleep(0.1)
            again = await opened(port, get("/health"))
            answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(again, 999), 5)
            assert answer.startswith(b"HTTP/1.1 200")
            again.close()

    run(test())


def test_too_many_connections_get_an_error() -> None:
    async def test() -> None:
        async with listening(connections=8) as (_, port, _):
            silent = [await opened(port) for _ in range(8)]
            answer = await received(await opened(port, get("/health")))
            assert answer.startswith(b"HTTP/1.1 503")
            for connection in silent:
                connection.close()

    run(test())


def test_slow_clients_do_not_delay_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with listening() as (client, port, _):
            path = await finished(client, f"size {SIZE}")
            head = b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n"
            head += b"Content-Type: application/json\r\n\r\n{"
            sent = (b"", b"GET", head, get(f"{path}/page"), get(f"{path}/result.safetensors"))
            connections = [await opened(port, part) for part in sent for _ in range(3)]
            await asyncio.sleep(0.2)
            started = time.monotonic()
        assert time.monotonic() - started < 6
        for connection in connections:
            connection.close()

    run(test())
    assert capfd.readouterr().err == ""


# ---- the program, with real models


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
    running.until(name, "running")
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
def test_a_job_survives_a_crash_of_the_idle_worker(running: Server) -> None:
    _, name, worker = held(running)
    worker.kill()
    job = running.finish(name)
    # It was suspended before it could read the job, so a new worker ran it.
    assert job["state"] == "done"
    assert not worker.is_running()
    _, after = analyse(running, text=TEXT)
    assert after["state"] == "done"


@pytest.mark.slow
def test_a_token_and_a_killed_server_leaves_neither_worker_nor_files() -> None:
    with server(NORMSCOPE_TOKEN=TOKEN) as program:
        assert program.url.endswith(f"/#token={TOKEN}")
        with program.client() as client:
            assert client.get("/api/models").status_code == 401
        with program.client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            assert client.get("/api/models").status_code == 200
        worker = program.worker
        folder = Path(worker.environ()["TMPDIR"])
        assert folder.is_dir()
        program.process.kill()
        program.process.wait()
        assert not psutil.wait_procs([worker], timeout=10)[1]
        assert not folder.exists()


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
