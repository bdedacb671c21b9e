#!/bin/bash
# Runs all fuzzers of fusewire's decoders one after the other, and reports executions and coverage.
#
#   crates/fusewire/fuzz/run.sh SECONDS [TARGET]...     SECONDS for each target; all of them
#
# Needs cargo-fuzz (`cargo install cargo-fuzz --locked`) and a C++ compiler. Works with a stable
# toolchain too. SANITIZER: address (the default, if the toolchain has it) or none. What is found
# lies in artifacts/TARGET; what is learnt stays in corpus/TARGET, where the next run goes on.
#
# Prints a line for each target: executions, executions a second, covered edges (of those that the
# build has), features, inputs in the corpus. Exit code 1 after a finding.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

SECONDS_EACH=${1:?"usage: run.sh SECONDS [TARGET]..."}
shift
TARGETS=("$@")
[ ${#TARGETS[@]} -gt 0 ] || TARGETS=(request requests init entry)
TRIPLE=$(rustc -vV | sed -n 's/^host: //p')
# Sanitizers are an unstable option of the compiler, also where it is a stable one.
export RUSTC_BOOTSTRAP=1 CARGO_TERM_COLOR=never
LOGS=$(mktemp -d)
trap 'rm -rf "$LOGS"' EXIT

builds() { cargo fuzz build -s "$1" request >"$LOGS/build" 2>&1; }
if [ -z "${SANITIZER:-}" ]; then
    SANITIZER=address
    builds address || SANITIZER=none
fi
echo "sanitizer: $SANITIZER" >&2
cargo fuzz build -s "$SANITIZER" >"$LOGS/build" 2>&1 || { cat "$LOGS/build" >&2; exit 1; }
cargo run -q --release --target "$TRIPLE" --target-dir target/seeds --bin seeds -- corpus

status=0
printf '%-10s %14s %10s %16s %9s %8s\n' target executions "per second" "edges" features corpus
for target in "${TARGETS[@]}"; do
    log=$LOGS/$target
    cargo fuzz run -s "$SANITIZER" "$target" -- -max_total_time="$SECONDS_EACH" -max_len=4096 \
        -print_final_stats=1 -timeout=10 >"$log" 2>&1 || { status=1; tail -40 "$log" >&2; }
    stat() { sed -n "s/^stat::$1: *//p" "$log"; }
    last=$(grep -E '^#[0-9]+.* cov: ' "$log" | tail -1)
    field() { sed -n "s/.* $1: \([0-9]*\).*/\1/p" <<<"$last"; }
    all=$(sed -n 's/^INFO: Loaded .* (\([0-9]*\) inline 8-bit counters).*/\1/p' "$log" | head -1)
    printf '%-10s %14s %10s %16s %9s %8s\n' "$target" "$(stat number_of_executed_units)" \
        "$(stat average_exec_per_sec)" "$(field cov) of ${all:-?}" "$(field ft)" \
        "$(find "corpus/$target" -type f | wc -l)"
done
exit $status
