#!/usr/bin/env bash
# Installs the packages with which commd is built and tested, and says how to compile with them.
#
#   install-deps.sh [FILE]          install and build what is missing; FILE gets the make variables that a build needs
#   install-deps.sh --check [FILE]  install nothing: name all that is missing, and fail
#   install-deps.sh --tests         also install what the tests of the Python package need
#   install-deps.sh --bench         also install what the benchmark's peers need
#   install-deps.sh --packages      also install what `make deb` needs
#
# Most of it is Debian packages. The script never replaces a package that the system has. It chooses versions that match the
# installed ones. If a -dev package has no such version, and would upgrade a library, the script unpacks it into the cache instead.
# If the system's OpenSSL and ngtcp2 are too old, it builds private static libraries from Debian's own source packages.
# The cache is ${XDG_CACHE_HOME:-~/.cache}/commd. A second run, even from another clone, is instant.
set -Eeuo pipefail
export LC_ALL=C

openssl_needed=3.5
ngtcp2_needed=1.24.0
# Suites of Debian that have the sources, best first: ngtcp2 moves between them.
openssl_suites=(trixie forky sid)
ngtcp2_suites=(forky trixie-backports sid)
build_revision=3 # grows when the options of the private build change

packages=(libc6-dev make pkg-config python3 iproute2 protobuf-c-compiler scdoc
    libevent-dev libprotobuf-c-dev libcmocka-dev libconfig-dev libhwloc-dev libjansson-dev libncurses-dev libsystemd-dev uthash-dev systemtap-sdt-dev)
test_packages=(python3-numpy python3-pytest python3-venv) # of the tests of the Python package
bench_packages=(openmpi-bin libopenmpi-dev libgloo-dev iperf3 g++ iproute2 python3-venv)
package_packages=(dpkg-dev debhelper dh-python lintian)
private_build_packages=(dpkg-dev debian-archive-keyring)

say() { printf 'deps: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

export HOME=${HOME:-~} # services and containers may have none; then ~ is the user's folder in /etc/passwd
cache=${XDG_CACHE_HOME:-$HOME/.cache}/commd
# shellcheck source=/dev/null
release=$(. /etc/os-release && printf '%s' "$ID-${VERSION_CODENAME:-unknown}")-${HOST:-$(uname -m)}
unpacked=$cache/packages-$release # one folder for each -dev package that is not installed but unpacked
compiler=${HOST:+$HOST-gcc} # for HOST=aarch64-linux-gnu, say, another compiler; and its packages are the caller's to install
compiler=${compiler:-cc} # C has one ABI: the libraries serve every compiler that the project is built with
private_libraries= # the folder of OpenSSL and ngtcp2, once the compiler is known

# ---- what the system has

system_is_enough() {
    ${HOST:+$HOST-}pkg-config --exists "libssl >= $openssl_needed" "libcrypto >= $openssl_needed" "libngtcp2 >= $ngtcp2_needed" \
        libngtcp2_crypto_ossl 2>/dev/null
}

name_private_libraries() {
    local version key
    version=$($compiler --version 2>/dev/null | head -1 || true)
    key=$(printf '%s %s %s %s' "$build_revision" "$openssl_needed" "$ngtcp2_needed" "$version $release" | sha256sum)
    private_libraries=$cache/deps-${key:0:16}
}

# A build folder remembers its libraries, so that `sudo make install` does not build them again for root.
recall_private_libraries() {
    local known
    known=$(sed -n 's/^DEPS_PREFIX := \(.*\/deps-.*\)$/\1/p' "$1" 2>/dev/null || true)
    if [ -n "$known" ] && [ -d "$known" ]; then
        private_libraries=$known
    fi
}

find_missing() {
    missing=()
    [ -z "${HOST:-}" ] || return 0
    local wanted=("${packages[@]}") installed package native
    command -v cc >/dev/null || wanted+=(gcc)
    if ! system_is_enough && [ ! -d "$private_libraries" ]; then
        wanted+=("${private_build_packages[@]}")
    fi
    native=$(dpkg --print-architecture 2>/dev/null || true)
    installed=" $(dpkg-query -W -f '${db:Status-Status} ${Package}:${Architecture} ' "${wanted[@]}" 2>/dev/null || true)"
    for package in "${wanted[@]}"; do
        case "$installed" in *" installed $package:$native "* | *" installed $package:all "*) continue ;; esac
        [ -d "$unpacked/$package" ] && continue
        case $package in
        make | python3 | pkg-config) command -v "$package" >/dev/null && continue ;;
        iproute2) [ -x /sbin/ip ] || [ -x /usr/sbin/ip ] || command -v ip >/dev/null && continue ;;
        *) ;;
        esac
        missing+=("$package")
    done
}

