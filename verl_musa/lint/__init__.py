"""Lint for what a launch trips over: machine paths, host addresses, secrets, broken scripts and YAML.

Public face: :func:`lint` for the report, :func:`render`, :func:`as_json` and :func:`to_sarif` to show it.
"""

from __future__ import annotations

from verl_musa.lint.engine import RecipeCheck, lint, lint_text
from verl_musa.lint.model import Finding, Kind, Report, Rule
from verl_musa.lint.output import as_json, render
from verl_musa.lint.rules import RULES
from verl_musa.lint.sarif import to_sarif

__all__ = [
    "RULES",
    "Finding",
    "Kind",
    "RecipeCheck",
    "Report",
    "Rule",
    "as_json",
    "lint",
    "lint_text",
    "render",
    "to_sarif",
]
