"""The tests bite: each of these mistakes, written into the source, makes a named test fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "normscope"

# what: (file, the right code, the mistake, the test that must fail)
MUTATIONS = {
    "b_O dropped": (
        "capture/projection.py",
        "return weight.detach().T, None if bias is None else bias.detach()",
        "return weight.detach().T, None",
        "test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "b_V counted twice": (
        "capture/recorder.py",
        "value=pending.value.detach(),",
        "value=pending.value.detach() + pending.module.value.bias.view(-1, 1, 8).transpose(0, 1),",
        "test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "query and key swapped": (
        "capture/recorder.py",
        "alpha=pending.alpha.detach(),",
        "alpha=pending.alpha.detach().mT,",
        "test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "query and key swapped in the map alone": (
        "kernels/gram.py",
        "summed[:, :, here] = squares.clamp_min_(0).sqrt_().transpose(1, 2)",
        "summed[:, here] = squares.clamp_min_(0).sqrt_()",
        "test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "grouped heads not repeated in the kernel": (
        "kernels/gram.py",
        "grouped = weight.double().unflatten(0, (groups, -1))",
        "grouped = weight.double().unflatten(0, (-1, groups)).transpose(0, 1)",
        "test_exactness.py::test_family_is_seen_exactly[llama]",
    ),
    "grouped heads tiled instead of repeated in the reconstruction": (
        "capture/recorder.py",
        "value.repeat_interleave(heads // groups, dim=1)",
        "value.repeat(1, heads // groups, 1, 1)",
        "test_exactness.py::test_family_is_seen_exactly[llama]",
    ),
    "captures keyed by module": (
        "capture/recorder.py",
        "self.emit(captured)",
        "layer or self.emit(captured) if cross else place.name in vars(self).setdefault("
        "'keyed', set()) or (self.keyed.add(place.name), self.emit(captured))",
        "test_exactness.py::test_family_is_seen_exactly[albert]",
    ),
    "the mask function left out": (
        "capture/seam.py",
        "AttentionMaskInterface.register(NAME, _mask)",
        "AttentionMaskInterface",
        "test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "float32 in the Gram matrix": (
        "kernels/gram.py",
        "grams = gram_matrices(head_vectors(value[:, :, here], weight))",
        "grams = gram_matrices(head_vectors(value[:, :, here], weight).float()).double()",
        "test_exactness.py::test_cancelling_heads_keep_six_digits",
    ),
    "heads averaged instead of summed": (
        "kernels/gram.py",
        ".mul_(weights).sum(dim=2)",
        ".mul_(weights).mean(dim=2)",
        "test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "post-norm taken for pre-norm in cross-attention": (
        "capture/recorder.py",
        "return before if before is not None and self.normed_first[self.block] else given",
        "return before if before is not None else given",
        "test_capture.py -k residual",
    ),
}


@pytest.mark.parametrize("mistake", MUTATIONS)
def test_mistake_is_caught(mistake: str, tmp_path: Path) -> None:
    file, right, wrong, test = MUTATIONS[mistake]
    shutil.copytree(SOURCE, tmp_path / "normscope")
    text = (SOURCE / file).read_text()
    assert text.count(right) == 1, f"{file} no longer has this line once: {right}"
    (tmp_path / "normscope" / file).write_text(text.replace(right, wrong))
    name, *selection = test.split(" ", 1)
    words = [word for part in selection for word in part.split()]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    command += [str(HERE / name), *words]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE)])},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    # It failed on what the mistake made wrong, not because the mistake does not run.
    for broken in ("SyntaxError", "NameError"):
        assert broken not in done.stdout, done.stdout[-3000:]
