"""A small upstream with its own patch series, and fresh processes that import it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest

from verl_musa.patching.fingerprint import SourceModule
from verl_musa.patching.series import activation_env

CHECKOUT = Path(__file__).parents[2]
LIMIT_S = 60


@dataclass
class Lab:
    """`fakeup`, a distribution in its own folder, and patches for it."""

    root: Path
    site: Path = field(init=False)
    patches: Path = field(init=False)
    order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.site, self.patches = self.root / "site", self.root / "patches"
        self.site.mkdir()
        self.install("1.0")

    def install(self, version: str) -> None:
        for old in self.site.glob("fakeup-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        info = self.site / f"fakeup-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fakeup\nVersion: {version}\n")

    def module(self, name: str, source: str) -> Path:
        """Write a module of the upstream; its parents become packages."""
        path = self.site.joinpath(*name.split(".")).with_suffix(".py")
        for parent in path.relative_to(self.site).parents:
            folder = self.site / parent
            folder.mkdir(parents=True, exist_ok=True)
            if folder != self.site and not (folder / "__init__.py").exists():
                (folder / "__init__.py").write_text("")
        path.write_text(dedent(source))
        return path

    def fingerprint(self, target: str) -> str:
        module, _, qualname = target.partition(":")
        path = self.site.joinpath(*module.split(".")).with_suffix(".py")
        return SourceModule(path.read_text()).fingerprint(qualname)

    def patch(
        self,
        name: str,
        target: str,
        code: str,
        *,
        versions: str = ">=1,<2",
        recorded: Mapping[str, str] | None = None,
        options: str = "",
        watch: str | None = None,
    ) -> None:
        """Write patch `fakeup-NAME`; `code` uses PATCH and TARGET. Recorded for 1.0 unless said otherwise."""
        known = {target: recorded if recorded is not None else {"1.0": self.fingerprint(target)}}
        if watch is not None:
            known[watch] = {"1.0": self.fingerprint(watch)}
        head = f"""\
            from verl_musa.patching import MISSING, Patch, RemoveWhen

            TARGET = {target!r}
            PATCH = Patch(
                id="fakeup-{name}", summary="does {name}", distribution="fakeup", versions={versions!r},
                fingerprints={known!r},
                reason="it is wrong", source="a test", without="a failure",
                remove_when=RemoveWhen(text="it is right", version=">=3", defines="fakeup.core:fixed"),
                {options}
            )
            """
        path = self.patches / "fakeup" / f"{name.replace('-', '_')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(head) + dedent(code))
        if f"fakeup-{name}" not in self.order:
            self.order.append(f"fakeup-{name}")
        self.write_series()

    def write_series(self, *, supported: str = '"1.0"') -> None:
        listed = "\n".join(f"  - {patch_id}" for patch_id in self.order)
        self.patches.mkdir(exist_ok=True)
        (self.patches / "series.yaml").write_text(
            f"schema: 1\nupstreams:\n  fakeup: [{supported}]\norder:\n{listed}\n"
        )

    def env(
        self, *, simulated: bool = True, allow_drift: tuple[str, ...] = (), off: tuple[str, ...] = ()
    ) -> dict[str, str]:
        return activation_env(simulated=simulated, allow_drift=allow_drift, off=off, root=self.patches)

    def run(
        self, code: str, env: Mapping[str, str] | None = None, *, hook: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run `code` in a fresh process, with what the `.pth` file does at its start."""
        prelude = "import verl_musa._start\n" if hook else ""
        return subprocess.run(
            [sys.executable, "-c", prelude + dedent(code)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(self.site), str(CHECKOUT)]),
                **(self.env() if env is None else env),
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def output(self, code: str, env: Mapping[str, str] | None = None) -> list[str]:
        """Run `code`, expect success and return the printed lines."""
        result = self.run(code, env)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    made.module("fakeup.core", "def answer():\n    return 1\n")
    return made


ANSWER = "fakeup.core:answer"
ADD_TEN = dedent("""
    @PATCH.wrap(TARGET)
    def _(original):
        def answer(*arguments):
            return original(*arguments) + 10
        return answer
    """)
DOUBLE = dedent("""
    @PATCH.wrap(TARGET)
    def _(original):
        return lambda: original() * 2
    """)
