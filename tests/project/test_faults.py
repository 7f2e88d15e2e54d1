"""Faults: no room on the disk or on the GPU, no permission, numbers that are none, processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import normscope
from normscope.alignment.files import read_links, write_links
from normscope.alignment.links import Links
from normscope.corpus.readers import open_file
from normscope.engine.run import Engine
from normscope.errors import InputError, NormscopeError
from normscope.measures.statistics import Measurer
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.results import files as export
from tests.helpers.corpora import SETTINGS, save_model, text_file
from tests.helpers.tiny import tokenizer

TEXTS = ["the cat sat", "the big red cats sat on a mat", "a dog ran", "it was asleep .", "a cat"]


@pytest.fixture(scope="module")
def result() -> Any:
    return normscope.analyze(tiny_model("bert"), tokenizer(), "the cat sat on a mat")


# ---- the disk

WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "result.safetensors": lambda result, path: result.save(path),
    "page.html": lambda result, path: result.to_html(path),
    "maps.json": lambda result, path: export.write(result, str(path)),
    "maps.csv": lambda result, path: export.write(result, str(path)),
    "links.talp": lambda _, path: write_links(path, [Links.of([(0, 1)])] * 5000),
}
READERS: tuple[Callable[[Path], Any], ...] = (normscope.load, read_links, open_file)


@pytest.fixture(params=[None, b"earlier"], ids=["new", "over an older file"])
def before(request: pytest.FixtureRequest) -> Any:
    return request.param


def prepared(tmp_path: Path, name: str, before: bytes | None) -> Path:
    path = tmp_path / name
    if before is not None:
        path.write_bytes(before)
    return path


def unchanged(path: Path, before: bytes | None) -> None:
    """Nothing new is there, the older file is whole, and no temporary file was left."""
    there = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert there == ({} if before is None else {path.name: before})


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk(
    name: str, before: bytes | None, result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes do not reach the disk."""
    path = prepared(tmp_path, name, before)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"No space left on device; nothing was changed"):
        WRITERS[name](result, path)
    unchanged(path, before)


LIMITED = """
import os, resource, signal, sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.project import test_faults as tests
from normscope.errors import InputError
result = tests.normscope.analyze(tests.tiny_model("bert"), tests.tokenizer(), "the cat sat")
folder = Path({folder!r})
for name, write in tests.WRITERS.items():  # all that is imported on the way is there now
    write(result, folder / name)
    (folder / name).unlink()


def refused():
    for name, write in tests.WRITERS.items():
        try:
            write(result, folder / name)
        except InputError as error:
            print(name, error)


signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 10**9))
refused()
resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, 10**9))
folder.chmod(0o500)
if os.geteuid() == 0:
    os.seteuid(65534)  # to root nothing is denied
else:
    folder.parent.chmod(0o600)  # root's folders cannot be looked into by others either
refused()
for read in tests.READERS:
    try:
        read(folder / "result.jsonl")
    except InputError as error:
        print("reading:", error)
if os.geteuid() != 65534:
    folder.parent.chmod(0o700)
"""


