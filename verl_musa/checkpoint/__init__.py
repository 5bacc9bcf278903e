"""Weights between Hugging Face's layout and Megatron-Core's: converted in bounded memory, and proved.

Torch is imported only by the functions that move weights; planning and checking need none.
"""

from __future__ import annotations

from verl_musa.checkpoint.describe import describe
from verl_musa.checkpoint.layout import Layout, check_layout
from verl_musa.checkpoint.spec import ModelSpec, read_spec
from verl_musa.checkpoint.to_hf import ToHf, to_hf
from verl_musa.checkpoint.to_mcore import ToMcore, plan, to_mcore
from verl_musa.checkpoint.verify import Pair, verify

__all__ = [
    "Layout",
    "ModelSpec",
    "Pair",
    "ToHf",
    "ToMcore",
    "check_layout",
    "describe",
    "plan",
    "read_spec",
    "to_hf",
    "to_mcore",
    "verify",
]
