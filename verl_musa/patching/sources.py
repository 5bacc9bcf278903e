"""Upstream source text from an installation, a wheel or an sdist. Nothing here imports the upstream."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Protocol

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from verl_musa import extras
from verl_musa.patching.model import PatchError
from verl_musa.patching.versions import public

DOWNLOAD_LIMIT_S = 600


class DownloadError(PatchError):
    """A version that could not be fetched, so that nothing is known about it."""


class Source(Protocol):
    """One version of one upstream."""

    distribution: str
    version: str

    def read(self, module: str) -> tuple[str, str] | None:
        """Return (where, text) of a module's source file, None where the upstream has no such file."""


class InstalledSource:
    """The files of a distribution that is installed, or lies aside as an extra."""

    def __init__(self, distribution: str) -> None:
        """Look the distribution up.

        Raises:
            metadata.PackageNotFoundError: it is not installed.
        """
        self.distribution = distribution
        self._metadata = extras.distribution(distribution)
        self.version = public(self._metadata.version)

    def read(self, module: str) -> tuple[str, str] | None:
        """Return (path, text) of a module's source file."""
        for name in _file_names(module):
            path = Path(str(self._metadata.locate_file(name)))
            if path.is_file():
                return str(path), path.read_text(encoding="utf-8")
        return self._read_editable(module)

    def _read_editable(self, module: str) -> tuple[str, str] | None:
        """Look below the top-level package, which can be found without importing it."""
        top, *rest = module.split(".")
        spec = importlib.util.find_spec(top)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            for name in _file_names(".".join(rest)) if rest else ("__init__.py",):
                path = Path(folder) / name
                if path.is_file():
                    return str(path), path.read_text(encoding="utf-8")
        return None


class ArchiveSource:
    """A wheel or an sdist, read without unpacking it."""

    def __init__(self, path: Path) -> None:
        """Read the archive's list of files.

        Raises:
            PatchError: it is neither a wheel nor an sdist.
        """
        self._path = path
        self.distribution, self.version = _named(path)
        try:
            if path.suffix == ".whl":
                with zipfile.ZipFile(path) as wheel:
                    names = wheel.namelist()
            else:
                with tarfile.open(path) as sdist:
                    names = sdist.getnames()
        except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
            raise PatchError("not a readable archive", where=str(path), found=str(error)) from error
        self._names = names

    def read(self, module: str) -> tuple[str, str] | None:
        """Return (archive!member, text) of a module's source file; in an sdist the shallowest that fits."""
        for name in _file_names(module):
            fits = [found for found in self._names if found == name or found.endswith(f"/{name}")]
            if self._path.suffix == ".whl":
                fits = [found for found in fits if found == name]
            if fits:
                member = min(fits, key=lambda found: found.count("/"))
                return f"{self._path.name}!{member}", self._text(member)
        return None

    def _text(self, member: str) -> str:
        if self._path.suffix == ".whl":
            with zipfile.ZipFile(self._path) as wheel:
                return wheel.read(member).decode("utf-8")
        with tarfile.open(self._path) as sdist:
            stream = sdist.extractfile(member)
            if stream is None:
                raise PatchError("not a file in the archive", where=f"{self._path}!{member}")
            return stream.read().decode("utf-8")


def require_installed(distribution: str) -> InstalledSource:
    """Return the installed distribution.

    Raises:
        PatchError: it is not installed.
    """
    try:
        return InstalledSource(distribution)
    except metadata.PackageNotFoundError as error:
        raise PatchError(
            "not installed here",
            where=distribution,
            fix=f"name a version to download: --against {distribution}==VERSION",
        ) from error


@contextmanager
def open_requirement(requirement: str) -> Iterator[Source]:
    """Yield the source that ``DIST==VERSION`` or the path of a wheel or sdist names.

    An installed distribution of exactly that version is used as it is; anything else is downloaded with pip into a
    temporary folder (wheels first, since an sdist's metadata needs its build system) and removed afterwards.

    Raises:
        PatchError: the requirement has another form.
        DownloadError: it cannot be downloaded within ``DOWNLOAD_LIMIT_S``.
    """
    path = Path(requirement)
    if path.suffix in {".whl", ".gz"} and path.is_file():
        yield ArchiveSource(path)
        return
    name, separator, version = requirement.partition("==")
    if not separator or not name or not version or not version[0].isdigit():
        raise PatchError(
            "not an exact version",
            where="--against",
            found=requirement,
            expected="DIST==VERSION, or the path of a wheel or sdist",
        )
    try:
        installed = InstalledSource(name)
    except metadata.PackageNotFoundError:
        installed = None
    if installed is not None and installed.version == public(version):
        yield installed
        return
    with tempfile.TemporaryDirectory(prefix="verl-musa-patches-") as folder:
        yield ArchiveSource(_download(requirement, Path(folder)))


def _download(requirement: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # The sources are only read, so it does not matter which Python the wheel is for.
    attempts: Sequence[Sequence[str]] = (
        ["--only-binary=:all:", "--ignore-requires-python"],
        ["--only-binary=:all:", "--python-version", "3.12"],
        ["--no-binary=:all:", "--ignore-requires-python"],
    )
    output = ""
    for options in attempts:
        command = [*pip, *options, "--dest", str(folder), requirement]
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise DownloadError(
                "the download did not end", where=requirement, found=f"more than {DOWNLOAD_LIMIT_S} s"
            ) from error
        files = [path for path in folder.iterdir() if path.is_file()]
        if result.returncode == 0 and files:
            return files[0]
        output = (result.stderr or result.stdout).strip()
    raise DownloadError(
        "cannot be downloaded",
        where=requirement,
        found=output.splitlines()[-1] if output else "no output",
        expected="a wheel or sdist from the package index that pip is configured for",
        fix="check the version, or give the path of a wheel or sdist to --against",
    )


def _file_names(module: str) -> tuple[str, str]:
    base = module.replace(".", "/")
    return f"{base}.py", f"{base}/__init__.py"


def _named(path: Path) -> tuple[str, str]:
    try:
        if path.suffix == ".whl":
            name, version, *_ = parse_wheel_filename(path.name)
        else:
            name, version = parse_sdist_filename(path.name)
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        raise PatchError(
            "not a wheel or sdist",
            where=str(path),
            found=str(error),
            expected="NAME-VERSION.tar.gz or a .whl",
        ) from error
    return canonicalize_name(name), public(str(version))
