#!/usr/bin/env bash
# Everything that a change should pass: the README's test command; the lint; the unit tests, simulations and corpora under
# AddressSanitizer and UBSan; and the unit tests with threads under ThreadSanitizer. It runs every part, even if one has
# failed, and fails if one did. At its end it shows once more what failed in each part. Its last line is that of the tests:
# "N passed, N failed[, N skipped]".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=()

part() {
    local name=$1 began=$SECONDS outcome=fine
    shift
    echo "all: $name: $*"
    "$@" 2>&1 | tee "$scratch/$name" || { outcome=failed failed+=("$name"); }
    echo "all: $name: $outcome after $((SECONDS - began)) s"
}

# The failed tests of a part, as tests/lib/run-tests.py tells them; without any, the last lines.
failures() {
    echo "all: failed: $1"
    grep '^failed: ' "$scratch/$1" || tail -n 20 "$scratch/$1"
}

# On some machines a sanitized program does not start: if the kernel gives addresses more random bits than the sanitizer
# knows (vm.mmap_rnd_bits), or if a container forbids what the sanitizer needs. The addresses are random, so this tries
# several times.
sanitizer_runs() {
    local fixed=() try
    setarch -R true 2>/dev/null && fixed=(setarch -R)
    echo 'int main(void) { return 0; }' |
        ${CC:-cc} "-fsanitize=$1" -fPIE -pie -pthread -x c - -o "$scratch/sanitized" || return
    for try in {1..20}; do
        "${fixed[@]}" "$scratch/sanitized" || { echo "all: try $try: a program with -fsanitize=$1 does not start"; return 1; }
    done
}
sanitized() {
    local name=$1 sanitizer=$2
    shift 2
    if sanitizer_runs "$sanitizer"; then part "$name" "$@"; else echo "all: $name: left out: see above"; fi
}

part tests make test
part lint make lint
# Fewer random cases: a sanitized program takes several times as long.
sanitized memory address,undefined env COMMD_CASES_MOST=200 make check-asan
sanitized threads thread make check-threads
for name in "${failed[@]}"; do failures "$name"; done
for name in tests memory threads; do grep -h '^flaky: ' "$scratch/$name" 2> /dev/null && echo "all: not repeated: $name"; done
tail -n 1 "$scratch/tests"
[ ${#failed[@]} = 0 ]
