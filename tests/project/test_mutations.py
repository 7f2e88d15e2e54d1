"""The tests bite: each of these mistakes, written into the source, makes a named test fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
SOURCE = HERE.parent / "src" / "normscope"

# what: (file, the right code, the mistake, the test that must fail)
MUTATIONS = {
    "b_O dropped": (
        "capture/projection.py",
        "return weight.detach().T, None if bias is None else bias.detach()",
        "return weight.detach().T, None",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "b_V counted twice": (
        "capture/recorder.py",
        "value=pending.value.detach(),",
        "value=pending.value.detach() + pending.module.value.bias.view(-1, 1, 8).transpose(0, 1),",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "query and key swapped": (
        "capture/recorder.py",
        "weights=weights.detach() if isinstance(weights, Tensor) else weights,",
        "weights=weights.detach().mT if isinstance(weights, Tensor) else weights,",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "query and key swapped in the map alone": (
        "kernels/gram.py",
        "return [norms.transpose(1, 2) for norms in lengths]",
        "return lengths",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "grouped heads not repeated in the products": (
        "kernels/products.py",
        "value.repeat_interleave(heads // groups, dim=1)",
        "value.repeat(1, heads // groups, 1, 1)",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[llama]",
    ),
    "grouped heads not repeated in the vectors": (
        "kernels/gram.py",
        "rows.repeat_interleave(len(weight) // groups, dim=0)",
        "rows.repeat(len(weight) // groups, 1, 1)",
        "kernels/test_products.py::test_maps_are_the_same_by_either_form[llama]",
    ),
    "products of two heads counted once": (
        "kernels/products.py",
        "counts = 2 * torch.ones_like",
        "counts = torch.ones_like",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "products kept although the weight has changed": (
        "kernels/products.py",
        "state: list[object] = [tensor_state(weight)]",
        "state: list[object] = [weight.shape]",
        "kernels/test_products.py::test_kept_until_the_weight_changes_in_whatever_way",
    ),
    "the query's own vector left to float32 where heads cancel": (
        "decomposition/attention.py",
        "if bool(lost.any()):",
        "if False:",
        "kernels/test_products.py::test_heads_that_cancel_in_float32",
    ),
    "grouped heads tiled instead of repeated in the reconstruction": (
        "capture/record.py",
        "value.repeat_interleave(heads // groups, dim=1)",
        "value.repeat(1, heads // groups, 1, 1)",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[llama]",
    ),
    "captures keyed by module": (
        "capture/recorder.py",
        "        self.emit(self._capture(pending, module, pending.merged, output))\n",
        "        one = self._capture(pending, module, pending.merged, output)\n"
        "        one.layer or self.emit(one) if one.kind == 'cross' else one.name in vars(self)"
        ".setdefault('keyed', set()) or (self.keyed.add(one.name), self.emit(one))\n",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[albert]",
    ),
    "the mask function left out": (
        "capture/interface.py",
        "AttentionMaskInterface.register(NAME, _mask)",
        "AttentionMaskInterface",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "float32 in the Gram matrix": (
        "kernels/gram.py",
        "        head_vectors(value[:, :, span], weight, out=vectors)\n",
        "        head_vectors(value[:, :, span], weight, out=vectors)\n"
        "        vectors.copy_(vectors.float())\n",
        "decomposition/test_exactness.py::test_cancelling_heads_keep_six_digits",
    ),
    "heads averaged instead of summed": (
        "kernels/gram.py",
        ".mul_(weights).sum(dim=1)",
        ".mul_(weights).mean(dim=1)",
        "decomposition/test_exactness.py::test_family_is_seen_exactly[bert]",
    ),
    "post-norm taken for pre-norm in cross-attention": (
        "capture/recorder.py",
        "return before if before is not None and self.normed_first[self.block] else states",
        "return before if before is not None else states",
        "capture/test_capture.py -k residual",
    ),
    "the feed-forward's residual on the diagonal alone, its sum kept": (
        "decomposition/layer.py",
        "            self.whole_block,\n",
        "            __import__('dataclasses').replace(\n"
        "                self.whole_block,\n"
        "                linear=(*self.whole_block.linear, torch.zeros_like),\n"
        "                own=self.whole_block.own + self.whole_block.others,\n"
        "                others=torch.zeros_like(self.whole_block.others),\n"
        "            ),\n",
        "decomposition/test_layer.py::test_feed_forward_against_numerical_integration[bert-path]",
    ),
    "σ taken from each part": (
        "decomposition/block.py",
        "made = [sigma(part.to(wide)).squeeze(-1) for part in given.split(step, dim=1)]",
        "made = [sigma(given.double() - given.double().mean(dim=1, keepdim=True)).squeeze(-1)]",
        "decomposition/test_layer.py::test_bert_block_against_loops",
    ),
    "β dropped": (
        "decomposition/block.py",
        "return made if beta is None else made.add_(beta)\n",
        "return made\n",
        "decomposition/test_layer.py::test_bert_block_against_loops",
    ),
    "γ(b_O − mean b_O) dropped": (
        "decomposition/block.py",
        "bias=norm.bias(self.bias),",
        "bias=norm.bias(torch.zeros_like(self.bias)),",
        "decomposition/test_layer.py::test_bert_block_against_loops",
    ),
    "θ by division at zero": (
        "decomposition/activations.py",
        "return CLOSED[name](p)",
        "return activation(p) / p",
        "decomposition/test_layer.py::test_secants_against_integration_of_the_derivative",
    ),
    "the unit offset of Gemma's norm forgotten": (
        "decomposition/norms.py",
        "scales = [None] if weight is None else [weight, 1 + weight]",
        "scales = [None] if weight is None else [weight]",
        "decomposition/test_layer.py::test_every_scope_is_complete[gemma-path]",
    ),
    "the residual added to every column": (
        "decomposition/block.py",
        "made.diagonal(offset=here.start, dim1=-2, dim2=-1).copy_(own)",
        "made += own.unsqueeze(-1)",
        "decomposition/test_layer.py::test_bert_block_against_loops",
    ),
}


def test_make_mutants_names_tests_that_exist() -> None:
    told = (HERE / "deep" / "mutate.py").read_text(encoding="utf-8")
    names = re.findall(r'"(\w+)"', told.partition("\nFILES = (")[2].partition("\n)")[0])
    assert len(names) > 15
    assert not [name for name in names if not (HERE / f"test_{name}.py").is_file()]


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
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE.parent)])},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    # It failed on what the mistake made wrong, not because the mistake does not run.
    for broken in ("SyntaxError", "NameError"):
        assert broken not in done.stdout, done.stdout[-3000:]
