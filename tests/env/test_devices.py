from __future__ import annotations

import time
from pathlib import Path

import pytest

from verl_musa.env._devices import find_devices
from verl_musa.env.report import Device

LIBRARY = """\
import types
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle): return types.SimpleNamespace(total=81920 * 2**20, used=5 * 2**20, free=0)
def nvmlDeviceGetUtilizationRates(handle): return types.SimpleNamespace(gpu=3, memory=1)
def nvmlSystemGetDriverVersion(): return b"3.3.8-server"
def nvmlDeviceGetName(handle): return b"MTT S5000"
def nvmlDeviceGetUUID(handle): return f"uuid-{handle}"
"""

GMI = """\
#!/bin/sh
echo 'mthreads-gmi:2.3.2           Driver Version:3.3.5-server'
echo '0    MTT S5000            |00000000:2a:00.0    |0%    66641MiB(81920MiB)'
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is on both paths: what is put there is all that this machine has."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # A pymtml installed beside the tests must not be found.
    (tmp_path / "pymtml.py").write_text("raise ImportError('none', name='pymtml')\n", encoding="utf-8")
    return tmp_path


def put_gmi(machine: Path, text: str) -> None:
    tool = machine / "mthreads-gmi"
    tool.write_text(text, encoding="utf-8")
    tool.chmod(0o755)


def test_library(machine: Path) -> None:
    (machine / "pymtml.py").write_text(LIBRARY, encoding="utf-8")
    found = find_devices()
    assert (found.source, found.driver, found.notes) == ("mthreads-ml-py", "3.3.8-server", ())
    assert found.devices is not None
    assert found.devices[1] == Device(
        index=1,
        name="MTT S5000",
        uuid="uuid-1",
        memory_total_mib=81920,
        memory_used_mib=5,
        utilization_percent=3,
    )


def test_library_that_lacks_or_refuses_some_answers(machine: Path) -> None:
    text = LIBRARY.replace('return f"uuid-{handle}"', "raise RuntimeError('virtual')").replace(
        "def nvmlDeviceGetName", "def _n"
    )
    (machine / "pymtml.py").write_text(text, encoding="utf-8")
    found = find_devices()
    assert found.devices is not None
    assert (found.devices[0].name, found.devices[0].uuid, found.devices[0].memory_total_mib) == (
        None,
        None,
        81920,
    )


def test_library_with_no_device(machine: Path) -> None:
    (machine / "pymtml.py").write_text(LIBRARY.replace("return 2", "return 0"), encoding="utf-8")
    found = find_devices()
    assert (found.source, found.devices) == ("mthreads-ml-py", ())


@pytest.mark.parametrize(
    ("library", "note"),
    [
        ("raise ImportError('none', name='pymtml')\n", "mthreads-ml-py: not installed"),
        ("import no_such_thing\n", "mthreads-ml-py: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def nvmlInit(): raise OSError('no libmtml.so\\nmore')\n", "mthreads-ml-py: OSError: no libmtml.so"),
        ("import os; os._exit(9)\n", "mthreads-ml-py: its process ended with code 9"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n",
            "mthreads-ml-py: its process ended with code -11",
        ),
    ],
)
def test_tool_steps_in(library: str, note: str, machine: Path) -> None:
    (machine / "pymtml.py").write_text(library, encoding="utf-8")
    put_gmi(machine, GMI)
    found = find_devices()
    assert (found.source, found.driver) == ("mthreads-gmi", "3.3.5-server")
    assert found.notes == (note,)
    assert found.devices is not None
    assert [device.memory_used_mib for device in found.devices] == [66641]


def test_library_that_hangs(machine: Path) -> None:
    (machine / "pymtml.py").write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    start = time.monotonic()
    found = find_devices(timeout=1.0)
    assert time.monotonic() - start < 15
    assert found.notes[0] == "mthreads-ml-py: no answer within 1 s"
    assert found.source == "none"


def test_nothing(machine: Path) -> None:
    found = find_devices()
    assert machine.is_dir()
    assert (found.source, found.devices, found.driver) == ("none", None, None)
    assert found.notes == ("mthreads-ml-py: not installed", "mthreads-gmi: not on PATH")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("#!/bin/sh\necho 'no driver' >&2\nexit 3\n", "exit code 3 (no driver)"),
        ("#!/bin/sh\necho oops\n", "no device in it: 'oops'; with -q: no device in it: 'oops'"),
        ("#!/bin/sh\n", "it printed nothing; with -q: it printed nothing"),
        ("#!/bin/sh\nexec sleep 60\n", "no answer within 2 s"),
        ("#!/no/such/interpreter\n", "cannot be started: No such file or directory"),
    ],
)
def test_tool_that_fails(text: str, note: str, machine: Path) -> None:
    put_gmi(machine, text)
    found = find_devices(timeout=2.0)
    assert (found.source, found.devices) == ("none", None)
    assert found.notes[1] == f"mthreads-gmi: {note}"


def test_tool_that_answers_only_to_q(machine: Path) -> None:
    put_gmi(
        machine,
        '#!/bin/sh\nif [ "$1" = -q ]; then echo \'{"gpus": [{"memory_total": "1 GiB"}]}\'; else echo hi; fi\n',
    )
    found = find_devices()
    assert found.devices == (Device(index=0, memory_total_mib=1024),)
