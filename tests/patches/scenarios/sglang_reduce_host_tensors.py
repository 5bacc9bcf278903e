"""A host tensor must be handed over by torch's own reducer, a device tensor by SGLang's."""

import pickle
from multiprocessing.reduction import ForkingPickler

import torch
from support import load_sglang_reductions

load_sglang_reductions()
torch.multiprocessing.set_sharing_strategy("file_system")
host = torch.arange(4.0)
if not torch.equal(pickle.loads(bytes(ForkingPickler.dumps(host))), host):  # noqa: S301
    raise SystemExit("a host tensor came back changed")
_, arguments = torch.multiprocessing.reductions.reduce_tensor(torch.ones(2, device="musa:1"))
if arguments[6] != "musa-1":
    raise SystemExit(f"a device tensor's index was not rewritten: {arguments[6]}")
