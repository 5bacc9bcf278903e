"""``python -m torch_musa.build``: compile the simulated device now, not at the first import in a worker.

Progress goes to stderr; the path of the compiled library is the one line on stdout. With ``--into-package`` the library is kept
inside the installed package, so that an image needs no compiler.
"""

from __future__ import annotations

import sys

from torch_musa._build import build_into_package, ensure_built

if __name__ == "__main__":
    print(build_into_package() if sys.argv[1:] == ["--into-package"] else ensure_built())
