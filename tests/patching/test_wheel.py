"""The built wheel and an editable installation in fresh environments: the start hook and the series must come along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from verl_musa.patching import load_series

from .conftest import ADD_TEN, ANSWER, CHECKOUT, Lab

pytestmark = pytest.mark.integration
LIMIT_S = 600
ASK = (
    "import sys, verl_musa._start as start, fakeup.core\n"
    "print(fakeup.core.answer(), start.installed_finder() is not None)\n"
)
LIST = "from verl_musa.patching import load_series; s = load_series(); print(s.root, s.digest)"


def run(command: list[str], **env: str) -> str:
    keep = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VERL_MUSA_PATCHES"}
    }
    result = subprocess.run(
        command, env={**keep, **env}, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd="/"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that a build leaves nothing in the real checkout."""
    copy = tmp_path_factory.mktemp("checkout") / "source"
    copy.mkdir()
    for name in ("verl_musa", "patches"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy / name)
    return copy


def environment(folder: Path, *install: str) -> str:
    """Make an environment with `install`; what the package depends on comes from this test's own environment."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    run([python, "-m", "pip", "install", "--no-deps", "--quiet", "--disable-pip-version-check", *install])
    (site,) = (folder / "lib").glob("python*/site-packages")
    # After ours in the path, so that only the new installation of verl_musa is found.
    (site / "zz_dependencies.pth").write_text(str(Path(pytest.__file__).parents[1]) + "\n")
    return python


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_a_fresh_environment_has_the_hook_and_the_series(
    how: str, checkout: Path, lab: Lab, tmp_path: Path
) -> None:
    if how == "wheel":
        run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(checkout)])
        (wheel,) = tmp_path.glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        assert "verl_musa_start.pth" in names
        assert "verl_musa/_patches/series.yaml" in names
        python = environment(tmp_path / "venv", str(wheel))
    else:
        python = environment(tmp_path / "venv", "--editable", str(checkout))
    root, digest = run([python, "-c", LIST]).split()
    assert digest == load_series().digest
    where = tmp_path / "venv" if how == "wheel" else checkout
    assert Path(root).is_relative_to(where)

    lab.patch("ten", ANSWER, ADD_TEN)
    plain = {"PYTHONPATH": str(lab.site)}
    assert run([python, "-c", ASK], **plain, **lab.env()) == "11 True"
    assert run([python, "-c", "import sys; print('verl_musa._start' in sys.modules)"], **plain) == "False"
    script = lab.site / "work.py"
    script.write_text(
        "import multiprocessing as m\n"
        "def ask():\n    import fakeup.core\n    return fakeup.core.answer()\n"
        "if __name__ == '__main__':\n"
        "    with m.get_context('spawn').Pool(1) as pool: print(pool.apply(ask))\n"
    )
    assert run([python, str(script)], **plain, **lab.env()) == "11"
    bad = subprocess.run(
        [python, "-c", "print('went on')"],
        env={**os.environ, "VERL_MUSA_PATCHES": "nonsense"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert bad.returncode != 0
    assert "VERL_MUSA_PATCHES cannot be used" in bad.stderr
    assert bad.stdout == ""