@pytest.mark.slow
def test_a_file_that_may_not_grow_and_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    """Real limits of the system: one is hit in the middle of writing, one before it."""
    script = LIMITED.format(tests=str(Path(__file__).parents[2]), folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    tmp_path.chmod(0o700)
    assert [line.split()[0] for line in said[:-3]] == 2 * list(WRITERS)
    for line in said[: len(WRITERS)]:
        assert "File too large; nothing was changed there" in line
    for line in said[len(WRITERS) : -3]:
        assert "Permission denied; nothing was changed there" in line
    for line in said[-3:]:
        assert line.startswith(("reading: cannot read", "reading: could not load"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", WRITERS)
def test_permission_denied(
    name: str, before: bytes | None, result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an older file is in the way."""
    path = prepared(tmp_path, name, before)
    opened = os.open

    def denied(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_EXCL:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(InputError, match="Permission denied; nothing was changed"):
        WRITERS[name](result, path)
    monkeypatch.undo()
    unchanged(path, before)


# ---- a GPU's memory


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two rows at once fit, more do not; gives the sizes that were tried."""
    tried: list[int] = []
    start, measure = Engine.start, Measurer.measure

    def starting(self: Engine, batch: Any) -> Any:
        tried.append(len(batch.inputs["input_ids"]))
        if tried[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return start(self, batch)

    def measuring(self: Measurer, rows: Any) -> Any:
        tried.append(len(rows))
        if tried[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return measure(self, rows)

    monkeypatch.setattr(Engine, "start", starting)
    monkeypatch.setattr(Measurer, "measure", measuring)
    return tried


def test_a_batch_that_does_not_fit_is_halved(small_memory: list[int]) -> None:
    model, reads = tiny_model("bert"), tokenizer()
    alone = [normscope.analyze(model, reads, text) for text in TEXTS]
    small_memory.clear()
    with pytest.warns(
        RuntimeWarning, match=r"[53] of these texts do not fit .* continuing with [32] at"
    ):
        together = normscope.analyze(model, reads, TEXTS)
    assert small_memory == [5, 2, 3, 1, 2]
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens
        assert_allclose(other["attn_n"].values, one["attn_n"].values, rtol=1e-12)


def test_what_does_not_fit_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Engine, "start", full)
    model, reads = tiny_model("bert"), tokenizer()
    with pytest.raises(InputError, match="even one of these texts; a shorter text"):
        normscope.analyze(model, reads, TEXTS[0])
    with pytest.raises(InputError, match="memory for this batch: give fewer rows at once"):
        normscope.analyze_inputs(model, tiny_inputs("bert"))


def test_a_corpus_goes_on_with_smaller_batches(
    small_memory: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(tmp_path / "model")
    data = text_file(tmp_path / "rows.txt", 7)

    def run(name: str) -> Any:
        return normscope.corpus(
            folder, data, ["categories"], settings=SETTINGS, output=tmp_path / name
        )

    with pytest.warns(
        RuntimeWarning, match="of these rows do not fit in GPU memory at once; continuing with"
    ):
        found = run("halved")
    assert max(small_memory) > 2
    monkeypatch.undo()
    assert found.counts["sequences"] == 7
    assert found.counts["bad"] == {}
    whole = run("whole")
    for name, table in whole.tables.items():
        for column, values in table.lists().items():
            same = found.tables[name].lists()[column]
            if any(isinstance(value, float) for value in values):
                assert_allclose(same, values, rtol=1e-5, atol=1e-8)
            else:
                assert same == values


# ---- numbers that are none


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["value.weight", "output.dense.bias", "query.weight"])
def test_weights_that_are_no_numbers(bad: float, where: str) -> None:
    model: Any = tiny_model("bert")
    name = next(n for n, _ in model.named_parameters() if n.endswith(where))
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = bad
    with pytest.raises(InputError, match=r"parameter encoder\.layer\.0\..* contains NaN or inf"):
        normscope.analyze_inputs(model, tiny_inputs("bert"))


def test_activations_that_overflow() -> None:
    """All weights are finite, the states are not."""
    model: Any = tiny_model("gpt2", dtype=torch.float16)
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight.mul_(1e3)
        model.transformer.h[0].attn.c_proj.weight.mul_(1e3)
    inputs = tiny_inputs("gpt2", dtype=torch.float16)
    with pytest.raises(InputError, match=r"NaN or infinity.*float32"):
        normscope.analyze_inputs(model, inputs)


# ---- a model that changes meanwhile


@pytest.mark.parametrize("what", ["weights", "training", "module", "implementation"])
def test_a_model_that_changes_during_the_capture(what: str) -> None:
    """The result is that of what ran, or none; never a wrong map."""
    model: Any = tiny_model("bert")
    last = model.encoder.layer[2].attention

    def change(*_: Any) -> None:
        with torch.no_grad():
            if what == "weights":
                last.output.dense.weight.mul_(2)
            elif what == "training":
                model.train()
            elif what == "module":
                last.output.dense = torch.nn.Linear(32, 32, dtype=torch.float64)
            else:
                model.set_attn_implementation("sdpa")

    hook = model.encoder.layer[0].register_forward_hook(change)
    try:
        results = normscope.analyze_inputs(model, tiny_inputs("bert"))
    except NormscopeError:
        return
    finally:
        hook.remove()
    if what in ("weights", "module"):  # as changed, and again with nothing that changes
        again = normscope.analyze_inputs(model, tiny_inputs("bert"))
        for one, other in zip(results, again, strict=True):
            assert_allclose(one["attn_n"].values, other["attn_n"].values, rtol=1e-12)
    assert max(results[0].error.values()) < 1e-11


# ---- processes


def analysed(name: str) -> Any:
    torch.set_num_threads(1)
    return normscope.analyze_inputs(tiny_model(name), tiny_inputs(name))[0]["attn_n"].values


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_other_processes(method: str) -> None:
    expected = analysed("bert")  # torch is warm here before anything is forked
    with multiprocessing.get_context(method).Pool(2) as pool:
        for found in pool.map(analysed, ["bert"] * 2):
            assert_array_equal(found, expected)
