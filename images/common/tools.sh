#!/bin/sh
# The tools that build, in an environment of their own that the image does not keep. uv comes out of its own wheel.
set -eu
python3 -m venv --without-pip /tools
python3 -m zipfile -e /wheels/tools/uv-*.whl /tools/uv
mv /tools/uv/uv-*.data/scripts /tools/uv/bin
chmod 755 /tools/uv/bin/uv
sh /build/install.sh --python /tools/bin/python --find-links /wheels/tools --require-hashes -r /locks/tools.txt
