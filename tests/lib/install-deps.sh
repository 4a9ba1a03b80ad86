#!/usr/bin/env bash
# Installs what commd is built and tested with: Debian packages for most of it; where the system's OpenSSL and ngtcp2 are too
# old, private static libraries from Debian's own source packages, in a cache outside the work tree. Nothing that the system has is
# replaced or upgraded. A second run is instant. Prints the folder of the private libraries (empty: the system's are used).
#
#   install-deps.sh           install and build what is missing
#   install-deps.sh --prefix  only print the folder that a build uses
set -euo pipefail

openssl_needed=3.5
ngtcp2_needed=1.22.1
# Source suites, best first: ngtcp2 moves between them.
openssl_suites=(trixie forky sid)
ngtcp2_suites=(forky trixie-backports sid)
build_revision=1 # grows when the options of the private build change

packages=(gcc make pkg-config cmake dpkg-dev python3 iproute2 ca-certificates
    libevent-dev libprotobuf-c-dev protobuf-c-compiler libcmocka-dev libconfig-dev libjansson-dev
    libsystemd-dev uthash-dev scdoc)

say() { printf '%s\n' "deps: $*" >&2; }
die() { say "$*"; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "root or sudo is needed to install: ${missing[*]}"
    fi
}

install_packages() {
    missing=()
    local package
    for package in "${packages[@]}"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            case $package in
            gcc) command -v cc >/dev/null && continue ;;
            make | cmake | python3) command -v "$package" >/dev/null && continue ;;
            pkg-config) command -v pkg-config >/dev/null && continue ;;
            *) ;;
            esac
            missing+=("$package")
        fi
    done
    [ ${#missing[@]} = 0 ] && return
    say "installing ${missing[*]}"
    as_root apt-get update -qq >&2
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-upgrade \
        "${missing[@]}" >&2
}

system_is_enough() {
    pkg-config --exists "openssl >= $openssl_needed" "libngtcp2 >= $ngtcp2_needed" libngtcp2_crypto_ossl 2>/dev/null
}

compiler=${CC:-cc}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/commd
key=$(printf '%s %s %s %s' "$build_revision" "$openssl_needed" "$ngtcp2_needed" \
    "$($compiler --version 2>/dev/null | head -1) $(uname -m)" | sha256sum | cut -c1-16)
prefix=$cache/deps-$key

# The deb822 sources that the private apt reads: the machine's own mirrors, other suites, signed as Debian signs.
write_sources() {
    local uris
    uris=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed -n 's/^URIs:[[:space:]]*//p' | tr ' ' '\n' |
        grep -v security | sort -u | head -1 || true)
    if [ -z "$uris" ]; then
        uris=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
            sed -nE 's/^deb[[:space:]]+(\[[^]]*\][[:space:]]+)?([^[:space:]]+).*/\2/p' | grep -v security | sort -u |
            head -1 || true)
    fi
    [ -n "$uris" ] || die "no Debian mirror found in /etc/apt/sources.list*"
    local suite
    for suite in "$@"; do
        printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n' \
            "$uris" "$suite"
    done
}

# Downloads the source package $1 from the first of the suites that has it, into the current folder.
fetch_source() {
    local package=$1 suite
    shift
    for suite in "$@"; do
        mkdir -p "$work/apt/$suite/lists/partial" "$work/apt/$suite/cache/archives/partial" "$work/apt/$suite/parts"
        write_sources "$suite" >"$work/apt/$suite/parts/private.sources"
        cat >"$work/apt/$suite/apt.conf" <<CONF
Dir::State::Lists "$work/apt/$suite/lists";
Dir::Cache "$work/apt/$suite/cache";
Dir::Etc::SourceParts "$work/apt/$suite/parts";
Dir::Etc::SourceList "/dev/null";
APT::Sandbox::User "";
CONF
        if APT_CONFIG="$work/apt/$suite/apt.conf" apt-get update -qq >&2 &&
            APT_CONFIG="$work/apt/$suite/apt.conf" apt-get source --download-only -qq "$package/$suite" >&2; then
            return 0
        fi
        say "$package is not to be had from $suite"
    done
    die "no suite offers the source of $package"
}

build_openssl() {
    mkdir -p "$work/openssl" && cd "$work/openssl"
    fetch_source openssl "${openssl_suites[@]}"
    dpkg-source --no-check -x ./*.dsc src >&2
    cd src
    say "building OpenSSL (about a minute)"
    CC=$compiler ./Configure "linux-$(uname -m)" --prefix="$stage" --libdir=lib no-shared no-tests no-docs no-apps no-legacy no-module \
        no-dtls no-comp no-engine >"$work/openssl.log" 2>&1 || die "OpenSSL: see $work/openssl.log"
    make -j"$(nproc)" build_libs >>"$work/openssl.log" 2>&1 || die "OpenSSL: see $work/openssl.log"
    make install_dev >>"$work/openssl.log" 2>&1 || die "OpenSSL: see $work/openssl.log"
}

build_ngtcp2() {
    mkdir -p "$work/ngtcp2" && cd "$work/ngtcp2"
    fetch_source ngtcp2 "${ngtcp2_suites[@]}"
    dpkg-source --no-check -x ./*.dsc src >&2
    say "building ngtcp2"
    PKG_CONFIG_PATH="$stage/lib/pkgconfig" cmake -S src -B build -DCMAKE_INSTALL_PREFIX="$stage" -DCMAKE_INSTALL_LIBDIR=lib \
        -DCMAKE_C_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_PREFIX_PATH="$stage" -DOPENSSL_ROOT_DIR="$stage" \
        -DOPENSSL_USE_STATIC_LIBS=ON -DENABLE_LIB_ONLY=ON -DENABLE_OPENSSL=ON -DENABLE_STATIC_LIB=ON -DENABLE_SHARED_LIB=OFF \
        >"$work/ngtcp2.log" 2>&1 || die "ngtcp2: see $work/ngtcp2.log"
    cmake --build build -j"$(nproc)" --target install >>"$work/ngtcp2.log" 2>&1 || die "ngtcp2: see $work/ngtcp2.log"
}

build_private() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    [ -e "$prefix/complete" ] && return
    work=$(mktemp -d "$cache/build-XXXXXX")
    # pkg-config files name the final folder, so the build installs there and a mark says that it is whole.
    stage=$prefix
    rm -rf "$prefix"
    say "building OpenSSL and ngtcp2 once for this machine, into $prefix"
    (build_openssl)
    (build_ngtcp2)
    touch "$prefix/complete"
    rm -rf "$work"
}

main() {
    if [ "${1:-}" != --prefix ]; then
        install_packages
        if ! system_is_enough && [ ! -e "$prefix/complete" ]; then
            build_private
        fi
    fi
    if system_is_enough; then
        echo
    else
        echo "$prefix"
    fi
}
main "$@"
