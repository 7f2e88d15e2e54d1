"""Build the sdist, the wheel from the sdist, install it into an environment of its own, use it.

The environment has the wheel and nothing else of its own; what normscope depends on is read from
the environment that runs this script, so that nothing large is downloaded. Needs pip and, where
hatchling is not installed, an index to get it from.

    python tests/deep/wheel.py [TEST FILES]
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "normscope"
NOT_CODE = (".html", ".css", ".js", ".svg", ".json", ".safetensors", ".model", ".txt", ".typed")
TESTS = ("tests/test_contributions.py", "tests/test_tokens.py", "tests/test_demo.py")


def call(*command: str | Path, path: Path | None = None, cwd: Path = ROOT) -> str:
    """What a program prints; its output is shown where it fails."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def built(home: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it and not from this folder."""
    tools, dist = home / "tools", home / "dist"
    if find_spec("hatchling") is None:
        call(sys.executable, "-m", "pip", "install", "-q", "--target", tools, "hatchling>=1.27")
    call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", dist, path=tools)
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(home / "unpacked", filter="data")
    (unpacked,) = (home / "unpacked").iterdir()
    call(
        *(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist),
        path=tools,
        cwd=unpacked,
    )
    (wheel,) = dist.glob("*.whl")
    return sdist, wheel


def check_contents(wheel: Path) -> int:
    """Every file of the package is in the wheel, whatever its kind."""
    tracked = call("git", "ls-files", "src/normscope").split() if (ROOT / ".git").exists() else []
    wanted = {name.removeprefix("src/") for name in tracked} or {
        str(file.relative_to(SOURCE.parent))
        for file in SOURCE.rglob("*")
        if file.suffix in (".py", *NOT_CODE)
    }
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    if missing := sorted(wanted - there):
        sys.exit(f"not in the wheel: {', '.join(missing)}")
    more = {name for name in there - wanted if ".dist-info/" not in name}
    if tracked and more:
        sys.exit(f"in the wheel, but not in git: {', '.join(sorted(more))}")
    return len(wanted)


def installed(home: Path, wheel: Path) -> Path:
    """The Python of an environment with the wheel in it."""
    venv.create(home / "env", with_pip=False, symlinks=os.name != "nt")
    python = home / "env" / "bin" / "python"
    site = Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)
    call(*pip)
    # Only its packages: editable installs are named in .pth files, which are not followed here.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = Path(
        call(python, "-c", "import normscope; print(normscope.__file__)", cwd=home).strip()
    )
    if home not in where.parents:
        sys.exit(f"the tests would run on {where}, not on the wheel")
    return python


def main() -> None:
    """Build, look, install, run."""
    with tempfile.TemporaryDirectory(prefix="normscope-wheel-") as folder:
        home = Path(folder).resolve()
        sdist, wheel = built(home)
        for file in (sdist, wheel):
            print(f"{file.name}  {file.stat().st_size / 2**20:.1f} MiB")
        print(f"{check_contents(wheel)} files of the package, all in the wheel")
        python = installed(home, wheel)
        program = python.parent / "normscope"
        print(call(program, "version", cwd=home).strip())
        print(call(program, "demo", cwd=home).strip())
        tests = sys.argv[1:] or TESTS
        # The tests from here, the package from there: src is not on their path.
        command = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *tests)
        print(call(*command).strip().splitlines()[-1])


if __name__ == "__main__":
    main()
