#!/bin/sh
# usage: activate.sh SYSUSERS_FOLDER TMPFILES_FOLDER
# Activates an installation on a running system: makes commd's user and folder, and makes the library and the units known.
# Starts nothing. If a part of systemd is missing, as in an image that is being built, its step is skipped.
set -eu
[ "$(id -u)" = 0 ] || { echo "activate: not root: user, folder and units are left to the administrator"; exit 0; }
has() { command -v "$1" >/dev/null; }
if has systemd-sysusers; then systemd-sysusers "$1/commd.conf"; fi
if has systemd-tmpfiles; then systemd-tmpfiles --create "$2/commd.conf"; fi
if has ldconfig; then ldconfig; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
