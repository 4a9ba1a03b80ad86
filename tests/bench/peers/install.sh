#!/usr/bin/env bash
# Installs MPIs that the distribution does not have, or has only in older versions. Each gets a folder of its own, because their libraries have the
# same names. An MPI that cannot be had is named, and the benchmark goes on without it.
#
#   install.sh FOLDER
set -Eeuo pipefail
peers=$1

install() {
    local folder=$peers/$1
    shift
    if [ -e "$folder/installed" ]; then
        return
    fi
    rm -rf "$folder"
    if python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"; then
        touch "$folder/installed"
    else
        rm -rf "$folder"
        printf 'bench: %s cannot be installed, and is left out\n' "$*" >&2
    fi
}

mkdir -p "$peers"
install openmpi openmpi
install mpich mpich
install intelmpi impi-rt impi-devel
