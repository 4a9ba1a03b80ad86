#!/bin/sh
# usage: activate.sh SYSUSERS_FOLDER TMPFILES_FOLDER
# Tells a running system what was installed: commd's user, its folder, the library and the units. Nothing is started.
# Where a part of systemd is missing, as in an image that is being built, that step is left out.
set -eu
[ "$(id -u)" = 0 ] || { echo "activate: not root: user, folder and units are left to the administrator"; exit 0; }
has() { command -v "$1" >/dev/null; }
if has systemd-sysusers; then systemd-sysusers "$1/commd.conf"; fi
if has systemd-tmpfiles; then systemd-tmpfiles --create "$2/commd.conf"; fi
if has ldconfig; then ldconfig; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
