"""Which kernels serve: Triton's where they are asked for and can run, else torch's."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from normscope.errors import InputError
from normscope.kernels import backend

CPU = torch.device("cpu")


def test_triton_serves_where_it_is_asked_for_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in, cuda = ModuleType("stand_in"), torch.device("cuda")
    monkeypatch.setattr("normscope.kernels.triton", stand_in, raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backend, "_has_triton", lambda: True)
    assert backend.triton_for("auto", CPU) is backend.triton_for("torch", cuda) is None
    assert backend.triton_for("auto", cuda) is backend.triton_for("triton", cuda) is stand_in
    with pytest.raises(InputError, match="cpu is not a CUDA device"):
        backend.triton_for("triton", CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend.triton_for("auto", CPU) is None
    assert backend.triton_for("triton", CPU) is stand_in
    monkeypatch.setattr(backend, "_has_triton", lambda: False)
    assert backend.triton_for("auto", cuda) is None
    with pytest.raises(InputError, match=r"triton \(version 3\.6 or later\) is not installed"):
        backend.triton_for("triton", cuda)


@pytest.mark.parametrize(
    ("version", "serves"), [("3.5.1", False), ("3.6.0", True), ("3.10", True), ("4.0", True)]
)
def test_old_versions_do_not_serve(
    version: str, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert backend._has_triton.__wrapped__() == serves


def test_the_choice_is_checked() -> None:
    assert [backend.check_kernels(one) for one in backend.KERNELS] == list(backend.KERNELS)
    with pytest.raises(InputError, match="must be one of auto, torch, triton, not"):
        backend.check_kernels("cuda")
