#!/usr/bin/env bash
# Build the sdist, and from it the wheel, into dist/; check their metadata and contents; try the wheel in an empty environment.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-dist
rm -rf dist "$venv"
python="${PYTHON:-python3}"
install() { # into the environment $1, the rest
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "${@:2}"
}

echo "[1/4] building"
"$python" -m venv "$venv"
mapfile -t tools < <("$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dist"], sep="\n")')
install "$venv" "${tools[@]}"
"$venv/bin/python" -m build --outdir dist . > "$venv/build.log" 2>&1 || { cat "$venv/build.log" >&2; exit 1; }

echo "[2/4] checking metadata"
"$venv/bin/python" -m twine check --strict dist/*

echo "[3/4] checking contents"
"$python" tools/check_dist.py dist
rm -rf "$venv"

echo "[4/4] installing the wheel into an empty environment, and trying it"
empty="$(mktemp -d)"
trap 'rm -rf "$empty"' EXIT
"$python" -m venv "$empty/venv"
install "$empty/venv" --no-compile dist/*.whl
cd "$empty"
env -i HOME="$empty" PATH=/usr/bin:/bin "$empty/venv/bin/nanoserve" generate "Once upon a time" --max-tokens 16 --seed 7
echo "ready to publish:"
ls "$OLDPWD"/dist/*
