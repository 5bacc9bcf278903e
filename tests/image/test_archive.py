from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from verl_musa.errors import ImageError
from verl_musa.image import archive
from verl_musa.image.engine import Engine
from verl_musa.image.licences import licence_rows
from verl_musa.image.provenance import Provenance
from verl_musa.image.tree import content_hash

LISTING = {"etc": "d 755 -", "etc/a": "f 644 0"}


class Store(Engine):
    """Saves and loads the text that it is given."""

    def save(self, reference: str, tar: Path) -> None:
        tar.write_text(reference)

    def load(self, tar: Path, log: Path) -> str:
        assert log.exists()
        return tar.read_text()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Store:
    facts = {"schema": 1, "kind": "image", "content": {"filesystem": content_hash(LISTING), "packages": "0"}}
    monkeypatch.setattr(archive, "provenance_of", lambda *_: Provenance(facts, LISTING))
    monkeypatch.setattr(archive, "listing_of", lambda *_: LISTING)
    return Store("docker", "0", "legacy")


def test_a_saved_image_comes_back(engine: Store, tmp_path: Path) -> None:
    tar = tmp_path / "image.tar"
    digest = archive.save_image(engine, "image:1", tar)
    assert archive.load_image(engine, tar) == ("image:1", content_hash(LISTING))
    checked = subprocess.run(
        ["/usr/bin/sha256sum", "-c", "image.tar.sha256"], cwd=tmp_path, check=False, capture_output=True
    )
    assert checked.returncode == 0
    assert digest in (tmp_path / "image.tar.sha256").read_text()
    assert (tmp_path / "image.tar.json").is_file()


def test_a_changed_file_is_not_loaded(engine: Store, tmp_path: Path) -> None:
    tar = tmp_path / "image.tar"
    archive.save_image(engine, "image:1", tar)
    tar.write_text("image:2")
    with pytest.raises(ImageError, match="not the one that was saved"):
        archive.load_image(engine, tar)


def test_a_file_without_its_checksum_is_not_loaded(engine: Store, tmp_path: Path) -> None:
    tar = tmp_path / "image.tar"
    tar.write_text("image:1")
    with pytest.raises(ImageError, match="cannot be checked"):
        archive.load_image(engine, tar)


def test_an_image_that_is_not_what_it_says_is_refused(
    engine: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = tmp_path / "image.tar"
    archive.save_image(engine, "image:1", tar)
    monkeypatch.setattr(archive, "listing_of", lambda *_: {**LISTING, "etc/b": "f 644 0"})
    with pytest.raises(ImageError, match="not what its provenance says"):
        archive.load_image(engine, tar)


def test_licences_are_listed_as_the_sbom_states_them() -> None:
    sbom = {
        "components": [
            {"name": "b", "version": "2", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
            {
                "name": "A",
                "version": "1",
                "licenses": [
                    {"license": {"id": "BSD-3-Clause"}},
                    {"license": {"name": "License :: OSI Approved :: BSD"}},
                ],
            },
            {"name": "c"},
        ]
    }
    assert licence_rows(sbom) == [
        ("A", "1", "BSD-3-Clause; BSD"),
        ("b", "2", "MIT OR Apache-2.0"),
        ("c", "", "not stated"),
    ]


@pytest.mark.parametrize(
    ("licences", "shown"),
    [
        ([{"license": {"name": "declared license of 'a'", "text": {"content": "Apache 2.0\nmore"}}}], "Apache 2.0"),
        ([{"license": {"name": "declared license of 'a'", "text": {"content": "QlNE", "encoding": "base64"}}}], "BSD"),
        ([{"license": {"name": "declared license file: LICENSE", "text": {"content": "Permission is"}}}], "its text is in the SBOM"),
        ([{"license": {"name": "declared license of 'a'", "text": {"content": "long"}}}, {"license": {"id": "MIT"}}], "MIT"),
        ([{"license": {"name": ""}}], "not stated"),
    ],
)  # fmt: skip
def test_a_licence_in_words_counts_where_there_is_no_id(licences: list[dict[str, Any]], shown: str) -> None:
    assert licence_rows({"components": [{"name": "a", "licenses": licences}]}) == [("a", "", shown)]
