#!/bin/sh
# Installs what is given and nothing else: from files of the context, none resolved, no bytecode, and no note of when or from where.
# The build systems of source packages are those of /tools. install.sh ARGUMENT... as of `uv pip install`.
set -eu
PYTHONPATH="$(echo /tools/lib/python3*/site-packages)" UV_NO_INSTALLER_METADATA=1 UV_PYTHON_DOWNLOADS=never \
  /tools/uv/bin/uv pip install --no-config --offline --no-index --no-deps --no-build-isolation --no-cache --quiet "$@"
