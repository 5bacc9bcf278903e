"""The end of a run in figures: ``summary`` of ``run.json``, ``report.md`` and the table on the console."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from verl_musa.diagnose import read_gate, triage_card
from verl_musa.diagnose.triage_card import Card
from verl_musa.errors import JobFailedError
from verl_musa.fileio import write_atomic
from verl_musa.observe import metrics
from verl_musa.observe.metrics import Rows
from verl_musa.observe.proof import devices_by_pool
from verl_musa.recipe import Recipe
from verl_musa.run import lock
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import RunRecord

WINDOW = 5


def summarize(rows: Rows, record: RunRecord) -> dict[str, Any]:
    """The figures of a run; None for what verl did not log.

    Seconds a step and tokens a second leave the first step of each attempt out: it includes warming up.
    """
    steps = metrics.training_rows(rows)
    scores = metrics.series(steps, metrics.SCORE)
    warm = {attempt.resumed_from_step + 1 for attempt in record.attempts}
    timed = {step: data for step, data in steps.items() if step not in warm} or steps
    validations = [found for data in rows.values() if (found := metrics.validation_scores(data))]
    tokens = [value for data in timed.values() if (value := metrics.tokens_per_second(data)) is not None]
    memory = [value for data in steps.values() if (value := metrics.device_memory(data)) is not None]
    differences = {name: metrics.series(steps, metric) for name, metric in metrics.HELD_EACH_STEP.items()}
    return {
        "steps": len(steps),
        "last_step": max(steps, default=0),
        "score_first5": metrics.mean(scores[:WINDOW]),
        "score_last5": metrics.mean(scores[-WINDOW:]),
        "validation_first": validations[0] if validations else None,
        "validation_last": validations[-1] if validations else None,
        **{name: max(values, default=None) for name, values in differences.items()},
        "seconds_per_step": metrics.mean(metrics.series(timed, "perf/time_per_step")),
        "tokens_per_second": metrics.mean(tokens),
        "device_memory_gib_max": max(memory, default=None),
        "mccl_calls": sum(record.device.mccl_calls.values()),
    }


def check_accepted(recipe: Recipe, record: RunRecord, summary: dict[str, Any]) -> None:
    """Hold a finished job against the recipe's ``accept`` block, and a simulated one against its collectives.

    The scores count for runs of the recipe's own length only, not where ``--set`` changed it.

    Raises:
        JobFailedError: a bound is missed, or the figure that it is about was never logged.
    """
    if summary["steps"] == 0:
        raise JobFailedError(
            "the job ended well but logged no training step",
            found="no row with a training step in metrics.jsonl",
            expected="one a step",
            fix="check trainer.total_epochs and trainer.total_training_steps, and the size of the data set",
        )
    device = record.device
    if device.simulated and device.count > 1 and not summary["mccl_calls"]:
        raise JobFailedError(
            "no collective went through the simulated mccl",
            found="0 calls in all workers",
            expected=f"more than none: the recipe runs on {device.count} devices",
            fix="the workers talked through another backend: look at their proofs in logs/proof",
        )
    for name, bound in differences_allowed(recipe).items():
        _hold(f"rollout-against-trainer difference ({metrics.HELD_EACH_STEP[name]})", summary[name], bound, name, upper=True)  # fmt: skip
    accept = recipe.accept
    if accept is None:
        return
    if _shortened(record):
        return
    first, last = summary["score_first5"], summary["score_last5"]
    if accept.score_last5_min is not None:
        _hold("mean score of the last five steps", last, accept.score_last5_min, "score_last5_min")
    if accept.score_gain_min is not None:
        gain = None if first is None or last is None else last / first if first > 0 else float("inf")
        _hold(
            "score of the last five steps over that of the first five",
            gain,
            accept.score_gain_min,
            "score_gain_min",
        )


def differences_allowed(recipe: Recipe) -> dict[str, float]:
    """The bounds of ``accept`` that hold at every step: field -> largest value (``metrics.HELD_EACH_STEP``)."""
    bounds = {name: getattr(recipe.accept, name, None) for name in metrics.HELD_EACH_STEP}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _hold(what: str, value: float | None, bound: float, name: str, *, upper: bool = False) -> None:
    fits = value is not None and (value <= bound if upper else value >= bound)
    if not fits:
        shown = "never logged" if value is None else f"{value:.4g}"
        raise JobFailedError(
            f"the {what} is not accepted: {shown}",
            found=shown,
            expected=f"at {'most' if upper else 'least'} {bound:g} (accept.{name} of the recipe)",
            fix="compare metrics.jsonl with an accepted run of the recipe",
        )


def _shortened(record: RunRecord) -> bool:
    lengths = ("trainer.total_training_steps", "trainer.total_epochs")
    return any(text.partition("=")[0].lstrip("+~") in lengths for text in record.sets)


def _lines(record: RunRecord) -> list[tuple[str, str]]:
    summary = record.summary or {}
    device = record.device

    def figure(name: str, form: str) -> str:
        value = summary.get(name)
        return "-" if value is None else f"{value:{form}}"

    def validation(name: str) -> str:
        found = summary.get(name) or {}
        return (
            ", ".join(f"{key.removeprefix('val-core/')} {value:.3f}" for key, value in found.items()) or "-"
        )

    proven = "proven by its workers" if device.proven else "not proven"
    kind = "simulated" if device.simulated else "hardware"
    return [
        ("status", record.status),
        ("device", f"{device.count} x {device.type} ({kind}), {proven}"),
        *([("pools", _pools(record))] if device.pools else []),
        *([("hosts", _hosts(record))] if record.cluster is not None else []),
        (
            "steps",
            f"{figure('steps', 'd')}, the last is {figure('last_step', 'd')} of {record.total_steps or '?'}",
        ),
        ("score, first five steps", figure("score_first5", ".3f")),
        ("score, last five steps", figure("score_last5", ".3f")),
        ("validation, first", validation("validation_first")),
        ("validation, last", validation("validation_last")),
        ("probability difference, max", figure("rollout_probs_diff_max", ".2e")),
        ("log perplexity difference, max", figure("log_ppl_abs_diff_max", ".2e")),
        ("seconds a step", figure("seconds_per_step", ".2f")),
        ("tokens a second", figure("tokens_per_second", ".0f")),
        ("device memory, peak GiB", figure("device_memory_gib_max", ".3f")),
        ("mccl calls", figure("mccl_calls", "d")),
        ("recipe.lock", lock.shown(record)),
        ("image", "-" if record.image is None else f"{record.image.kind} sha256:{record.image.sha256[:16]}"),
        ("patches", _patch_counts(record)),
        ("correctness gate", _gate_counts(record)),
    ]


def _hosts(record: RunRecord) -> str:
    """The hosts of the last attempt, and those that were lost before."""
    names = ", ".join(host.name for host in record.attempt.hosts) or "none came up"
    lost = [name for attempt in record.attempts for name in attempt.lost]
    return names + (f"; lost: {', '.join(dict.fromkeys(lost))}" if lost else "")


def _pools(record: RunRecord) -> str:
    """Which devices the workers of each pool hold, as they proved; what was asked for, where they did not."""
    held = devices_by_pool(record.device.workers)
    return "; ".join(
        f"{pool} {count}" + (f" ({', '.join(held[pool])})" if pool in held else "")
        for pool, count in record.device.pools.items()
    )


def _gate_counts(record: RunRecord) -> str:
    gate = record.gate
    if gate is None or gate.mode == "off":
        return "off"
    counts = ", ".join(f"{count} {status}" for status, count in gate.counts.items() if count)
    ran = "" if gate.ran else "; the job did not get that far"
    seconds = "" if gate.seconds is None else f", {gate.seconds:.0f} s"
    return f"{counts or 'no verdict'}{seconds}{ran}"


def _gate_lines(run: RunDirectory) -> list[str]:
    """What the gate found."""
    results = read_gate(run.gate)
    if not results:
        return []
    rows = [f"| {result.check} | {result.status.value} | {_cell(result.evidence)} |" for result in results]
    return ["", "## Correctness gate", "", "| check | result | seen |", "|---|---|---|", *rows]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _patch_counts(record: RunRecord) -> str:
    if record.patches is None:
        return "-"
    counts = [(len(record.patches[kind]), word) for kind, word in
              (("applied", "applied"), ("skipped", "not needed"), ("drift", "let through with drift"))]  # fmt: skip
    counts.append((len(record.patches.get("off", ())), "left out by hand"))
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "none needed"


def _patch_lines(record: RunRecord) -> list[str]:
    """The patches that were applied, and those whose target had drifted and that were let through."""
    if not record.patches or not record.patches["applied"]:
        return []
    drift = record.patches["drift"]
    lines = ["", "## Patches", "", "| patch | upstream | drift let through |", "|---|---|---|"]
    for patch_id, entry in sorted(record.patches["applied"].items()):
        let_through = ", ".join(drift.get(patch_id, {})) or "no"
        lines.append(f"| {patch_id} | {entry['distribution']} {entry['version']} | {let_through} |")
    return lines


def write_report(run: RunDirectory, record: RunRecord, card: Card | None = None) -> None:
    """Write ``report.md``; ``card``: the triage of a run that failed."""
    lines = [f"# {record.recipe.name} {record.recipe.version}: run {record.run_id}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in _lines(record)]
    lines += [f"| logs | {run.logs} |"]
    if record.exit_reason and record.status != "succeeded":
        lines += ["", "## Why it ended", "", "```", record.exit_reason, "```"]
    if card is not None:
        lines += triage_card.markdown(card)
    if record.device.mccl_calls:
        lines += ["", "## Collectives", "", "| collective | calls |", "|---|---|"]
        lines += [f"| {name} | {calls} |" for name, calls in record.device.mccl_calls.items()]
    lines += _gate_lines(run)
    lines += _patch_lines(record)
    lines += _attempt_lines(record)
    lines += ["", "## Versions", "", "| package | version |", "|---|---|"]
    lines += [f"| {name} | {version} |" for name, version in record.versions.items()]
    write_atomic(run.report, "\n".join([*lines, ""]))


def _attempt_lines(record: RunRecord) -> list[str]:
    """The attempts; of a run on several hosts with these, those that were lost, and the checkpoints that were not good enough."""
    lines = ["", "## Attempts", "", "| | started (UTC) | from step | status |", "|---|---|---|---|"]
    lines += [
        f"| {a.number} | {a.started_at} | {a.resumed_from_step + 1} | {a.status} |" for a in record.attempts
    ]
    if record.cluster is not None:
        lines += ["", "## Hosts", "", "| attempt | hosts | lost |", "|---|---|---|"]
    for attempt in record.attempts if record.cluster is not None else ():
        names = ", ".join(f"{h.name} ({h.address}{', head' if h.head else ''})" for h in attempt.hosts) or "-"
        lost = "; ".join(_cell(why) for why in dict.fromkeys(attempt.lost.values())) or "none"
        lines.append(f"| {attempt.number} | {names} | {lost} |")
    rejected = [(a.number, text) for a in record.attempts for text in a.rejected]
    if rejected:
        lines += ["", "## Checkpoints not gone on from", ""]
        lines += [f"- attempt {number}: {_cell(text)}" for number, text in rejected]
    return lines


def print_card(card: Card, console: Console | None = None) -> None:
    """Print the triage of a run that failed."""
    triage_card.render(card, console or Console(highlight=False))


def print_summary(run: RunDirectory, record: RunRecord, console: Console | None = None) -> None:
    """Print the table."""
    table = Table(title=f"{record.recipe.name}: run {record.run_id}", show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(record):
        table.add_row(name, value)
    console = console or Console(highlight=False)
    console.print(table)
    console.print(f"run directory: {run.path}\nlogs: {run.logs}", soft_wrap=True, markup=False)
