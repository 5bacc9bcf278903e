from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_musa.errors import ImageError
from verl_musa.image.debian import Package, add_to_sbom, components, licences, packages
from verl_musa.image.licences import ONLY_TEXT, licence_rows

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u14
Description: GNU C Library
 Version: of a text, not of the package

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1

Package: adduser
Status: install ok installed
Architecture: all
Version: 1:3.134~x
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    texts = {
        "libc6": "It is free; the text is in `/usr/share/common-licenses/LGPL-2.1'.\nSee /usr/share/common-licenses/GPL-2.\n",
        "adduser": "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: GPL-2+\n More\n\nLicense: Expat\n",
    }
    for name, text in texts.items():
        folder = tmp_path / "usr/share/doc" / name
        folder.mkdir(parents=True)
        (folder / "copyright").write_text(text)
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    return tmp_path


def test_what_is_installed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert packages(root) == [
        Package("adduser", "1:3.134~x", "all"),
        Package("libc6", "2.36-9+deb12u14", "amd64"),
    ]
    assert packages(tmp_path_factory.mktemp("alpine")) == []


def test_licences_that_are_stated_and_referred_to(root: Path) -> None:
    assert licence_rows({"components": components(root)}) == [
        ("adduser", "1:3.134~x", "Expat; GPL-2+"),
        ("libc6", "2.36-9+deb12u14", "GPL-2; LGPL-2.1"),
    ]


def test_a_statement_in_words_is_kept_whole(root: Path) -> None:
    (root / "usr/share/doc/libc6/copyright").write_text("Do what you like.\n")
    (one,) = licences("libc6", root)
    assert one["license"]["name"] == "declared license of libc6"
    row = licence_rows({"components": [{"name": "libc6", "licenses": [one]}]})[0]
    assert row[2] == "Do what you like."
    assert row[2] != ONLY_TEXT
    assert licences("unknown", root) == []


def test_the_sbom_of_an_image_has_them_beside_the_python_packages(root: Path) -> None:
    file = root / "sbom.json"
    file.write_text(
        json.dumps({"bomFormat": "CycloneDX", "components": [{"name": "verl", "version": "0.9.1"}]})
    )
    assert add_to_sbom(file, root) == 2
    once = file.read_bytes()
    assert add_to_sbom(file, root) == 2
    assert file.read_bytes() == once, "none is in it twice"
    found = json.loads(once)
    assert [one.get("purl") for one in found["components"]] == [
        None,
        "pkg:deb/debian/adduser@1%3A3.134~x?arch=all",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64",
    ]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"components": 1}'])
def test_what_is_no_sbom_is_refused_and_left_alone(text: str, root: Path) -> None:
    file = root / "sbom.json"
    file.write_text(text)
    with pytest.raises(ImageError, match="the SBOM cannot be read"):
        add_to_sbom(file, root)
    assert file.read_text() == text
