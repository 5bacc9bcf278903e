#!/bin/sh
# The tools that build, in an environment of their own that the image does not keep. pip installs itself out of its own wheel.
set -eu
python3 -m venv --without-pip /tools
pip="$(echo /wheels/tools/pip-*.whl)"
python3 "$pip/pip" --python /tools/bin/python install --no-index --find-links /wheels/tools --no-deps --require-hashes \
  --no-compile --quiet --disable-pip-version-check --root-user-action ignore -r /locks/tools.txt
