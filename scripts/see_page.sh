#!/usr/bin/env bash
# The page in a real Chromium, in an environment of its own: scripts/see_page.sh [folder for screenshots].
# Installs Debian's chromium where none is there (as root).
set -euo pipefail
cd "$(dirname "$0")/.."
command -v chromium >/dev/null || command -v google-chrome >/dev/null || {
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk >/dev/null
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q -e '.[browser]'
SCREENSHOTS=${1:+$(realpath -m "$1")} "$folder/env/bin/python" -m pytest -q browser
