"""What a model and a layout take in memory and time, by arithmetic alone: no torch, no device, no file.

Public face: :class:`ModelShape`, :class:`TrainerLayout`, :func:`trainer_states`, :func:`trainer_work`, :class:`ServerLayout`,
:func:`server_memory` and :func:`step_time`. Every figure is an estimate; docs/recipes.md says how each was derived.
"""

from __future__ import annotations

from verl_musa.plan.memory import (
    GIB,
    ServerLayout,
    ServerMemory,
    States,
    TrainerLayout,
    Work,
    server_memory,
    trainer_states,
    trainer_work,
)
from verl_musa.plan.model import ModelShape
from verl_musa.plan.time import Assumptions, StepTime, step_time

__all__ = [
    "GIB",
    "Assumptions",
    "ModelShape",
    "ServerLayout",
    "ServerMemory",
    "States",
    "StepTime",
    "TrainerLayout",
    "Work",
    "server_memory",
    "step_time",
    "trainer_states",
    "trainer_work",
]
