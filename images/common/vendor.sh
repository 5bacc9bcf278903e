#!/bin/sh
# Packages that stand in for the vendor's, into the base's own Python, as a vendor's base has them.
set -eu
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > /build/vendor-path
target="$(cat /build/vendor-path)"
install() {
  sh /build/install.sh --python "$(command -v python3)" --target "$target" --break-system-packages "$@"
}
install --find-links /wheels/vendor --require-hashes -r /locks/vendor.txt
for folder in /src/vendor/*/; do
  install "$folder"
done
rm -rf "${target:?}/bin"
