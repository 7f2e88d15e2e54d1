"""`normscope analyze` and `attribute` with --image and --audio."""

from __future__ import annotations

import re
import wave
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.helpers.commands import fail, succeed
from tests.helpers.pictured import drawn, saved, sound


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image, a recording, and models that read them."""
    where = tmp_path_factory.mktemp("media")
    Image.fromarray(drawn()).save(where / "drawn.png")
    with wave.open(str(where / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((sound(0.2) * 32767).astype("<i2").tobytes())
    for name in ("vit", "clip", "whisper"):
        saved(name, where / name)
    return where


def given(folder: Path, model: str, *files: str) -> list[str]:
    """Options for a model and files."""
    kinds = {".png": "--image", ".wav": "--audio"}
    named = [(kinds[Path(file).suffix], str(folder / file)) for file in files]
    return [*(part for pair in named for part in pair), "--model", str(folder / model)]


def test_patches_are_a_grid_in_the_terminal(folder: Path) -> None:
    printed = succeed("analyze", *given(folder, "vit", "drawn.png")).stdout
    assert "10 tokens:  0 [CLS]  image 0 (3 × 3 patches)" in printed
    lines = printed.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("image 0, 3 × 3 patches: "))
    rows = [re.findall(r"[ ·](\d|·)", line) for line in lines[at + 1 : at + 5]]
    cells = [row for row in rows if len(row) == 3]
    assert len(cells) == 3
    assert any("9" in row for row in cells)


def test_shares_of_frames(folder: Path) -> None:
    done = succeed("attribute", *given(folder, "whisper", "sound.wav"), "--answer", "a")
    assert "recording, 50 frames" in done.stdout
    assert "the model's own value (logit)" in done.stdout


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".html", b"<!doctype html>")])
def test_files_show_the_part_with_patches(
    folder: Path, tmp_path: Path, suffix: str, magic: bytes
) -> None:
    output = tmp_path / f"maps{suffix}"
    options = given(folder, "clip", "drawn.png")
    succeed("analyze", "a cat", *options, "--output", str(output))
    assert output.read_bytes().startswith(magic)
    if suffix == ".html":
        assert b'"opening":{"part":"vision"' in output.read_bytes().replace(b'": ', b'":')


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("vit", "drawn.png", "drawn.png"), "there are 2 images and no text"),
        (("vit", "none.png"), "there is no file"),
        (("vit", "sound.wav"), "does not read audio"),
        (("clip", "drawn.png"), "give text= too"),
        (("whisper", "sound.wav"), "give target="),
    ],
)
def test_what_does_not_go_together(folder: Path, arguments: Any, says: str) -> None:
    assert says in fail("analyze", *given(folder, *arguments))


def test_a_file_that_is_no_image(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.png"
    path.write_text("no image")
    message = fail("attribute", "--image", str(path), "--model", str(folder / "vit"))
    assert "it is not an image" in message
