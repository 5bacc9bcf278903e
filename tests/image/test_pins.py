from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from verl_musa.errors import ImageError
from verl_musa.image.base import debian_command, mirrored, prepare_base
from verl_musa.image.engine import Engine
from verl_musa.image.pins import list_images, load_pins

ROOT = Path(__file__).resolve().parents[2] / "images"
NO_ENGINE = Engine("docker-that-is-not-there", "0", "legacy")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    target = tmp_path / "images"
    shutil.copytree(ROOT, target)
    return target


def edit(images: Path, name: str, old: str, new: str) -> None:
    file = images / name / "pins.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_both_images_are_there_and_share_everything_but_the_vendors_part() -> None:
    assert list_images(ROOT) == ["musa", "sim"]
    sim, musa = load_pins("sim", ROOT), load_pins("musa", ROOT)
    assert musa.requirements == sim.requirements == ROOT / "sim"
    shared = [name for name in musa.packages if musa.packages[name].source == "pypi" and name in sim.packages]
    assert len(shared) > 5
    assert [name for name in shared if musa.packages[name].version != sim.packages[name].version] == []


def test_a_base_without_a_digest_is_refused_with_the_line_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="the base of image musa has no digest") as caught:
        prepare_base(
            load_pins("musa", ROOT),
            NO_ENGINE,
            given=None,
            registry=None,
            cache=tmp_path,
            log=tmp_path / "log",
            progress=print,
        )
    text = str(caught.value)
    assert "musa/pins.toml:" in text
    assert "--base" in text
    line = int(str(caught.value.where).rpartition(":")[2])
    assert (ROOT / "musa/pins.toml").read_text().splitlines()[line - 1] == 'digest = ""'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('digest = ""', 'digest = "sha256:abc"', "base.digest"),
        ('python = "3.11"', "python = 3.11", "python"),
        ("schema = 2", "schema = 1", "schema"),
        ('image = "musa"', 'image = "sim"', "differs from its folder's"),
        ("[layers]", "[layers]\nmine = 1", "mine"),
    ],
)
def test_a_mistake_in_the_pins_is_named(images: Path, old: str, new: str, message: str) -> None:
    edit(images, "musa", old, new)
    with pytest.raises(ImageError, match=r"pins|name differs") as caught:
        load_pins("musa", images)
    assert message in str(caught.value)


def test_an_unknown_image_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ImageError, match="no image 'cuda'") as caught:
        load_pins("cuda", ROOT)
    assert caught.value.found == "musa, sim"


def test_a_mirror_replaces_the_registry_alone() -> None:
    name = load_pins("musa", ROOT).base.name
    assert mirrored(name, "mirror.example:5000/") == "mirror.example:5000/" + name.partition("/")[2]


def test_a_base_of_debian_names_its_packages_and_its_mirror(tmp_path: Path) -> None:
    base = load_pins("sim", ROOT).base
    command = debian_command(base, list(base.packages), tmp_path / "base.tar")
    assert f"--include={','.join(base.packages)}" in command
    assert command[-3:] == [base.suite, str(tmp_path / "base.tar"), base.mirror]
    assert not [name for name in ("g++", "python3-dev") if name in base.packages], "compilers only build"
