"""Real failures, captured on four container hosts: ../shared/cases beside the checkout. Skipped where they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa.diagnose.triage import triage_paths
from verl_musa.diagnose.triage_card import Verdict

CASES = next(
    (
        folder
        for parent in Path(__file__).resolve().parents
        if (folder := parent / "shared" / "cases" / "logs").is_dir()
    ),
    Path("/nowhere"),
)
RIGHT = {
    "api_jobs_after_midjob_kill.json": ("ray.actor-unavailable", ""),
    "api_nodes_after_kill.json": ("ray.node-dead", "10.202.0.13"),
    "build_missing_base_bk1.txt": ("os.build-log-cut", ""),
    "fault_dashboard_dead_head_ok": ("ray.dashboard-died", "node1"),
    "fault_dashboard_dead_head_ok/dashboard.err": ("ray.dashboard-died", ""),
    "fault_dashboard_dead_head_ok/dashboard.log": ("ray.dashboard-died", "node1"),
    "fault_dashboard_dead_head_ok/ray_job_submit.txt": ("ray.api-refused", ""),
    "fault_dashboard_dead_head_ok/ray_start_head.txt": ("ray.dashboard-died", "node1"),
    # `ray status` counts on: nothing in it is abnormal, which is why docs/triage.md says not to trust it.
    "fault_dashboard_dead_head_ok/ray_status.txt": ("", ""),
    "head_started_twice.txt": ("ray.already-running", ""),
    "job_exit_code_nonzero.txt": ("ray.job-failed", ""),
    "job_nonexistent_path_one_node.txt": (
        "python.file-not-found",
        "10.202.0.14",
    ),
    "job_one_way_firewall.txt": ("ray.resources-missing", ""),
    "job_too_many_gpus.txt": ("ray.placement-not-ready", ""),
    "job_worker_node_killed_midjob.txt": ("ray.actor-unavailable", ""),
    "join_gcs_port_dropped.txt": ("ray.gcs-unreachable", ""),
    "join_head_own_ip_typo.txt": ("ray.own-address-wrong", ""),
    "join_other_ray_version.txt": ("ray.version-mismatch", ""),
    "join_wrong_head_ip.txt": ("ray.gcs-unreachable", ""),
    "ssh_no_host.txt": ("os.ssh-unreachable", ""),
    "ssh_wrong_key.txt": ("os.ssh-denied", ""),
    "status_after_midjob_kill.txt": ("", ""),
    "submit_closed_port.txt": ("ray.api-refused", ""),
    "submit_gcs_port_instead_of_dashboard.txt": ("ray.gcs-port-as-dashboard", ""),
    "submit_no_scheme.txt": ("ray.submit-no-scheme", ""),
    "twonic_head_auto_ip.txt": ("ray.head-address-changed", ""),
    "twonic_job_object_from_head_eth0drop.txt": ("ray.head-on-other-network", ""),
    # Thirty lines of a raylet up to the healthy end of the job before: the fault came later.
    "twonic_node2_raylet_eth0drop.txt": ("", ""),
}
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="../shared/cases is not beside this checkout")


@pytest.mark.parametrize("name", RIGHT)
def test_each_case_has_its_right_cause(name: str) -> None:
    rule, host = RIGHT[name]
    card = triage_paths([CASES / name])
    assert (card.rule, card.where.host) == (rule, host)
    assert card.verdict is not Verdict.UNKNOWN


def test_no_case_is_left_out() -> None:
    names = {str(path.relative_to(CASES)) for path in CASES.rglob("*") if path.is_file()}
    assert names <= set(RIGHT)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("join_head_own_ip_typo.txt", "the node was started as 10.202.0.77, but its host is 10.202.0.50"),
        ("submit_no_scheme.txt", "submitted to 10.202.0.11:8265 without http://"),
        ("submit_closed_port.txt", "nothing listens at 10.202.0.12:8265"),
        ("join_wrong_head_ip.txt", "did not answer at 10.202.0.99:6379"),
        (
            "twonic_job_object_from_head_eth0drop.txt",
            "the head registered as 10.201.0.11, another network than 10.202.0.11",
        ),
        ("job_exit_code_nonzero.txt", "exit code 17"),
        ("job_nonexistent_path_one_node.txt", "/data/train.jsonl is not there on host 10.202.0.14"),
    ],
)
def test_what_is_said(name: str, said: str) -> None:
    assert said in triage_paths([CASES / name]).what


def test_the_version_of_both_sides_is_in_the_evidence() -> None:
    text = "\n".join(one.text for one in triage_paths([CASES / "join_other_ray_version.txt"]).evidence)
    assert "Ray: 2.58.0" in text
    assert "Ray: 2.57.0" in text


def test_a_killed_node_is_named_once_the_api_s_answer_is_there_too() -> None:
    names = ("job_worker_node_killed_midjob.txt", "status_after_midjob_kill.txt", "api_nodes_after_kill.json")
    card = triage_paths([CASES / name for name in names])
    assert (card.rule, card.where.host) == ("ray.node-dead", "10.202.0.13")
    assert {one.rule for one in card.consequences} == {"ray.actor-unavailable", "ray.job-failed"}
