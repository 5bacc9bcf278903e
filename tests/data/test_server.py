from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.conftest import Look
from verl_musa.checks import Finding, Status
from verl_musa.data import server

KWARGS = "actor_rollout_ref.rollout.engine_kwargs.sglang"
EAGER = "actor_rollout_ref.rollout.enforce_eager=true"
GRAPHS = "actor_rollout_ref.rollout.enforce_eager=false"
FREES = "actor_rollout_ref.rollout.free_cache_engine=true"
KEEPS = "actor_rollout_ref.rollout.free_cache_engine=false"


def found(look: Look, check: str, *sets: str, **options: str) -> Finding:
    given = [f"+{KWARGS}={{{', '.join(f'{name}: {value}' for name, value in options.items())}}}"]
    function = next(item.function for item in server.CHECKS if item.name == check)
    return function(look(*given, *sets))


@pytest.mark.parametrize(
    ("check", "sets", "options", "status", "evidence"),
    [
        ("server.attention", (), {"attention_backend": "fa3"}, Status.OK, "fa3 on musa"),
        ("server.attention", (), {}, Status.FAIL, "none named, so verl asks for flashinfer on musa"),
        ("server.attention", (), {"attention_backend": "flashinfer"}, Status.FAIL, "flashinfer on musa"),
        (
            "server.attention",
            (),
            {"device": "cpu", "attention_backend": "torch_native"},
            Status.OK,
            "torch_native on cpu",
        ),
        ("server.attention", (), {"device": "cpu", "attention_backend": "fa3"}, Status.FAIL, "fa3 on cpu"),
        ("server.page_size", (), {"attention_backend": "fa3", "page_size": "64"}, Status.OK, "64 tokens"),
        ("server.page_size", (), {"attention_backend": "fa3", "page_size": "1"}, Status.WARN, "page size 1"),
        ("server.page_size", (), {"attention_backend": "triton", "page_size": "1"}, Status.OK, "1 tokens"),
        ("server.page_size", (), {}, Status.OK, "SGLang's default"),
        ("server.graphs", (EAGER,), {}, Status.OK, "off"),
        ("server.graphs", (EAGER,), {"disable_cuda_graph": "true"}, Status.OK, "off"),
        ("server.graphs", (EAGER,), {"disable_cuda_graph": "false"}, Status.FAIL, "and wins"),
        ("server.graphs", (GRAPHS,), {"disable_cuda_graph": "true"}, Status.FAIL, "and wins"),
        ("server.graphs", (GRAPHS,), {"device": "cpu"}, Status.WARN, "computes on the CPU"),
        ("server.graphs", (GRAPHS,), {}, Status.OK, "captured"),
        ("server.memory_saver", (FREES, GRAPHS), {}, Status.FAIL, "error 900"),
        ("server.memory_saver", (FREES, EAGER), {}, Status.OK, "given back"),
        ("server.memory_saver", (FREES, GRAPHS), {"device": "cpu"}, Status.OK, "given back"),
        (
            "server.memory_saver",
            (FREES,),
            {"enable_memory_saver": "false"},
            Status.WARN,
            "no memory is given",
        ),
        ("server.memory_saver", (KEEPS, EAGER), {}, Status.WARN, "only costs"),
        (
            "server.memory_saver",
            (KEEPS, GRAPHS),
            {"enable_memory_saver": "false"},
            Status.OK,
            "memory is kept",
        ),
        ("server.schedule", (), {"speculative_algorithm": "EAGLE"}, Status.FAIL, "deadlock"),
        (
            "server.schedule",
            (),
            {"speculative_algorithm": "EAGLE", "disable_overlap_schedule": "true"},
            Status.OK,
            "overlap schedule off",
        ),
        ("server.schedule", (), {}, Status.OK, "overlap schedule on"),
        ("server.determinism", (), {}, Status.OK, "radix cache on"),
        ("server.tensor_parallel", (), {}, Status.OK, "1 rank(s)"),
        (
            "server.tensor_parallel",
            ("actor_rollout_ref.rollout.tensor_model_parallel_size=4",),
            {},
            Status.WARN,
            "over nodes of 2 devices",
        ),
        (
            "server.tensor_parallel",
            ("actor_rollout_ref.rollout.tensor_model_parallel_size=2",),
            {},
            Status.OK,
            "2 rank(s)",
        ),
    ],
)
def test_outcomes(  # noqa: PLR0917  (parametrised)
    look: Look, check: str, sets: tuple[str, ...], options: dict[str, str], status: Status, evidence: str
) -> None:
    finding = found(look, check, *sets, **options)
    assert finding.status is status
    assert evidence in finding.evidence
    assert bool(finding.fix) is (status is not Status.OK)


def test_the_fix_is_about_the_line_that_set_it(look: Look, folder: Path) -> None:
    finding = found(look, "server.graphs", EAGER, disable_cuda_graph="false")
    assert f"--set {EAGER}" in finding.evidence
    assert finding.where.startswith("--set +actor_rollout_ref.rollout.engine_kwargs.sglang")
    assert found(look, "server.attention").where.startswith("--set")
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text().replace("triton", "aiter"))
    finding = server.check_attention(look())
    assert finding.where == f"{folder}/config.yaml:{len((folder / 'config.yaml').read_text().splitlines())}"


@pytest.mark.parametrize(
    ("variables", "check", "sets", "evidence"),
    [
        ('{VERL_MUSA_SEEDED_SAMPLING: "1"}', "server.determinism", (), "depend on timing"),
        (
            '{MUSA_LAUNCH_BLOCKING: "1"}',
            "server.tensor_parallel",
            ("actor_rollout_ref.rollout.tensor_model_parallel_size=2",),
            "desynchronise",
        ),
    ],
)
def test_environment_variables_that_undo_an_option(  # noqa: PLR0917  (parametrised)
    look: Look, folder: Path, variables: str, check: str, sets: tuple[str, ...], evidence: str
) -> None:
    assert found(look, check, *sets).status is Status.OK
    (folder / "runtime_env.yaml").write_text(f"env_vars: {variables}\n")
    finding = found(look, check, *sets)
    assert finding.status is Status.WARN
    assert evidence in finding.evidence


@pytest.mark.parametrize("check", [item.name for item in server.CHECKS])
def test_another_rollout_has_no_such_options(look: Look, check: str) -> None:
    finding = found(look, check, "actor_rollout_ref.rollout.name=vllm")
    assert finding.status is Status.OK
    assert "vllm, not SGLang" in finding.evidence
