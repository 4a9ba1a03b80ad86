#!/bin/bash
# usage: build-packages.sh FOLDER VERSION
# Builds the Debian packages of the sources into FOLDER, for this machine's release of Debian, and checks them with lintian.
# It builds them in a copy of the sources, FOLDER/source. Objects stay in FOLDER/objects. With HOST=aarch64-linux-gnu in the
# environment, it builds packages for arm64.
set -Eeuo pipefail
export HOME=${HOME:-~}
export LC_ALL=C

say() { printf 'deb: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

folder=$(realpath -m "$1")
version=$2

# The version of a package for Debian 12 is lower than that for Debian 13, so an upgrade of the system replaces the package.
full_version() {
    local release
    # shellcheck source=/dev/null
    release=$(. /etc/os-release && printf '%s' "$ID${VERSION_ID:-}")
    printf '%s' "$version-1~${release/debian/deb}"
}

copy_sources() {
    rm -rf "$folder/source"
    mkdir -p "$folder/source"
    if [ -e .git ] && git rev-parse >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard
    else
        find . \( -path ./build -o -path ./.git \) -prune -o -type f -print0
    fi | while IFS= read -r -d '' file; do
        [ ! -e "$file" ] || printf '%s\0' "$file"
    done | tar --null --files-from=- -c | tar -x -C "$folder/source"
    cp -r systemd/debian "$folder/source/debian"
}

write_changelog() {
    local date
    date=$(git log -1 --format=%cD 2>/dev/null || date -R -r systemd/CHANGELOG.md)
    sed -e "s|@VERSION@|$(full_version)|; s|@DATE@|$date|" systemd/debian/changelog.in >"$folder/source/debian/changelog"
    rm "$folder/source/debian/changelog.in"
}

main() {
    command -v dh >/dev/null || die "debhelper is missing: apt-get install debhelper lintian"
    mkdir -p "$folder"
    rm -f "$folder"/*.deb "$folder"/*.changes "$folder"/*.buildinfo
    copy_sources
    write_changelog
    # -d: `make` has already checked what the build needs, and knows more places to look for it.
    (cd "$folder/source" && env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS COMMD_OBJECTS="$folder/objects${HOST:+-$HOST}" \
        XDG_CACHE_HOME="${XDG_CACHE_HOME:-$HOME/.cache}" \
        DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-nocheck parallel=$(nproc)}" \
        dpkg-buildpackage --build=binary --no-sign -d ${HOST:+--host-type="$HOST"}) \
        >"$folder/build.log" 2>&1 </dev/null || { tail -30 "$folder/build.log" >&2; die "failed; all of its output: $folder/build.log"; }
    if command -v lintian >/dev/null; then
        # lintian warns when it runs as root.
        lintian --allow-root --fail-on error "$folder"/*.changes >"$folder/lintian.log" 2>&1 || { cat "$folder/lintian.log" >&2; die "lintian has found errors"; }
    else
        say "lintian is not installed: left out"
    fi
    ls "$folder"/*.deb
}
main
