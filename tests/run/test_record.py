from __future__ import annotations

import json

import pytest

from verl_musa.errors import RunError
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import (
    RunRecord,
    is_secret,
    is_secret_variable,
    load_record,
    masked_environment,
    masked_set,
    masked_value,
)


def test_a_record_is_read_back_as_it_was_written(run: RunDirectory, record: RunRecord) -> None:
    assert load_record(run.record) == record
    assert json.loads(run.record.read_text())["schema"] == 1


def test_an_end_is_noted_in_the_run_and_in_its_attempt(record: RunRecord) -> None:
    record.set_status("failed", "it broke")
    assert record.attempt.status == "failed"
    assert record.exit_reason == record.attempt.exit_reason == "it broke"
    assert record.ended_at is not None
    assert record.attempt.ended_at == record.ended_at
    assert record.attempt.metrics_name == "metrics-attempt-1.jsonl"


@pytest.mark.parametrize("change", [{"schema": 2}, {"surprise": 1}, {"status": "happy"}])
def test_another_schema_is_refused(run: RunDirectory, record: RunRecord, change: dict[str, object]) -> None:
    run.record.write_text(json.dumps({**record.model_dump(mode="json", by_alias=True), **change}))
    with pytest.raises(RunError, match="cannot be read") as caught:
        load_record(run.record)
    assert next(iter(change)) in str(caught.value)


def test_a_missing_record_is_refused(run: RunDirectory) -> None:
    with pytest.raises(RunError, match="No such file"):
        load_record(run.record)


def test_secrets_are_told_by_name_and_masked() -> None:
    for name in ("HF_TOKEN", "x.wandb_api_key", "AWS_SECRET", "trainer.password"):
        assert is_secret(name)
    for name in ("data.prompt_key", "data.max_prompt_tokens_per_gpu", "TOKENIZERS_PARALLELISM"):
        assert not is_secret(name)
    assert is_secret_variable("SSH_KEY")
    assert not is_secret_variable("OMP_NUM_THREADS")
    assert masked_value("a.token", "abc") == "***"
    assert masked_value("a.token", None) is None
    assert masked_set("a.token=abc") == "a.token=***"
    assert masked_set("a.n=3") == "a.n=3"
    environment = {"env_vars": {"A": "1", "MY_TOKEN": "abc"}, "config": {}}
    assert masked_environment(environment) == {"env_vars": {"A": "1", "MY_TOKEN": "***"}, "config": {}}
    assert masked_environment({}) == {}
