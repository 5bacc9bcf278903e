from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from verl_musa.errors import ImageError
from verl_musa.image.pins import load_pins
from verl_musa.image.wheels import Locked, check_locks, fetch, lock_file, read_lock, read_requirements, wanted

ROOT = Path(__file__).resolve().parents[2] / "images"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    target = tmp_path / "images"
    shutil.copytree(ROOT, target)
    return target


@pytest.mark.parametrize("image", ["sim", "musa"])
def test_the_locks_say_what_the_requirements_and_the_pins_say(image: str) -> None:
    locks = check_locks(load_pins(image, ROOT))
    assert sum(map(len, locks.values())) > 150
    assert all(len(value) == 64 for lock in locks.values() for entry in lock for value in entry.hashes)


# A build system that can only name a package: the one of this environment would not answer like that.
BACKEND = """
import pathlib
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    found = pathlib.Path(folder, "thing-1.0.dist-info")
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0\\n")
    return found.name
def build_wheel(folder, config_settings=None, metadata_directory=None):
    raise AssertionError("nothing is built here")
"""


def test_nothing_of_the_vendors_is_in_another_layer() -> None:
    for image in ("sim", "musa"):
        pins = load_pins(image, ROOT)
        layers = wanted(pins)
        vendor = {name.lower().replace("_", "-") for name in pins.layers.vendor}
        others = {name for layer in (*pins.layers.main, *pins.layers.aside) for name in layers[layer]}
        assert not vendor & others, image


def test_a_requirement_without_its_lock_is_named(images: Path) -> None:
    file = images / "sim" / "requirements-train.txt"
    file.write_text(file.read_text().replace("ray==2.58.0", "ray==2.59.0"))
    with pytest.raises(ImageError, match="lock of layer train is out of step") as caught:
        check_locks(load_pins("sim", images))
    assert (caught.value.found, caught.value.expected) == ("ray 2.58.0", "ray 2.59.0")


def test_pins_that_name_another_version_are_named(images: Path) -> None:
    file = images / "sim" / "pins.toml"
    file.write_text(file.read_text().replace('ray = { version = "2.58.0"', 'ray = { version = "2.57.0"'))
    with pytest.raises(ImageError, match="pins and the requirements name different versions") as caught:
        check_locks(load_pins("sim", images))
    assert "pins.toml:" in str(caught.value.where)


@pytest.mark.parametrize(
    "line", ["ray==2.58.0", "ray>=2 --hash=sha256:" + "0" * 64, "ray==2.58.0 --hash=md5:0"]
)
def test_a_lock_with_a_line_that_is_not_pinned_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "lock.txt"
    file.write_text(f"{line}\n")
    with pytest.raises(ImageError, match="not pinned"):
        read_lock(file)


def test_a_missing_lock_is_refused_with_the_session_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no lock") as caught:
        read_lock(tmp_path / "lock.txt")
    assert caught.value.fix == "nox -s lock"


@pytest.mark.parametrize(("text", "message"), [("ray", "not pinned to one"), ("ray>=1", "not pinned to one"), ("ray==1,<2", "not pinned to one"), ("??", "not a requirement")])  # fmt: skip
def test_requirements_have_to_be_exact(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"# a comment\n{text}\n")
    with pytest.raises(ImageError, match=message) as caught:
        read_requirements([file])
    assert str(caught.value.where).endswith("requirements.txt:2")


def test_one_package_pinned_twice_differently_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("Ray==1\nray==2\n")
    with pytest.raises(ImageError, match="pinned twice"):
        read_requirements([file])


def test_a_file_with_a_locked_hash_is_taken_and_one_with_another_is_not(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    file = wheels / "thing-1.0-py3-none-any.whl"
    file.write_bytes(b"content")
    good = Locked("thing", "1.0", (hashlib.sha256(b"content").hexdigest(),))
    pins = load_pins("sim", ROOT)
    assert fetch(pins, {"train": [good]}, wheels, tmp_path / "log", print) == {"train": [file]}
    file.write_bytes(b"changed")
    with pytest.raises(ImageError):  # no index has it either
        fetch(pins, {"train": [good]}, wheels, tmp_path / "log", print)


def test_a_lock_reads_back_as_it_was_written() -> None:
    file = lock_file(load_pins("sim", ROOT), "megatron")
    head, *_ = file.read_text().splitlines()
    assert file.read_text() == "\n".join([head, *(entry.text for entry in read_lock(file)), ""])


def test_a_source_package_is_named_by_the_locked_build_system_not_by_that_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, source = tmp_path / "wheels", tmp_path / "index"
    wheels.mkdir()
    source.mkdir()
    with zipfile.ZipFile(wheels / "setuptools-99.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("setuptools/__init__.py", "")
        wheel.writestr("setuptools/build_meta.py", BACKEND)
        wheel.writestr(
            "setuptools-99.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: setuptools\nVersion: 99.0\n"
        )
    project = b'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    with tarfile.open(source / "thing-1.0.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("thing-1.0/pyproject.toml")
        entry.size = len(project)
        tar.addfile(entry, io.BytesIO(project))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))
    locks = {name: [Locked(name if name == "thing" else "setuptools", version, (_digest(file),))]
             for name, version, file in (("tools", "99.0", wheels / "setuptools-99.0-py3-none-any.whl"), ("thing", "1.0", source / "thing-1.0.tar.gz"))}  # fmt: skip
    found = fetch(load_pins("sim", ROOT), locks, wheels, tmp_path / "log", print)
    assert found["thing"] == [wheels / "thing-1.0.tar.gz"]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
