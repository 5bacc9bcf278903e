"""torchada must be imported without a warning that it could not compile, and redirect as ever."""

import os
import warnings

import torch

os.environ["CXX"] = "/bin/false"  # what cannot succeed may as well fail at once
warnings.filterwarnings("error", message="Failed to load torchada C")
import torchada  # noqa: E402

if torch.ones(1, device="cuda").device.type != "musa" or not torchada.is_patched():
    raise SystemExit("torchada does not redirect")
