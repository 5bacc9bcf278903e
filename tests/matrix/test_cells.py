"""Every cell of the support matrix that can be run, as a whole job. `nox -s matrix` runs them and keeps the results."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.integration.conftest import Cli, cli  # noqa: F401  (a fixture)
from tests.matrix.conftest import load_matrix
from verl_musa import extras
from verl_musa.recipe import load_recipe

MATRIX = load_matrix()
KEEP = os.environ.get("VERL_MUSA_KEEP_MATRIX") == "1"
SHORT = [word for change in MATRIX.SHORT for word in ("--set", change)]

pytestmark = [pytest.mark.integration, pytest.mark.matrix, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.id) for cell in MATRIX.cells()])
def test_a_cell_runs(cell: Any, cli: Cli) -> None:  # noqa: F811
    if cell.reason:
        pytest.skip(cell.reason)
    missing = set(load_recipe(cell.recipe).extras) - {folder.name for folder in extras.folders()}
    if missing:
        pytest.skip(f"the extras {', '.join(sorted(missing))} are not installed here")
    started = time.monotonic()
    code = cli.run(cell.recipe, *SHORT)
    (run_dir,) = cli.run_dirs()
    result = MATRIX.result_of(run_dir, code, time.monotonic() - started)
    if KEEP:
        MATRIX.keep_result(cell, result)
    assert code == 0, result["reason"]
    assert MATRIX.shortfall(result) == ""
