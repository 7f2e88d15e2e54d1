"""An attribution in the terminal: what is printed with colour, without, and of hostile tokens."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from normscope import Attribution
from tests.helpers.attributions import KEYS, attribution, tokens_of, words

STEPS = tokens_of(["and", "left", "."])


def printed(result: Attribution, width: int = 80, colours: Any = None) -> str:
    console = Console(
        width=width, file=io.StringIO(), color_system=colours, force_terminal=colours is not None
    )
    result.show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def by_hand(**about: Any) -> Attribution:
    facts: dict[str, Any] = {
        "tokens": KEYS, "value": 4.89, "bias": -0.42, "scores": [0, 5, 0, 0.61, -0.4, 0.1],
        "error": 2e-7, "answer": " are", "foil": " is",
    }  # fmt: skip
    return Attribution(**facts | about)


def test_text_list_bias_sum_and_proof() -> None:
    lines = printed(by_hand()).splitlines()
    assert lines[0] == "What made the model say ' are' rather than ' is'"
    assert lines[2] == "The keys[+5.00] to the cabinet"  # the others have less than a quarter
    rows = [line.split() for line in lines[4:11]]
    assert rows[0] == ["1", "keys", "+5.00", "│████████████"]
    assert rows[2] == ["4", "cab", "−0.40", "█│"]
    assert [row[:2] for row in rows[5:]] == [["2", "to"], ["bias", "−0.42"]]
    assert lines[11].split() == ["sum", "+4.89"]
    assert lines[13] == (
        "shares 5.31 + bias −0.42 = 4.89, the model's own value (logit); gap 2e-07"
    )


def test_differences_have_no_bias_but_a_baseline() -> None:
    settings = {"baseline": "[MASK]", "method": "secant"}
    shown = printed(by_hand(value=5.31, bias=0.0, settings=settings))
    wanted = "shares 5.31 = 5.31, the model's own value minus that of the baseline [MASK] (logit)"
    assert wanted in " ".join(shown.split())
    assert not any(line.split()[:1] == ["bias"] for line in shown.splitlines())


def test_colours_by_sign_and_a_legend_on_a_terminal_alone() -> None:
    shown = printed(by_hand(), colours="truecolor")
    assert "\x1b[37;48;2;11;37;95mkeys\x1b[0m" in shown  # the largest: the darkest blue
    assert "\x1b[30;48;2;198;220;248mthe\x1b[0m" in shown  # an eighth of it: the palest
    assert " against " in shown
    assert "[+5.00]" not in shown
    against = printed(by_hand(value=-5.11, scores=[0, -5, 0, 0.61, -0.4, 0.1]), colours="truecolor")
    assert "\x1b[37;48;2;127;59;8mkeys\x1b[0m" in against
    assert "against" not in printed(by_hand())


def test_no_line_is_wider_than_80_columns_nor_than_the_terminal() -> None:
    long = tokens_of(["猫" * 30, "antidisestablishmentarianism" * 3, *["word"] * 150])
    for width, most in ((80, 80), (200, 80), (60, 60)):
        lines = printed(attribution(long, signature=""), width).splitlines()
        assert max(map(cell_len, lines)) <= most
        assert any("142 more tokens" in line for line in lines)


def test_tokens_are_never_markup_nor_control_characters() -> None:
    tokens = tokens_of(["[bold]a[/bold]", ":smile:", "\x1b[31m", "new\nline", "\u202e"])
    shown = printed(attribution(tokens, answer="\x1b]0;x\x07", signature="\x1b[2J"))
    assert "[bold]a[/bold]" in shown
    assert ":smile:" in shown
    assert "\\x1b[31m" in shown
    assert not {"\x1b", "\u202e", "\x07"} & set(shown)


def test_several_answers_have_a_row_each() -> None:
    result = attribution(words(30), STEPS)
    shown = printed(result)
    first = next(line for line in shown.splitlines() if line.startswith("  0 and"))
    token, share = result.top(1, step=0)[0]
    assert first.endswith(f"most from {token} {share:+.2f}".replace("-", "−"))
    assert f"= {np.sum(result.value):.2f}," in shown
    many = tokens_of([f"t{at}" for at in range(20)])
    assert "… and 8 more answers" in printed(attribution(words(40), many))


def test_sides_are_named_where_there_are_several() -> None:
    shown = printed(by_hand(sides=("source",) * 3 + ("target",) * 3))
    assert "source: The keys[+5.00] to\ntarget: the cabinet" in shown
    assert "text:" not in printed(by_hand())


@pytest.mark.parametrize("notebook", [True, False])
def test_show_without_a_console(
    notebook: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("normscope.show.page.show.in_notebook", lambda: notebook)
    monkeypatch.setattr("normscope.show.page.show.show", shown.append)
    result = by_hand()
    result.show()
    assert (len(shown) == 1) == notebook
    assert ("shares 5.31" in capsys.readouterr().out) != notebook
