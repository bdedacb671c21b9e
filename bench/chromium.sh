#!/bin/bash
# A video in a headless Chromium, played from `forebay stream serve` on an emulated disk at the rate
# that the service gives it, with a seek on the way.
#
#   bench/chromium.sh
#
# Environment: SECONDS_LONG (of the video, 20), EMULATE (table1), SKIP_BUILD, WORK_DIR (a new
# directory in /var/tmp). Installs Chromium and ffmpeg if they are missing. Exit code 1 if the player
# had to wait after it had begun to play, other than for the seek, or the service counted a glitch.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

LONG=${SECONDS_LONG:-20}
PORT=${PORT:-8483}
DIR=${WORK_DIR:-$(mktemp -d /var/tmp/forebay-chromium.XXXXXX)}
SERVER= BROWSER=

DIRS=("$DIR")
stop() {
    local pid
    for pid in $BROWSER $SERVER; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

need ffmpeg ffmpeg
need curl curl
need chromium chromium
build
export FOREBAY_RUNTIME_DIR=$DIR/run
mkdir -p "$DIR/films" "$DIR/run" "$DIR/user"

say "a video of $LONG s"
ffmpeg -loglevel error -f lavfi -i testsrc2=size=640x360:rate=24 -f lavfi -i sine -t "$LONG" \
    -c:v libx264 -preset ultrafast -b:v 1500k -pix_fmt yuv420p -c:a aac -movflags +faststart "$DIR/films/a.mp4"
bytes=$(stat -c %s "$DIR/films/a.mp4")
# A fifth more than it needs on average.
rate=$((bytes * 8 * 6 / LONG / 5))

"$FOREBAY" stream serve "$DIR/films" --listen 127.0.0.1:$PORT --emulate "${EMULATE:-table1}" --memory 32M \
    --beginnings 4M --state-dir "$DIR/run" --log-level warn >"$DIR/server.log" 2>&1 &
SERVER=$!
for _ in $(seq 50); do curl -sI "http://127.0.0.1:$PORT/a.mp4" >/dev/null && break; sleep 0.1; done

# What the player sees goes to its console: waits before and after the seek, frames, the end.
cat >"$DIR/page.html" <<HTML
<video id=v muted src="http://127.0.0.1:$PORT/a.mp4?rate=$rate"></video>
<script>
const begun = performance.now(), v = document.getElementById('v');
let started = 0, waits = 0, seeking = false, sought = false;
const tell = (what) => console.log('FOREBAY ' + what + ' at_ms=' + Math.round(performance.now() - begun) +
    ' media_s=' + v.currentTime.toFixed(2));
v.onplaying = () => { if (!started) { started = 1; tell('started'); } };
v.onwaiting = () => { if (started && !seeking) { waits++; tell('waits'); } };
v.onseeked = () => { seeking = false; tell('sought'); };
v.ontimeupdate = () => {
    if (!sought && v.currentTime > 5) { sought = seeking = true; v.currentTime = $LONG * 0.6; }
};
v.onerror = () => tell('failed: ' + v.error.message);
v.onended = () => {
    const q = v.getVideoPlaybackQuality();
    tell('ended waits=' + waits + ' frames=' + q.totalVideoFrames + ' dropped=' + q.droppedVideoFrames);
};
v.play();
</script>
HTML
say "playing at $rate bits a second"
timeout -k 10 $((LONG * 2 + 60)) chromium --headless --no-sandbox --disable-gpu --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync \
    --autoplay-policy=no-user-gesture-required --enable-logging=stderr --user-data-dir="$DIR/user" \
    --remote-debugging-port=0 "file://$DIR/page.html" >"$DIR/browser.log" 2>&1 &
BROWSER=$!
while kill -0 "$BROWSER" 2>/dev/null && ! grep -qs "FOREBAY \(ended\|failed\)" "$DIR/browser.log"; do sleep 0.5; done
grep -o 'FOREBAY [^"]*' "$DIR/browser.log" || tail -5 "$DIR/browser.log"
status=$(timeout 10 "$FOREBAY" stream status --json | tr -d ' \n')
glitches=$(echo "$status" | grep -o '"glitches":{[^}]*}')
say "the service: $glitches, $(echo "$status" | grep -o '"opened":[0-9]*')"
grep -q "FOREBAY ended waits=0 " "$DIR/browser.log" && [ "$glitches" = '"glitches":{}' ]
