#!/bin/sh
# The image's environment, over the vendor's Python. What the vendor's torch is gets noted before anything else is installed.
set -eu
python3 -m venv --without-pip --system-site-packages /opt/verl-musa
mkdir -p /opt/verl-musa/share/verl-musa
