#!/usr/bin/env bash
# Debian and Ubuntu packages that no wheel and no crate brings. Run as root.
set -euo pipefail
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
    ca-certificates curl g++ git make pkg-config python3 python3-venv
if ! command -v cargo >/dev/null; then
    echo "Rust is not here yet: https://rustup.rs (Debian's own is too old for this workspace)."
fi
