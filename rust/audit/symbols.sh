#!/bin/sh
# Compares what the signal handler needs from outside with symbols.txt, in both directions: a new symbol is a new thing
# that runs in a dying process, a missing one means that the audit no longer links the handler.
# All of symbols.txt is in signal-safety(7), or is a bare system call (dup3, mmap, munmap, prctl, syscall), or touches
# memory of its own alone (bcmp, memcpy, memset, sigaddset, __errno_location).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
cargo build --quiet --locked --profile audit -p firstfault-audit
objects=$(mktemp -d)
trap 'rm -r "$objects"' EXIT
archive=$(cd "$target/audit" && pwd)/libfirstfault_audit.a
# The archive holds compiler-builtins too; the handler is in the one object of this crate.
(cd "$objects" && ar x "$archive" "$(ar t "$archive" | grep '^firstfault_audit')")
nm --undefined-only --format=just-symbols "$objects"/*.o | LC_ALL=C sort -u >"$objects/found"
if ! diff "$here/symbols.txt" "$objects/found" >"$objects/difference"; then
    echo "The signal handler needs other symbols than rust/audit/symbols.txt lists (< listed, > found):"
    cat "$objects/difference"
    exit 1
fi
echo "symbol audit: $(wc -l <"$here/symbols.txt") symbols, all listed"
