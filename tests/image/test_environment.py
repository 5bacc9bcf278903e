from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa.errors import ImageError
from verl_musa.image import environment, provenance
from verl_musa.image.diff import diff, from_path
from verl_musa.image.environment import UNOWNED, packages_hash, read_environment
from verl_musa.image.provenance import environment_provenance, read_provenance, write_provenance


def install(site: Path, name: str, version: str = "1.0", requires: tuple[str, ...] = ()) -> None:
    """Put a package there as an installer does."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(f"name = {name!r}\n")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
    (info / "RECORD").write_text(
        f"{name}/__init__.py,sha256=x,1\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n{info.name}/INSTALLER,,\n"
    )
    (info / "INSTALLER").write_text("pip")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    install(folder, "alpha", requires=("beta>=1", 'gamma; python_version < "3"', "delta; extra == 'more'"))
    install(folder, "beta")
    install(folder, "gamma")
    aside = tmp_path / "aside" / "more"
    install(aside, "delta", "2.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "_places", lambda: [("main", folder), ("more", aside)])
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_every_package_has_a_hash_of_its_own(site: Path) -> None:
    before = read_environment()
    assert sorted(before.distributions) == ["alpha", "beta", "delta@more", "gamma"]
    (site / "beta" / "__init__.py").write_text("name = 'Beta'\n")
    after = read_environment()
    changed = [key for key in before.distributions if before.distributions[key] != after.distributions[key]]
    assert changed == ["beta"]
    assert before.sha256 != after.sha256


def test_what_installers_and_python_write_does_not_count(site: Path) -> None:
    before = read_environment(cached=False)
    (site / "alpha-1.0.dist-info" / "INSTALLER").write_text("uv")
    (site / "alpha" / "__pycache__").mkdir()
    (site / "alpha" / "__pycache__" / "a.pyc").write_bytes(b"x")
    (site / "_virtualenv.pth").write_text("")
    install(site, "pip", "26.0")
    assert read_environment(cached=False) == before


def test_a_file_of_no_package_counts_for_the_whole(site: Path) -> None:
    before = read_environment()
    (site / "stray.py").write_text("")
    after = read_environment()
    assert after.owners["main/stray.py"] == UNOWNED
    assert after.sha256 != before.sha256
    assert after.distributions == before.distributions


def test_a_job_has_what_its_packages_require_and_no_more(site: Path) -> None:
    assert site.is_dir()
    found = read_environment()
    chosen = found.closure(["Alpha", "not-installed"])
    assert sorted(chosen) == ["alpha", "beta"]
    assert packages_hash(chosen) != packages_hash(found.closure(["beta"]))
    assert "delta@more" not in found.closure(["delta"])


def test_provenance_is_read_as_it_was_written(site: Path, tmp_path: Path) -> None:
    assert site.is_dir()
    made = environment_provenance(read_environment())
    write_provenance(made, tmp_path / "kept")
    found = read_provenance(tmp_path / "kept")
    assert found is not None
    assert (found.facts, found.files, found.content) == (made.facts, made.files, made.content)
    assert diff(made, found).same
    assert diff(made, from_path(tmp_path / "kept" / "provenance.json")).lines() == ["no difference"]


def test_nothing_recorded_is_none_and_something_broken_is_an_error(site: Path, tmp_path: Path) -> None:
    assert site.is_dir()
    assert read_provenance(tmp_path) is None
    made = environment_provenance(read_environment())
    folder = tmp_path / "kept"
    write_provenance(provenance.Provenance(made.facts, {**made.files, "main/extra.py": "f 644 0"}), folder)
    with pytest.raises(ImageError, match="does not give the recorded content hash"):
        read_provenance(folder)
    write_provenance(provenance.Provenance({**made.facts, "schema": 99}, made.files), folder)
    with pytest.raises(ImageError, match="another version"):
        read_provenance(folder)
    (folder / "files.json.gz").write_bytes(b"no gzip")
    with pytest.raises(ImageError, match="cannot be read"):
        read_provenance(folder)
    with pytest.raises(ImageError, match="no provenance there"):
        from_path(tmp_path / "nothing" / "provenance.json")


def test_a_diff_names_packages_patches_facts_and_files(site: Path) -> None:
    before = environment_provenance(read_environment())
    (site / "beta" / "__init__.py").write_text("name = 'Beta'\n")
    install(site, "epsilon", "3.0")
    after = environment_provenance(read_environment(), {"base": {"identity": "sha256:2"}})
    series = {"digest": "other", "patches": {**after.facts["series"]["patches"], "new-patch": {}}}
    facts = {**after.facts, "series": series, "python": "3.12.0", "debian": {"libc6": "2"}}
    old = {**before.facts, "build": {"base": {"identity": "sha256:1"}}, "debian": {"libc6": "1"}}
    found = diff(provenance.Provenance(old, before.files), provenance.Provenance(facts, after.files))
    assert not found.same
    assert found.packages == ("beta 1.0: other files under the same version", "epsilon: not there -> 3.0")
    assert found.patches == ("new-patch: added",)
    assert "base: sha256:1 -> sha256:2" in found.facts
    assert "debian libc6: 1 -> 2" in found.facts
    assert "main/beta/__init__.py (changed)" in found.files
    assert "main/epsilon/__init__.py (added)" in found.files
    assert "packages: 2 differ" in found.lines()
