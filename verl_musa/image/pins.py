"""``images/<name>/pins.toml``: what an image consists of and where each part comes from."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

import verl_musa
from verl_musa.errors import ImageError

PINS = "pins.toml"
LOCKS = "lock"
COMMON = "common"
IMAGES = "images"

Text = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\n\r\x00]+$")]
Digest = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Base(_Strict):
    """What the image is laid over."""

    source: Literal["mmdebstrap", "registry"]
    """``mmdebstrap``: put together here from Debian's packages. ``registry``: pulled by name and digest."""

    name: str = ""
    """Name in the registry, with its tag for people; the digest decides."""

    digest: Digest = ""
    """``sha256:…`` of that image; empty: not known, and a build without ``--base`` refuses."""

    suite: str = ""
    """Debian's suite."""

    mirror: str = ""
    """Where Debian's packages come from; a dated snapshot pins their versions."""

    packages: list[Text] = []
    """Debian packages of the image."""

    build_packages: list[Text] = []
    """Further ones of the stage that builds, of which the image keeps nothing."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.source == "mmdebstrap" and not (self.suite and self.mirror and self.packages):
            raise ValueError("source mmdebstrap needs suite, mirror and packages")
        if self.source == "registry" and not self.name:
            raise ValueError("source registry needs a name")
        return self


class Package(_Strict):
    """One pinned part."""

    version: str
    """Exact version, or a range in the form of ``>=1,<2``; empty: not known, never guessed."""

    source: Literal["pypi", "checkout", "base", "host"]
    """Package index, this repository, the base image, or the host that runs the image."""

    path: str = ""
    """Folder, for source checkout."""

    note: str = ""
    """Why this one."""


class Layers(_Strict):
    """What is installed, in order."""

    vendor: list[Text]
    """Packages that come before all others and may not be replaced by them."""

    main: list[Text]
    """Names of ``requirements-NAME.txt`` that go into the image's environment."""

    aside: list[Text] = []
    """Names of those that go aside: only jobs that name them as an extra see them."""

    requirements: str = ""
    """The image whose ``requirements-*.txt`` these are; empty: this one."""

    checkout: list[Text] = ["."]
    """Folders of this repository that are installed, last."""

    vendor_checkout: list[Text] = []
    """Folders of this repository that stand in for a vendor's package, first."""


class Pins(_Strict):
    """One ``pins.toml``."""

    schema_version: Annotated[Literal[2], Field(alias="schema")]
    """Version of this schema."""

    image: Text
    """Name of the image, equal to its folder's name."""

    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
    """Python that the requirements are locked for."""

    normalise: bool = False
    """Rewrite what a build added with fixed dates and order, so that equal content gives an equal image id."""

    base: Base
    """What the image is laid over."""

    layers: Layers
    """What is installed."""

    packages: dict[str, Package]
    """What matters by name; the requirements files hold the rest."""

    beside: dict[str, Package] = {}
    """The same, of what lies aside."""

    hardware: dict[str, Package] = {}
    """SDK, driver, MCCL: what no package index has."""

    _file: Path | None = PrivateAttr(default=None)

    @property
    def file(self) -> Path:
        """The file that this was read from."""
        if self._file is None:
            raise ValueError("these Pins were not read from a file; use load_pins")
        return self._file

    @property
    def folder(self) -> Path:
        """The image's folder."""
        return self.file.parent

    @property
    def requirements(self) -> Path:
        """The folder with its ``requirements-*.txt``."""
        return self.folder.parent / (self.layers.requirements or self.image)

    def where(self, *location: str) -> str:
        """``file:line`` of an entry, the file alone where the line is not found."""
        wanted, section = location[-1], ""
        for number, line in enumerate(self.file.read_text(encoding="utf-8").splitlines(), start=1):
            text = line.strip()
            if text.startswith("["):
                section = text.strip("[]")
            elif section == ".".join(location[:-1]) and text.partition("=")[0].strip() == wanted:
                return f"{self.file}:{number}"
        return str(self.file)


def images_root() -> Path:
    """``images`` of the working directory or its nearest ancestor that has one, else of the checkout of this package.

    Raises:
        ImageError: there is none.
    """
    here = Path.cwd()
    places = [here, *here.parents, Path(verl_musa.__file__).resolve().parents[1]]
    for place in places:
        if (place / IMAGES / COMMON).is_dir():
            return place / IMAGES
    raise ImageError(
        "no folder with images",
        where=str(here),
        expected=f"a checkout of this project: {IMAGES}/<name>/{PINS}",
        fix="change into the checkout",
    )


def list_images(root: Path | None = None) -> list[str]:
    """Names of the images below ``root``."""
    return sorted(file.parent.name for file in (root or images_root()).glob(f"*/{PINS}"))


def load_pins(name: str, root: Path | None = None) -> Pins:
    """Read the pins of an image.

    Raises:
        ImageError: there is no such image, or its file has a mistake.
    """
    folder = (root or images_root()) / name
    file = folder / PINS
    if not file.is_file():
        raise ImageError(
            f"no image {name!r}",
            where=str(folder.parent),
            found=", ".join(list_images(folder.parent)) or "no image",
            expected=f"a folder with {PINS}",
            fix="name one of those",
        )
    try:
        pins = Pins.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        found = (
            "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise ImageError("the pins cannot be used", where=str(file), found=found, expected="schema 2 of docs/images.md") from error  # fmt: skip
    pins._file = file.resolve()  # noqa: SLF001  (its own private attribute, set once)
    if pins.image != folder.name:
        raise ImageError(
            "the image's name differs from its folder's",
            where=pins.where("image"),
            found=pins.image,
            expected=folder.name,
        )
    return pins
