#!/bin/sh
# Prints the newest supported Python found: on PATH, then among pyenv's versions. A shim that cannot run does not count.
for minor in 13 12 11; do
  for candidate in "python3.$minor" "$HOME"/.pyenv/versions/3."$minor".*/bin/python3 python3 python; do
    if "$candidate" -c "import sys, venv; sys.exit(sys.version_info[:2] != (3, $minor))" >/dev/null 2>&1; then
      command -v "$candidate"
      exit 0
    fi
  done
done
echo "no Python 3.11, 3.12 or 3.13 found: install one (e.g. apt install python3.12-venv) or name it: make PYTHON=/path/to/python3" >&2
exit 1