# ---- Debian packages

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "to install ${missing[*]}, be root or have sudo; or: apt-get install ${missing[*]}"
    fi
}

apt_install_options=(--no-install-recommends --no-upgrade --no-remove)

simulate() { apt-get install --simulate -qq "${apt_install_options[@]}" "$@"; }

# Sets request to $@. If the newest version of a package would upgrade an installed one, and the mirror still has the matching
# version, request names that version. Sets replaced to the packages that would still be upgraded or removed. Succeeds if there
# are none.
match_versions() {
    local plan package old new companion known
    request=("$@")
    while :; do
        plan=$(simulate "${request[@]}") || die "apt cannot install ${request[*]}: $plan"
        replaced=$(sed -nE 's/^Inst ([^ ]+) \[.*/\1/p; s/^Remv ([^ ]+).*/\1/p' <<<"$plan" | tr '\n' ' ')
        [ -n "$replaced" ] || return 0
        known=${#request[@]}
        while read -r package old new; do
            # New packages of that version mostly come from the same source: these ask for the upgrade.
            for companion in $(awk -v version="($new" '$1 == "Inst" && $3 == version { print $2 }' <<<"$plan"); do
                case " ${request[*]} " in *" $companion="*) continue ;; esac
                if apt-cache madison "$companion" | awk -F ' *[|] *' -v old="$old" '$2 == old { found = 1 } END { exit !found }'; then
                    request+=("$companion=$old")
                fi
            done
        done < <(sed -nE 's/^Inst ([^ ]+) \[([^]]+)\] \(([^ ]+) .*/\1 \2 \3/p' <<<"$plan")
        [ ${#request[@]} -gt "$known" ] || return 1
    done
}

# Unpacks the -dev package $1 into the cache, for the installed runtime libraries: the linker's names then point to their
# sonames. If one library is not installed, removes all of these names, so that programs link the package's static libraries.
# Fails if the package has none.
unpack_package() {
    local package=$1 work linker_name folder soname whole=yes
    work=$(mktemp -d "$cache/package-XXXXXX")
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2 && dpkg-deb -x ./*.deb files) || return 1
    while read -r linker_name; do
        folder=$(dirname "${linker_name#"$work/files"}")
        soname=$(readlink "$linker_name" | sed -nE 's|^(.*/)?([^/]+\.so\.[0-9]+).*|\2|p')
        if [ -n "$soname" ] && [ -e "$folder/$soname" ]; then
            ln -sfn "$folder/$soname" "$linker_name"
        else
            whole=no
        fi
    done < <(find "$work/files" -name '*.so' -type l)
    if [ $whole = no ]; then
        find "$work/files" -name '*.so' -type l -delete
        [ -n "$(find "$work/files" -name '*.a')" ] || { rm -rf "$work"; return 1; }
    fi
    mkdir -p "$unpacked"
    rm -rf "${unpacked:?}/$package"
    mv "$work/files" "$unpacked/$package"
    rm -rf "$work"
}

install_packages() {
    local to_install=() package request replaced
    command -v apt-get >/dev/null || die "this is not Debian; install the equivalents of: ${missing[*]}"
    say "missing: ${missing[*]}"
    as_root apt-get update -qq >&2 || say "apt-get update had errors; going on with the lists that are there"
    if ! match_versions "${missing[@]}"; then
        for package in "${missing[@]}"; do
            if [[ $package == lib*-dev ]] && ! match_versions "$package" && unpack_package "$package"; then
                say "$package is unpacked into $unpacked: to install it would upgrade $replaced"
            else
                to_install+=("$package")
            fi
        done
        [ ${#to_install[@]} != 0 ] || return 0
        match_versions "${to_install[@]}" || die "to install ${to_install[*]} would upgrade or remove ${replaced}and is left to you:
deps:   apt-get install --no-install-recommends ${to_install[*]}"
    fi
    say "installing ${request[*]}"
    # Several runs at once wait for each other.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
        "${apt_install_options[@]}" "${request[@]}" >&2 </dev/null
}

# ---- OpenSSL and ngtcp2 from Debian's sources

# The machine's own mirrors of its Debian release, from both forms of apt's source lists.
mirrors() {
    local codename
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    {
        cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk -v RS= -v codename="$codename" '{
            uris = suites = ""
            count = split($0, lines, "\n")
            for (i = 1; i <= count; i++) {
                if (lines[i] ~ /^URIs:/) { uris = substr(lines[i], 6) }
                if (lines[i] ~ /^Suites:/) { suites = substr(lines[i], 8) " " }
            }
            if (index(" " suites, " " codename " ") || index(suites, " stable ")) { print uris }
        }' || true
        cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
            sed -nE "s/^deb[[:space:]]+(\[[^]]*\][[:space:]]+)?([^[:space:]]+)[[:space:]]+($codename|stable)[[:space:]].*/\2/p" || true
    } | tr -s '[:space:]' '\n' | awk 'NF && !seen[$0]++'
}

# Downloads the source package $1, at least version $2, into the current folder, which is empty. Takes it from the first suite
# that has it. The lists of a mirror that is no longer updated are past their date: they are used if no mirror has newer ones.
fetch_source() {
    local package=$1 needed=$2
    shift 2
    fetch_source_checked "$package" "$needed" true "$@" || {
        say "no list of $* that is up to date has the source of $package: one past its date will do"
        fetch_source_checked "$package" "$needed" false "$@"
    } || die "no suite of $* offers the source of $package >= $needed; the machine's mirrors: $(mirrors | tr '\n' ' ')"
}

# The private apt configuration does not change the system's lists. apt checks the signature of the lists, and with the lists
# each file. $3: whether the lists have to be up to date.
fetch_source_checked() {
    local package=$1 needed=$2 check_date=$3 suite mirror private keyring
    shift 3
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e $keyring ] || keyring=${keyring%.gpg}.pgp
    for suite in "$@"; do
        for mirror in $(mirrors); do
            private=$(mktemp -d "$work/apt-XXXXXX")
            mkdir -p "$private/lists/partial" "$private/cache/archives/partial" "$private/sources"
            printf '%s\n' "Types: deb-src" "URIs: $mirror" "Suites: $suite" "Components: main" "Signed-By: $keyring" \
                >"$private/sources/debian.sources"
            printf '%s "%s";\n' Dir::State::Lists "$private/lists" Dir::Cache "$private/cache" \
                Dir::Etc::SourceParts "$private/sources" Dir::Etc::SourceList /dev/null APT::Sandbox::User "" \
                Acquire::Check-Valid-Until "$check_date" \
                >"$private/apt.conf"
            if APT_CONFIG=$private/apt.conf apt-get update -qq >&2 &&
                APT_CONFIG=$private/apt.conf fetch_listed_version "$package" "$needed"; then
                return
            fi
            say "$suite on $mirror does not offer the source of $package"
        done
    done
    return 1
}

# While one version replaces another, a suite lists both, and a mirror may have the list before the files. So this takes the
# newest version that can be downloaded.
fetch_listed_version() {
    local package=$1 needed=$2 version
    for version in $(apt-cache showsrc --only-source "$package" | sed -n 's/^Version: //p' | sort -Vru); do
        dpkg --compare-versions "$version" ge "$needed" || continue
        apt-get source --download-only -qq "$package=$version" >&2 && return
        say "the mirror lists $package $version, but does not have its files"
        find . -mindepth 1 -delete
    done
    return 1
}

run_logged() {
    local log=$1
    shift
    "$@" >>"$log" 2>&1 </dev/null || { tail -20 "$log" >&2; die "failed: $*; all of its output: $log"; }
}

build_openssl() {
    local log=$work/openssl.log target
    target=linux-${HOST:-$(uname -m)}
    target=${target%-linux-gnu}
    cd "$work/openssl"
    run_logged "$log" dpkg-source --no-check -x ./*.dsc source # apt has checked the files
    cd source
    say "building OpenSSL, for a minute or two"
    # It uses the system's configuration (/usr/lib/ssl in Debian), not a folder below a user's home.
    run_logged "$log" env CC=$compiler ./Configure "$target" --prefix="$private_libraries" --libdir=lib --openssldir=/usr/lib/ssl \
        no-shared no-tests no-docs no-apps no-legacy no-module no-dtls no-comp no-engine
    run_logged "$log" make -j"$(nproc)" build_libs
    run_logged "$log" make install_dev DESTDIR="$work/root"
}

build_ngtcp2() {
    local log=$work/ngtcp2.log built=$work/root$private_libraries
    cd "$work/ngtcp2"
    run_logged "$log" dpkg-source --no-check -x ./*.dsc source
    cd source
    say "building ngtcp2"
    run_logged "$log" ./configure CC=$compiler CFLAGS="-O2 -g -fPIC" PKG_CONFIG_PATH="$built/lib/pkgconfig" \
        OPENSSL_CFLAGS="-I$built/include" OPENSSL_LIBS="-L$built/lib -lssl -lcrypto -ldl -pthread" \
        ${HOST:+--host="$HOST"} --prefix="$private_libraries" --enable-lib-only --with-openssl --disable-shared --enable-static
    run_logged "$log" make -j"$(nproc)"
    run_logged "$log" make install DESTDIR="$work/root"
    [ -e "$built/lib/libngtcp2_crypto_ossl.a" ] || die "ngtcp2 was built without its OpenSSL backend: $log"
}

build_private_libraries() {
    rm -rf "$cache"/build-* # of runs that failed or were stopped: this one holds the lock
    work=$(mktemp -d "$cache/build-XXXXXX")
    say "building OpenSSL and ngtcp2 once for this machine, into $private_libraries"
    mkdir "$work/openssl" "$work/ngtcp2"
    (cd "$work/openssl" && fetch_source openssl "$openssl_needed" "${openssl_suites[@]}")
    (cd "$work/ngtcp2" && fetch_source ngtcp2 "$ngtcp2_needed" "${ngtcp2_suites[@]}")
    (build_openssl)
    (build_ngtcp2)
    mv "$work/root$private_libraries" "$private_libraries"
    rm -rf "$work"
}

# ---- what a build needs to know

print_variables() {
    local cppflags="" ldflags="" package folder quic crypto prefix=""
    for package in "${packages[@]}"; do
        [ -d "$unpacked/$package" ] || continue
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] && continue
        for folder in "$unpacked/$package"/usr/include "$unpacked/$package"/usr/include/*-linux-gnu*; do
            [ -d "$folder" ] && cppflags+=" -isystem $folder"
        done
        for folder in "$unpacked/$package"/usr/lib/*-linux-gnu*; do
            [ -d "$folder" ] && ldflags+=" -L$folder"
        done
    done
    if system_is_enough; then
        quic=$(pkg-config --libs libngtcp2_crypto_ossl libngtcp2 libssl libcrypto)
        crypto=$(pkg-config --libs libcrypto)
        cppflags+=" $(pkg-config --cflags libngtcp2_crypto_ossl libngtcp2 libssl libcrypto)"
    else
        prefix=$private_libraries
        cppflags+=" -isystem $prefix/include"
        ldflags+=" -L$prefix/lib"
        quic="-lngtcp2_crypto_ossl -lngtcp2 -l:libssl.a -l:libcrypto.a -ldl"
        crypto="-l:libcrypto.a -ldl"
    fi
    printf '%s\n' "DEPS_PREFIX := ${prefix:-system}" "DEPS_CPPFLAGS :=$cppflags" "DEPS_LDFLAGS :=$ldflags" \
        "QUIC_LIBS := $quic" "CRYPTO_LIBS := $crypto"
}

trap 'say "stopped at line $LINENO of $0"' ERR

main() {
    local check=no variables=
    if [ "${1:-}" = --check ]; then
        check=yes
        shift
    fi
    if [ "${1:-}" = --tests ]; then
        packages+=("${test_packages[@]}")
        shift
    fi
    if [ "${1:-}" = --bench ]; then
        packages+=("${bench_packages[@]}")
        shift
    fi
    if [ "${1:-}" = --packages ]; then
        packages+=("${package_packages[@]}")
        shift
    fi
    variables=${1:-}
    name_private_libraries
    [ -z "$variables" ] || recall_private_libraries "$variables"
    find_missing
    if [ $check = yes ]; then
        [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]} (make deps installs them)"
        system_is_enough || [ -d "$private_libraries" ] ||
            die "missing: OpenSSL >= $openssl_needed and ngtcp2 >= $ngtcp2_needed (make deps builds them)"
    elif [ ${#missing[@]} != 0 ] || { ! system_is_enough && [ ! -d "$private_libraries" ]; }; then
        mkdir -p "$cache"
        exec 9>"$cache/lock"
        flock --nonblock 9 || { say "waiting for another run"; flock 9; }
        find_missing
        [ ${#missing[@]} = 0 ] || install_packages
        name_private_libraries # the compiler may have come with the packages
        if ! system_is_enough && [ ! -d "$private_libraries" ]; then
            build_private_libraries
        fi
    fi
    if [ -z "$variables" ]; then
        print_variables
    else
        mkdir -p "$(dirname "$variables")"
        print_variables | cmp -s - "$variables" || print_variables >"$variables"
    fi
}
main "$@"
