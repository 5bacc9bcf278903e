"""``python -m torch_musa.build``: compile the simulated device now, not at the first import in a worker.

Progress goes to stderr; the path of the compiled library is the one line on stdout.
"""

from __future__ import annotations

from torch_musa._build import ensure_built

if __name__ == "__main__":
    print(ensure_built())
