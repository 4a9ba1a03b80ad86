#!/bin/sh
# usage: activate.sh SYSUSERS_FOLDER TMPFILES_FOLDER | --stop | --forget
# Activates an installation on a running system: makes commd's user and folder, and makes the library and the units known.
# Starts nothing. If a part of systemd is missing, as in an image that is being built, the script skips its step.
# --stop stops and disables the service, before its files are removed. --forget tells the system afterwards that they are gone.
set -eu
[ "$(id -u)" = 0 ] || { echo "activate: not root: user, folder and units are left to the administrator"; exit 0; }
has() { command -v "$1" >/dev/null; }
runs() { [ -d /run/systemd/system ]; }

if [ "$1" = --stop ]; then
    if runs; then systemctl disable --now --quiet commd.socket commd.service || true; fi
    rm -rf /run/commd /run/commd-admin
    exit
fi
if [ "$1" != --forget ]; then
    if has systemd-sysusers; then systemd-sysusers "$1/commd.conf"; fi
    if has systemd-tmpfiles; then systemd-tmpfiles --create "$2/commd.conf"; fi
fi
if has ldconfig; then ldconfig; fi
if runs; then systemctl daemon-reload; fi
[ "$1" = --forget ] || echo "commd is installed. To start it now and at each boot: systemctl enable --now commd"
