"""Build the sdist and, from it, the wheel; install the wheel in a new environment and use it.

Both are built twice, the second time from a copy of the project in another folder, with other
times and modes of its files. The bytes must be equal.

The new environment contains the wheel alone. normscope's dependencies are read from the environment
that runs this script, so that nothing large is downloaded. Needs pip, and a package index if
hatchling is not installed.

    python tests/deep/wheel.py [TEST FILES]
"""

from __future__ import annotations

import os
import shutil
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
TESTS = (
    *("tests/results/test_contributions.py", "tests/text/test_tokens.py"),
    "tests/cli/test_demo.py",
)


def call(*command: str | Path, path: Path | None = None, cwd: Path = ROOT) -> str:
    """Run a program and return what it prints; exit with its output if it fails."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    process = subprocess.run(
        [str(word) for word in command],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{process.stdout}\n{process.stderr}")
    return process.stdout


def build(project: Path, home: Path, tools: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist instead of the project; return both paths."""
    dist = home / "dist"
    if find_spec("hatchling") is None and not tools.exists():
        call(sys.executable, "-m", "pip", "install", "-q", "--target", tools, "hatchling>=1.27")
    command = (sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", dist)
    call(*command, path=tools, cwd=project)
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


def copied(home: Path) -> Path:
    """Copy the project's files to another folder, with times and modes of their own."""
    for name in call("git", "ls-files", "-co", "--exclude-standard", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, home / name)
            executable = (ROOT / name).stat().st_mode & 0o100  # git keeps this and no other mode
            (home / name).chmod(0o600 | executable)
            os.utime(home / name, (10**9, 10**9))
    return home


def check_equal(one: Path, other: Path) -> None:
    """Exit if two builds of a file have different bytes."""
    if one.read_bytes() != other.read_bytes():
        sys.exit(f"two builds of {one.name} differ: {one} and {other}")


def check_contents(wheel: Path) -> int:
    """Check that the wheel contains every file of the package; return their number."""
    tracked = call("git", "ls-files", "src/normscope").split() if (ROOT / ".git").exists() else []
    wanted = {name.removeprefix("src/") for name in tracked} or {
        str(file.relative_to(SOURCE.parent))
        for file in SOURCE.rglob("*")
        if file.suffix in (".py", *NOT_CODE)
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    if missing := sorted(wanted - packed):
        sys.exit(f"not in the wheel: {', '.join(missing)}")
    untracked = {name for name in packed - wanted if ".dist-info/" not in name}
    if tracked and untracked:
        sys.exit(f"in the wheel, but not in git: {', '.join(sorted(untracked))}")
    return len(wanted)


def install(home: Path, wheel: Path) -> Path:
    """Install the wheel in a new environment; return its Python."""
    venv.create(home / "env", with_pip=False, symlinks=os.name != "nt")
    python = home / "env" / "bin" / "python"
    site = Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)
    call(*pip)
    # Editable installs are named in .pth files, which are not read from this folder.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    package = Path(
        call(python, "-c", "import normscope; print(normscope.__file__)", cwd=home).strip()
    )
    if home not in package.parents:
        sys.exit(f"the tests would run on {package}, not on the wheel")
    return python


def main() -> None:
    """Build the wheel, check its contents, install it and run it."""
    with tempfile.TemporaryDirectory(prefix="normscope-wheel-") as folder:
        home = Path(folder).resolve()
        sdist, wheel = build(ROOT, home / "first", home / "tools")
        for file in (sdist, wheel):
            print(f"{file.name}  {file.stat().st_size / 2**20:.1f} MiB")
        again = build(copied(home / "copy"), home / "second", home / "tools")
        check_equal(sdist, again[0])
        check_equal(wheel, again[1])
        print("built twice, from two folders: equal bytes")
        print(call(sys.executable, "release/sbom.py", wheel).strip().rpartition("/")[2])
        print(f"{check_contents(wheel)} files of the package, all in the wheel")
        python = install(home, wheel)
        program = python.parent / "normscope"
        print(call(program, "version", cwd=home).strip())
        print(call(program, "demo", cwd=home).strip())
        tests = sys.argv[1:] or TESTS
        # src is not on the path of these tests: they import the installed package.
        command = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *tests)
        print(call(*command).strip().splitlines()[-1])


if __name__ == "__main__":
    main()
