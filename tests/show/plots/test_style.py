"""What all plots share: labels, tables of any kind, colours, and matplotlib itself."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from normscope import InputError, MissingExtraError
from normscope.show import plots
from normscope.show.palette import CATEGORIES, CATEGORIES_DARK, INKS, SEQUENTIAL
from normscope.show.plots import style
from normscope.show.plots.lines import mixing_by_category
from normscope.show.plots.style import brief, headline, letters, sequential
from normscope.show.plots.style import figure as new_figure
from tests.helpers.figures import by_layer, entries, figure_of, long, names, result

ROOT = Path(__file__).parents[3]
WORD = "Donaudampfschifffahrtsgesellschaftskapitänsmütze"
LONG = ("Donaudampfschifffahrtsgesellschaftskapitän", "function words and particles of a language")


def test_long_words_are_shown_by_their_ends() -> None:
    assert brief("a" * 24) == "a" * 24
    assert brief(WORD) == "Donaudampfs…pitänsmütze"
    assert brief("日本語" * 4) == "日本語" * 4  # twelve characters as wide as 24 letters
    assert brief("日本語" * 10) == "日本語日本…本語日本語"
    assert brief("ab\n" * 9, 9) == "ab\\n…ab\\n"
    assert letters("a日ｘ\u0301") == 6


def test_what_is_no_table_is_refused() -> None:
    for wrong in (3, None, [1, 2], "table"):
        with pytest.raises(InputError, match="a table must be a mapping of columns"):
            plots.change(wrong)
    with pytest.raises(InputError, match=re.escape("no category 'x'; there is: [CLS], $x_1$")):
        plots.categories(by_layer(), names=["x"])


def test_long_names_stay_in_their_panels() -> None:
    scatter = long(category=LONG, alpha=(0.1, 0.2)) | {"transformed_norm": np.ones(4)}
    rho = {"category": LONG, "spearman": [-0.1, 0.2]}
    mixing = long(category=LONG, layer=range(2), analysis=("attn_w",)) | {"mean": np.ones(4)}
    grid = long(category=LONG, layer=range(2), head=range(2)) | {"alpha": np.ones(8)}
    for axes in (
        plots.alpha_and_norm(scatter, correlations=rho),
        mixing_by_category(mixing),
        plots.heads(grid, "alpha"),
        *(plots.heads(grid, "alpha", [name]) for name in LONG),
    ):
        figure = figure_of(axes)
        figure.draw_without_rendering()
        boxes = [ax.title.get_window_extent() for ax in axes]
        assert all(box.x0 > 0 and box.x1 < figure.bbox.width for box in boxes)
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    layers = long(category=LONG, layer=range(2)) | {"alpha": np.ones(4)}
    shown = ["Donaudampfs…aftskapitän", "function wo… a language"]
    assert entries(plots.categories(layers, ["alpha"])[0]) == shown
    assert entries(plots.singular_values({name: np.ones(3) for name in LONG})) == shown
    pairs = {"layer": [0], "query_token": [LONG[0]], "key_token": ["a"], "count": [1]}
    assert names(plots.amplified(pairs)[0].get_yticklabels()) == ["“a” → “Donaud…apitän”"]


def test_colours_keep_their_order_in_grey() -> None:
    colours = sequential()(np.linspace(0, 1, 64))[:, :3]
    assert (np.diff(colours @ [0.2126, 0.7152, 0.0722]) < 0).all()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"normscope\[plots\]"):
        plots.categories(by_layer())
    with pytest.raises(MissingExtraError, match=r"needs matplotlib.*normscope\[plots\]"):
        plots.compare(result(), 2)


def test_pyplot_is_left_alone(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, normscope.plots as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from normscope import LabelledArray\n"
        "from normscope.text.tokens import Tokens\n"
        "t = Tokens(('a',), None, (False,), ('a',))\n"
        "a = LabelledArray(np.ones((1, 1)), ('query', 'key'), {'query': t, 'key': t}, name='x')\n"
        "plots.heatmap(a).figure.savefig(sys.argv[1])\n"
        "assert 'matplotlib.figure' in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "one.png")], check=True)
    assert (tmp_path / "one.png").stat().st_size > 0


def test_plots_come_with_the_package_when_they_are_asked_for() -> None:
    code = (
        "import sys, normscope\n"
        "assert 'normscope.plots' not in sys.modules\n"
        "print(normscope.plots.compare.__name__, normscope.testing.check_architecture.__name__)\n"
        "try:\n"
        "    normscope.plotz\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = "compare check_architecture\nmodule 'normscope' has no attribute 'plotz'\n"
    assert done.stdout == told


def test_colours_are_written_in_the_palette_alone() -> None:
    """A colour code, or one of matplotlib's own colour maps, would be a second palette."""
    code = re.compile(r"""["']#(?:[0-9a-fA-F]{3}){1,2}["']|["']tab:|cividis|viridis|["']Blues""")
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "experiments").rglob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "docs").glob("*.py"),
    ]
    assert len(files) > 150
    own = ROOT / "src" / "normscope" / "show" / "palette.py"
    found = {file.name for file in files if code.search(file.read_text(encoding="utf-8"))}
    assert found == {own.name}


