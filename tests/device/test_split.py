from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from verl_musa.device import proof, split


class Worker:
    """A Ray worker as its handle looks: a call runs there, with what Ray gave to it."""

    def __init__(self, devices: list[str]) -> None:
        self.devices = devices

    @property
    def __ray_call__(self) -> Worker:
        return self

    async def remote(self, function: Callable[[Any], Any]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proof, "accelerators", lambda: self.devices)
            return function(self)


@pytest.mark.parametrize(
    ("devices", "first"), [([["2"]], 2), ([["5"], ["4"]], 4), ([["9"], ["10"]], 9), ([["0"], ["1"]], 0)]
)
def test_a_server_starts_at_the_first_device_of_its_own_workers(devices: list[list[str]], first: int) -> None:
    assert asyncio.run(split.base_device(Worker(each) for each in devices)) == first


@pytest.mark.parametrize("devices", [[["0"], ["2"]], [["1"], ["1"]], [[]], []])
def test_devices_that_are_no_neighbours_are_refused(devices: list[list[str]]) -> None:
    with pytest.raises(RuntimeError, match="expected neighbours"):
        split.first_device(devices)
