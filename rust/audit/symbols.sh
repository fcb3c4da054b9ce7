#!/bin/sh
# symbols.sh [FEATURE]
# Compares what the signal handler needs from outside with symbols.txt, in both directions: a new symbol is a new thing
# that runs in a dying process, a missing one means that the audit no longer links the handler.
# All of symbols.txt is in signal-safety(7), or is a bare system call (clone, mmap, munmap, prctl, syscall), or touches
# memory of its own alone (bcmp, memcpy, memset, sigaddset, __errno_location).
# The unwinder runs after the first commit, in a guarded stage. Its list has firstfault_panic_reached too: gimli indexes
# into tables, and a panic there is the end of that stage.
# With the feature `broken` the handler's audit must fail: tests/test_symbol_audit.py sees to that.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}

# audit NAME LIST WHAT [FEATURE]
audit() {
    cargo build --quiet --locked --profile audit -p "firstfault-$1" ${4:+--features "$4"}
    objects=$(mktemp -d)
    trap 'rm -r "$objects"' EXIT
    library=$(echo "firstfault-$1" | tr - _)
    archive=$(cd "$target/audit" && pwd)/lib$library.a
    # The archive holds compiler-builtins too; the code is in the one object of this crate.
    (cd "$objects" && ar x "$archive" "$(ar t "$archive" | grep "^$library-")")
    nm --undefined-only --format=just-symbols "$objects"/*.o | LC_ALL=C sort -u >"$objects/found"
    if ! diff "$2" "$objects/found" >"$objects/difference"; then
        echo "$3 needs other symbols than $2 lists (< listed, > found):"
        cat "$objects/difference"
        exit 1
    fi
    echo "symbol audit: $3: $(wc -l <"$2") symbols, all listed"
    rm -r "$objects"
}

audit audit "$here/symbols.txt" "the signal handler" "$@"
audit audit-unwind "$here/unwind/symbols.txt" "the unwinder"
trap - EXIT
