#!/usr/bin/env bash
# What the papers claim and a command of this program shows, run one after the other: the tables, the
# charts, and the time of each, as one page. docs/papers.md says what each claim is.
#
#   bench/papers.sh [small]
#
# small: only what takes seconds. Needs neither root nor mounts.
# OUT is the directory of the page (target/papers), FOREBAY the program (the release build),
# LIMIT_S the longest that one command may take (600).
set -euo pipefail
cd "$(dirname "$0")/.."

out=${OUT:-target/papers}
forebay=${FOREBAY:-${CARGO_TARGET_DIR:-target}/release/forebay}
limit_s=${LIMIT_S:-600}
mkdir -p "$out"
page=$out/README.md
failed=0

# show NAME COMMAND...: runs it, and adds it to the page. A name with .svg has a chart.
show() {
    local name=${1%.svg} chart=${1##*.} from=$SECONDS
    shift
    echo "forebay $*" >&2
    {
        echo "## $name"
        echo
        echo "\`forebay $*\`"
        echo
        echo '```'
    } >>"$page"
    local words=("$@")
    [[ $chart != svg ]] || words+=(--plot "$out/$name.svg")
    if ! timeout "$limit_s" "$forebay" "${words[@]}" >>"$page" 2>&1; then
        echo "failed: forebay $*" | tee -a "$page" >&2
        failed=1
    fi
    echo '```' >>"$page"
    [[ ! -e $out/$name.svg ]] || echo "![$name]($name.svg)" >>"$page"
    echo "$((SECONDS - from)) s" >>"$page"
    echo >>"$page"
}

rm -f "$out"/*.svg
echo "# The papers' claims, run again" >"$page"
echo >>"$page"
show 29x.svg sim paper-29x
show cluster sim cluster
show hot-file sim schedule --figure hot-file
show prefetch.svg sim streams --figure prefetch
show groups.svg sim streams --figure groups
show gains.svg sim streams --figure gains
show flash-8.svg sim coop --figure flash-8
if [[ ${1:-} != small ]]; then
    show throughput.svg sim streams --figure throughput
    show startup.svg sim streams --figure startup
    show admitted sim streams --figure admitted --placements 10
    show admitted-statistical sim streams --figure admitted --placements 30 --statistical 4
    show window.svg sim coop --figure window
    show btio-a.svg sim coop --figure btio-a
    show flash-16.svg sim coop --figure flash-16
    show skew.svg sim schedule --figure skew
    show migrate sim migrate
fi
echo "$page"
exit "$failed"
