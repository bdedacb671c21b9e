#!/usr/bin/env bash
# What the papers claim and a command of this program shows, run one after the other: the tables, the
# charts, and the time of each, as one page. docs/papers.md says what each claim is.
#
#   bench/papers.sh [small|real]
#
# small: only what takes seconds, with fewer nodes; CI runs it. real: after all models also what is
# measured on real mounts (bench/hycache.sh, three quarters of an hour); needs root and /dev/fuse.
# The rest needs neither.
# OUT is the directory of the page (target/papers), FOREBAY the program (the release build),
# LIMIT_S the longest that one command may take (600; parts of real ones have twice that).
set -euo pipefail
cd "$(dirname "$0")/.."

out=${OUT:-target/papers}
forebay=${FOREBAY:-${CARGO_TARGET_DIR:-target}/release/forebay}
limit_s=${LIMIT_S:-600}
what=${1:-all}
case $what in
all | small) ;;
real)
    [ "$(id -u)" = 0 ] && [ -w /dev/fuse ] || { echo "real mounts need root and /dev/fuse" >&2; exit 5; }
    ;;
*) echo "usage: $0 [small|real]" >&2; exit 2 ;;
esac
mkdir -p "$out"
out=$(cd "$out" && pwd)
page=$out/README.md
failed=0

# section NAME COMMAND...: runs it, and adds what it prints and its charts to the page.
section() {
    local name=$1 from=$SECONDS limit=$limit_s chart
    shift
    [[ $1 != env ]] || limit=$((limit * 2))
    echo "$*" >&2
    {
        echo "## $name"
        echo
        echo "\`$*\`"
        echo
        echo '```'
    } >>"$page"
    [[ $1 != forebay ]] || set -- "$forebay" "${@:2}"
    # Progress of real ones is not for the page.
    if ! timeout "$limit" "$@" >>"$page" 2> >(grep -v '^== ' | tee -a "$page" >&2); then
        echo "failed: $*" | tee -a "$page" >&2
        failed=1
    fi
    echo '```' >>"$page"
    for chart in "$out"/*.svg; do
        [[ -e $chart && $chart -nt $out/.started ]] || continue
        echo "![${chart##*/}](${chart##*/})" >>"$page"
    done
    touch "$out/.started"
    echo "$((SECONDS - from)) s" >>"$page"
    echo >>"$page"
}

# show NAME ARGUMENT...: a model of the program. A name with .svg has a chart.
show() {
    local name=${1%.svg} chart=${1##*.}
    shift
    local words=("$@")
    [[ $chart != svg ]] || words+=(--plot "$out/$name.svg")
    section "$name" forebay "${words[@]}"
}

# measured PART...: parts of bench/hycache.sh
measured() {
    local part
    for part in "$@"; do
        section "hycache-$part" env RESULTS="$out" FOREBAY="$(realpath "$forebay")" SKIP_BUILD=1 bench/hycache.sh "$part"
    done
}

rm -f "$out"/*.svg
touch "$out/.started"
echo "# The papers' claims, run again" >"$page"
echo >>"$page"
few=()
[[ $what != small ]] || few=(--nodes 16)
show 29x.svg sim paper-29x "${few[@]}"
show 29x-volume.svg sim paper-29x --figure volume "${few[@]}"
show cluster sim cluster
show hot-file sim schedule --figure hot-file
show prefetch.svg sim streams --figure prefetch
show groups.svg sim streams --figure groups
show gains.svg sim streams --figure gains
show flash-8.svg sim coop --figure flash-8
if [[ $what != small ]]; then
    show throughput.svg sim streams --figure throughput
    show startup.svg sim streams --figure startup
    show admitted sim streams --figure admitted --placements 10
    show admitted-statistical sim streams --figure admitted --placements 30 --statistical 4
    show window.svg sim coop --figure window
    show btio-a.svg sim coop --figure btio-a
    show btio-b.svg sim coop --figure btio-b
    show flash-16.svg sim coop --figure flash-16
    show skew.svg sim schedule --figure skew
    show migrate sim migrate
    show migrate-rounds sim migrate --figure rounds
    show migrate-nodes.svg sim migrate --figure nodes --nodes 2,4,8,16
fi
[[ $what != real ]] || measured table2 blocks procs ram copy sort tpch swap
rm -f "$out/.started"
echo "$page"
exit "$failed"