def test_matplotlib_is_left_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    plots.compare(result(), 2)
    with plots.theme("dark"):
        plots.categories(by_layer())
        assert matplotlib.rcParams["figure.facecolor"] == INKS["dark"]["panel"]
    assert dict(matplotlib.rcParams) == before


def test_the_look_does_not_depend_on_the_users_settings() -> None:
    with matplotlib.rc_context({"font.size": 30, "figure.dpi": 40, "axes.facecolor": "red"}):
        ax = plots.categories(by_layer())[0]
        figure = figure_of(ax)
        figure.draw_without_rendering()  # numbers along the axes are made now
        sizes = {label.get_fontsize() for label in ax.get_yticklabels()}
    assert sizes == {8.0}
    assert figure.dpi == 150
    assert to_hex(ax.get_facecolor()) == INKS["light"]["panel"]
    assert ax.xaxis.label.get_fontsize() == 9


def test_themes() -> None:
    for theme, colours in (("light", CATEGORIES), ("dark", CATEGORIES_DARK)):
        with plots.theme(theme):
            ax = plots.categories(by_layer())[0]
            image = plots.heatmap(result()["attn_n"], layer=2).get_images()[0]
        assert to_hex(figure_of(ax).get_facecolor()) == INKS[theme]["panel"]
        assert to_hex(ax.title.get_color()) == INKS[theme]["ink"]
        assert to_hex(str(ax.get_lines()[1].get_color())) == colours[1].lower()
        assert image.cmap is not None
        assert to_hex(image.cmap(0.0)) == SEQUENTIAL[theme][0]
        assert to_hex(image.cmap(1.0)) == SEQUENTIAL[theme][-1]
    # After the context, plots are light again.
    assert to_hex(figure_of(plots.categories(by_layer())).get_facecolor()) == "#ffffff"
    with (
        pytest.raises(InputError, match="no theme 'sepia'; valid: light, dark"),
        plots.theme("sepia"),
    ):
        pass


def test_a_headline_stays_on_the_page_and_is_no_formula() -> None:
    figure = new_figure(4.0, 2.0)
    headline(figure, "A $5 note, and what it says in a line that does not fit: $x_1$")
    figure.draw_without_rendering()
    (title,) = figure.texts
    assert not title.get_parse_math()
    assert title.get_text().count("\n") == 1
    box = title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_fonts_for_other_scripts_are_used_where_they_are_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from matplotlib.font_manager import fontManager

    names = ["DejaVu Sans", "Yu Gothic", "Noto Sans CJK SC", "Comic Sans MS"]
    monkeypatch.setattr(fontManager, "get_font_names", lambda: names)
    style._fallback_fonts.cache_clear()
    try:
        text = style.styled(lambda: style.figure(1.0, 1.0).suptitle("猫"))()
    finally:
        style._fallback_fonts.cache_clear()
    assert text.get_fontfamily() == ["sans-serif", "Noto Sans CJK SC", "Yu Gothic"]


@pytest.mark.parametrize(("text", "lines"), [("In layer 2", 0), ("In layer 2, “猫”", 1)])
def test_a_headline_asks_for_bold_letters_of_fonts_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, lines: int
) -> None:
    monkeypatch.setattr(style, "_FALLBACK_FONTS", ("cmr10",))  # has no bold letters
    style._fallback_fonts.cache_clear()
    with warnings.catch_warnings(), plots.theme("light"):
        warnings.simplefilter("ignore")  # neither font has the character
        page = new_figure(4.0, 2.0)
        headline(page, text)
        page.draw_without_rendering()
    style._fallback_fonts.cache_clear()
    assert bool(caplog.records) == bool(lines)
