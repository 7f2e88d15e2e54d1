"""Tables in the terminal, of results made by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy.testing import assert_allclose
from rich.console import Console

from normscope import Contributions, LabelledArray
from normscope.show import headline, terminal
from normscope.text.tokens import Tokens


def shown(strings: tuple[str, ...], width: int = 80, maps: tuple[str, ...] = ()) -> str:
    """What is printed of a result in which the first key has the weight and the last the norm."""
    tokens = Tokens(strings, None, (False,) * len(strings), strings)
    size = len(strings)
    weights = np.full((1, size, size), 0.1 / (size - 1), dtype=np.float32)
    weights[:, :, 0] = 0.9
    norms = np.ones((1, size, size), dtype=np.float32)
    norms[:, :, -1] = size
    axes, both = ("layer", "query", "key"), {"query": tokens, "key": tokens}
    arrays = {
        name: LabelledArray(values, axes, both, name=name)
        for name, values in {"attn_w": weights, "attn_n": norms, "atb": norms}.items()
        if name in (maps or ("attn_w", "attn_n"))
    }
    console = Console(width=width, file=io.StringIO(), color_system=None)
    terminal.show(Contributions(arrays, None, tokens, signature="by hand"), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_first_by_weight_and_by_norm_with_both_shares() -> None:
    printed = shown(("a", "b", "c"), 120)
    assert printed.startswith('In layer 0, "a" gets 90% of the attention weight but 20% of ')
    assert "3 tokens:  0 a  1 b  2 c" in printed
    (row,) = [line.split() for line in printed.splitlines() if line.lstrip().startswith("0 ")]
    assert row == ["0", "0", "a", "90.0%", "20.0%", "≠", "2", "c", "5.0%", "60.0%", "70.0%"]
    assert (
        "Weights and norms differ most in layer 0: a (position 0) gets 90.0% of the weight and "
        "20.0% of the norm; c (position 2) gets 5.0% of the weight and 60.0% of the norm."
    ) in " ".join(printed.split())
    assert printed.endswith("signature  by hand\n")


def test_a_map_beside_the_two_has_a_table_of_its_own() -> None:
    printed = shown(("a", "b", "c"), 120, maps=("attn_w", "attn_n", "atb"))
    assert "Weights and norms differ" in printed
    assert "\natb" in printed
    assert "third" in printed
    alone = shown(("a", "b"), 120, maps=("atb",))
    assert "differ" not in alone
    assert "third" not in alone  # there are two tokens


def test_tokens_are_shown_as_they_are() -> None:
    printed = shown(("[bold]a[/bold]", ":smile:", "\x1b[31m", "new\nline", "猫"))
    assert "0 [bold]a[/bold]  1 :smile:  2 \\x1b[31m  3 new\\nline  4 猫" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize("width", [30, 80, 160])
def test_numbers_are_whole_at_every_width(width: int) -> None:
    printed = shown(tuple(f"antidisestablishmentarianism{i}" for i in range(200)), width)
    table = printed[
        printed.index("\nlayer") + 1 : printed.index("Weights and norms differ")
    ].splitlines()
    assert all(part in table[2] for part in (" 90.0% ", " ≠ ", " 50.1%"))
    if width >= 80:
        assert max(map(len, table)) <= width
    assert "… and 72 more" in printed


def test_row_shares() -> None:
    assert headline.row_shares([[1, 3], [0, 0]]).tolist() == [[0.25, 0.75], [0, 0]]
    values = np.random.default_rng(0).random((2, 3, 4, 5))
    assert_allclose(headline.row_shares(values).sum(axis=-1), 1)


def test_the_difference_is_the_part_that_would_have_to_move() -> None:
    first, second = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.0, 1.0], [0.5, 0.5]])
    assert headline.difference(first, second) == 0.5  # all of the first row, none of the second
    assert headline.difference(np.stack([first, first]), second).tolist() == [0.5, 0.5]
