"""Read files, apply waivers, and collect one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import yaml

from verl_musa.checks import Result
from verl_musa.errors import LintError
from verl_musa.lint import dockerfile, files, python, recipes, rules, shell, texts, waivers, yaml_files
from verl_musa.lint.model import Analysis, Finding, Kind, Report, Source, unique

_READERS: Final[dict[Kind, Callable[[Source], Analysis]]] = {
    Kind.PYTHON: python.analyse,
    Kind.SHELL: shell.analyse,
    Kind.YAML: yaml_files.analyse,
    Kind.DOCKERFILE: dockerfile.analyse,
}
_MACHINE_RULES: Final = frozenset(
    {rules.PATH_MACHINE.id, rules.PATH_USER.id, rules.PATH_HOME.id, rules.ADDRESS.id, rules.INTERFACE.id}
)

RecipeCheck = Callable[[Path], Sequence[Result]]
"""Checks the recipe in a folder. The lint is below the rooms that know how, so the command line hands it down."""


def lint(
    paths: Sequence[Path] = (),
    *,
    installed: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    recipe_check: RecipeCheck | None = None,
) -> Report:
    """Lint files, folders and installed distributions.

    Args:
        paths: files and folders.
        installed: names of distributions, whose files are found without importing them.
        select: rules, or first parts of their ids such as ``path``; empty for all.
        ignore: rules to leave out, named likewise.
        recipe_check: called for each recipe folder that is met; None leaves recipes out.

    Raises:
        LintError: a path, a distribution or a rule does not exist.
    """
    wanted = _wanted(select, ignore)
    report = Report()
    selections = [files.select(paths), *(files.select_installed(name) for name in installed)]
    for selection in selections:
        report.notes += selection.notes
        for target in selection.targets:
            report.extend(_lint_file(target, wanted))
        if recipe_check is not None:
            for folder in selection.recipes:
                report.extend(recipes.check(folder, recipe_check))
    return report.sorted()


def lint_text(text: str, file: str, kind: Kind) -> Report:
    """Lint one text as though it were read from ``file``."""
    return _lint_source(Source(file=file, text=text, kind=kind), _wanted((), ())).sorted()


def _wanted(select: Sequence[str], ignore: Sequence[str]) -> frozenset[str]:
    def named(part: str) -> set[str]:
        found = {name for name in rules.RULES if name == part or name.startswith(f"{part}.")}
        if not found:
            raise LintError(
                f"no rule {part!r}", found=", ".join(rules.RULES), expected="a rule's id or its first part"
            )
        return found

    chosen = set().union(*map(named, select)) if select else set(rules.RULES)
    return frozenset(chosen.difference(*map(named, ignore)))


def _lint_file(target: files.Target, wanted: frozenset[str]) -> Report:
    try:
        raw = target.path.read_bytes()
    except OSError as error:
        return Report(notes=[f"{target.shown}: left out: {error.strerror}"])
    if b"\0" in raw:
        return Report(notes=[f"{target.shown}: left out: binary"])
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return Report(notes=[f"{target.shown}: left out: not UTF-8"])
    source = Source(file=target.shown, text=text, kind=target.kind)
    report = _lint_source(source, wanted)
    if files.holds_machine_facts(target.path):
        report.findings = [one for one in report.findings if one.rule.id not in _MACHINE_RULES]
    return report


def _lint_source(source: Source, wanted: frozenset[str]) -> Report:
    try:
        analysis = _READERS[source.kind](source)
    except (SyntaxError, yaml.YAMLError, RecursionError) as error:
        return _unreadable(source, error, wanted)
    known = {one.line for one in analysis.findings if one.rule is rules.SECRET}
    secrets = [one for one in texts.secret_findings(source) if one.line not in known]
    analysis.findings = unique(iter([*analysis.findings, *secrets]))
    standing, waived = waivers.apply(source, analysis, wanted)
    return Report(
        findings=[one for one in standing if one.rule.id in wanted],
        waived=[one for one in waived if one.rule.id in wanted],
        files=1,
    )


def _unreadable(source: Source, error: Exception, wanted: frozenset[str]) -> Report:
    if isinstance(error, yaml.YAMLError) and yaml_files.is_template(source.text):
        return Report(notes=[f"{source.file}: left out: a template of YAML"])
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else (error.lineno or 0) if isinstance(error, SyntaxError) else 0
    said = getattr(error, "problem", None) or getattr(error, "msg", None) or "nested too deeply"
    found: list[Finding] = [source.finding(rules.UNREADABLE, line, 0, f"{source.kind} syntax: {said}")]
    found += texts.secret_findings(source)
    return Report(findings=[one for one in found if one.rule.id in wanted], files=1)
