#!/usr/bin/env bash
# Run the control plane's tests in an environment that has no torch: the proof that the domain needs none. Arguments are pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-domain
if [ ! -e "$venv/.installed" ] || [ constraints.txt -nt "$venv/.installed" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt attrs hypothesis pytest pytest-xdist
    touch "$venv/.installed"
fi
if "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    echo "torch is installed in $venv, so this run would prove nothing; remove the folder" >&2
    exit 1
fi
PYTHONPATH=src "$venv/bin/python" -m pytest tests/unit/domain tests/cluster/domain -q -p no:cacheprovider --confcutdir=tests --numprocesses auto --dist worksteal "$@"
