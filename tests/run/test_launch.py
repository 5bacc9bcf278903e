from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from verl_musa.cluster.local_ray import RayPlan
from verl_musa.errors import RecipeError
from verl_musa.recipe import Resolved, load_recipe
from verl_musa.run import launch
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import RunRecord

PLAN = RayPlan(Path("t"), 1, 2, 3, 4, num_cpus=8, num_gpus=2, object_store_bytes=5)
RECIPE = load_recipe(str(Path(__file__).parents[1] / "fixtures" / "fake_recipe"))


def resolved(run: RunDirectory, *, config: object = None, runtime_env: object = None) -> Resolved:
    return Resolved(
        recipe=RECIPE,
        run_dir=run.path,
        assets_dir=None,
        overrides=(),
        config=config or {"trainer": {"logger": ["console"]}},  # type: ignore[arg-type]
        runtime_env=runtime_env or {},  # type: ignore[arg-type]
        seed=17,
    )


def test_the_job_reads_the_configuration_of_its_run(run: RunDirectory) -> None:
    command = launch.job_command(RECIPE, run)
    assert command[:3] == [sys.executable, "-m", "fake_trainer.main"]
    assert command[command.index("--config-path") + 1] == str(run.path)
    assert command[command.index("--config-name") + 1] == "config"


def test_every_process_carries_the_run_and_what_it_has_to_prove(run: RunDirectory, record: RunRecord) -> None:
    own = launch.own_variables(RECIPE, run, record.attempt, {"VERL_MUSA_PATCHES": "plan"})
    assert own["VERL_MUSA_RUN_ID"] == run.path.name
    assert own["VERL_MUSA_RUN_DIR"] == str(run.path)
    assert own["VERL_PLATFORM"] == "musa"
    assert json.loads(own["VERL_MUSA_EXPECT"]) == {"device": "musa", "backend": "mccl", "simulated": True}
    assert own["VERL_FILE_LOGGER_PATH"] == str(run.logs / "metrics-attempt-1.jsonl")
    environment = launch.job_runtime_env(
        resolved(run, runtime_env={"env_vars": {"A": "1"}, "config": {"x": 1}}), own
    )
    assert environment == {"env_vars": {"A": "1", **own}, "config": {"x": 1}}


def test_an_upload_of_code_is_refused(run: RunDirectory) -> None:
    with pytest.raises(RecipeError, match="sets working_dir"):
        launch.job_runtime_env(resolved(run, runtime_env={"working_dir": "."}), {})


@pytest.mark.parametrize(
    ("given", "written"),
    [("console", ["console", "file"]), (["console", "file"], ["console", "file"]), (None, ["file"])],
)
def test_the_file_logger_is_always_on(run: RunDirectory, given: object, written: list[str]) -> None:
    config = launch.job_config(resolved(run, config={"trainer": {"logger": given}}), None, resuming=False)
    assert config["trainer"] == {"logger": written}


def test_a_resumed_job_names_its_checkpoint_and_sizes_stay_with_ray(run: RunDirectory) -> None:
    before = {
        "trainer": {"logger": ["file"]},
        "ray_kwargs": {"ray_init": {"num_cpus": 16, "runtime_env": {}}},
    }
    config = launch.job_config(resolved(run, config=before), "c/global_step_2", resuming=True)
    assert config["trainer"]["resume_mode"] == "resume_path"
    assert config["trainer"]["resume_from_path"] == "c/global_step_2"
    assert config["ray_kwargs"]["ray_init"] == {"num_cpus": None, "runtime_env": {}}
    assert before["trainer"] == {"logger": ["file"]}
    fresh = launch.job_config(resolved(run, config=before), None, resuming=True)
    assert fresh["trainer"]["resume_mode"] == "disable"


def test_the_script_is_quoted_holds_no_secret_and_is_clean(tmp_path: Path) -> None:
    odd = 'it\'s $HOME `x` "y"\\'
    command = [sys.executable, "-c", "import os, sys; print(os.environ['ODD']); print(sys.argv[1:])", odd]
    text = launch.launch_script(command, {"ODD": odd, "MY_TOKEN": "hidden"}, PLAN)
    assert "hidden" not in text
    script = tmp_path / "launch.sh"
    script.write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "MY_TOKEN"}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "MY_TOKEN" in done.stderr
    done = subprocess.run(
        [bash, str(script), "more"],
        env={**environment, "MY_TOKEN": "x"},
        capture_output=True,
        text=True,
        check=True,
    )
    shown, arguments = done.stdout.splitlines()
    assert shown == odd
    assert "++ray_kwargs.ray_init.num_gpus=2" in arguments
    assert arguments.endswith("'more']")
    checker = Path(sys.executable).with_name("shellcheck")
    if checker.exists():
        subprocess.run([str(checker), str(script)], check=True)


def test_extras_join_the_path_of_the_job_alone(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "aside" / "megatron").mkdir(parents=True)
    plain = resolved(run, runtime_env={"env_vars": {"PYTHONPATH": "mine"}})
    wanted = replace(plain, recipe=RECIPE.model_copy(update={"extras": ("megatron", "vllm")}))
    found = launch.job_runtime_env(wanted, {})["env_vars"]["PYTHONPATH"]
    assert found == os.pathsep.join([str(tmp_path / "aside" / "megatron"), "mine"])
    assert launch.job_runtime_env(plain, {})["env_vars"]["PYTHONPATH"] == "mine"
    assert launch.job_runtime_env(resolved(run), {})["env_vars"] == {}


def test_on_several_hosts_the_script_hands_the_same_job_to_a_ray_that_is_up(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ray").write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@" > "$RAY_TOLD"\n', encoding="utf-8")
    (tools / "ray").chmod(0o755)
    hostile = 'a"; touch no; echo `id` $HOME'
    environment = {
        "env_vars": {"SETTING": hostile, "FAKE_API_KEY": "opensesame"},
        "worker_process_setup_hook": "a.b",
    }
    script = tmp_path / "launch.sh"
    script.write_text(launch.submit_script(["python", "-m", "trainer", hostile], environment))
    assert "opensesame" not in script.read_text()
    given = {
        "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "RAY_TOLD": str(tmp_path / "told"),
    }

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [shutil.which("bash") or "bash", str(script), "extra=1"]
        return subprocess.run(
            command,
            env={**given, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert "RAY_JOBS_ADDRESS" in run().stderr
    assert "FAKE_API_KEY" in run(RAY_JOBS_ADDRESS="http://192.0.2.11:8265").stderr
    done = run(RAY_JOBS_ADDRESS="http://192.0.2.11:8265", FAKE_API_KEY="opensesame")
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "told").read_text().split("\0")[:-1]
    assert told[:4] == ["job", "submit", "--address", "http://192.0.2.11:8265"]
    assert json.loads(told[told.index("--runtime-env-json") + 1]) == environment
    assert told[told.index("--") + 1 :] == ["python", "-m", "trainer", hostile, "extra=1"]
    assert not (tmp_path / "no").exists()
