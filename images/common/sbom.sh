#!/bin/sh
# What the environment consists of, what lies aside included, with the texts of its licences, as CycloneDX; by a
# tool that the image does not keep. Its output was held against the schema once: that takes fifteen times as long as to write it.
set -eu
aside="$(echo /opt/verl-musa/aside/* | tr ' ' ':')"
PYTHONPATH="$aside" PYTHONHASHSEED=0 /tools/bin/cyclonedx-py environment --output-reproducible --output-format JSON --spec-version 1.6 \
  --gather-license-texts --no-validate --output-file /opt/verl-musa/share/verl-musa/sbom.cdx.json /opt/verl-musa/bin/python
