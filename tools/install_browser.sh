#!/usr/bin/env bash
# Make sure that there is a Chromium for tests/browser: take the one on PATH, or install Debian's.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" > /dev/null; then
        echo "browser: $("$name" --version 2> /dev/null || echo "$name")"
        exit 0
    fi
done
if ! command -v apt-get > /dev/null; then
    echo "there is no Chromium on PATH, and no apt-get to install one: install Chromium by hand" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "there is no Chromium on PATH: sudo apt-get install --no-install-recommends chromium" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "installing Chromium (once, about a minute)"
apt-get -o DPkg::Lock::Timeout=300 update -qq \
    || { echo "cannot read Debian's package lists: apt-get update failed" >&2; exit 1; }
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends chromium > /dev/null \
    || { echo "cannot install Chromium: apt-get install chromium failed" >&2; exit 1; }
chromium --version
