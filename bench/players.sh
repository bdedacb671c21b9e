#!/bin/bash
# What players make of `forebay stream serve` on an emulated disk: hls.js and dash.js in a headless
# Chromium, ffmpeg and curl, each with HLS, DASH or a plain MP4 file.
#
#   bench/players.sh
#
# Skips, and says so, what needs a browser if Chromium is missing (apt-get install chromium), and the
# two players if npm has none. Environment: SECONDS_LONG (of the film, 24), EMULATE (table1), BURST (2),
# MODULES (a directory node_modules that has hls.js and dashjs), SKIP_BUILD, WORK_DIR. Exit code 1 if a
# player failed, waited in the middle, stayed at the lower rate, or the service counted a glitch.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

LONG=${SECONDS_LONG:-24}
PORT=${PORT:-8484}
DIR=${WORK_DIR:-$(mktemp -d /var/tmp/forebay-players.XXXXXX)}
MODULES=${MODULES:-$DIR/modules/node_modules}
SITE=http://127.0.0.1:$PORT
SERVER= BROWSER= FAILED=0

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
build
export FOREBAY_RUNTIME_DIR=$DIR/run
mkdir -p "$DIR/films/hls" "$DIR/films/dash" "$DIR/run"

say "films of $LONG s: plain, HLS and DASH with two rates"
SOURCE=(-loglevel error -f lavfi -i testsrc2=size=640x360:rate=24 -f lavfi -i sine -t "$LONG")
CODE=(-c:v libx264 -preset ultrafast -pix_fmt yuv420p -g 48 -keyint_min 48 -sc_threshold 0 -c:a aac)
ffmpeg "${SOURCE[@]}" "${CODE[@]}" -b:v 1500k -movflags +faststart "$DIR/films/a.mp4"
TWO=(-map 0:v -map 1:a -map 0:v -map 1:a -b:v:0 500k -maxrate:v:0 500k -bufsize:v:0 500k -b:v:1 1500k)
ffmpeg "${SOURCE[@]}" "${CODE[@]}" "${TWO[@]}" -f hls -hls_time 2 -hls_playlist_type vod -hls_segment_type fmp4 \
    -var_stream_map "v:0,a:0 v:1,a:1" -master_pl_name master.m3u8 -hls_segment_filename "$DIR/films/hls/%v_%d.m4s" \
    -hls_fmp4_init_filename "init_%v.mp4" "$DIR/films/hls/%v.m3u8"
ffmpeg "${SOURCE[@]}" "${CODE[@]}" -map 0:v -map 0:v -map 1:a -b:v:0 500k -maxrate:v:0 500k -bufsize:v:0 500k \
    -b:v:1 1500k -f dash -seg_duration 2 -adaptation_sets "id=0,streams=v id=1,streams=a" "$DIR/films/dash/a.mpd"

"$FOREBAY" stream serve "$DIR/films" --listen 127.0.0.1:$PORT --emulate "${EMULATE:-table1}" --memory 32M \
    --burst "${BURST:-2}" --cors '*' --state-dir "$DIR/run" --log-level warn --client-rate 0 >"$DIR/server.log" 2>&1 &
SERVER=$!
for _ in $(seq 50); do curl -sI "$SITE/a.mp4" >/dev/null && break; sleep 0.1; done

failed() { say "FAILED: $*"; FAILED=1; }
status() { timeout 10 "$FOREBAY" stream status --json | tr -d ' \n'; }

say "curl: the plain file, a range of it, and a playlist made for it"
curl -sSf "$SITE/a.mp4?rate=16M" | cmp - "$DIR/films/a.mp4" || failed "curl, whole"
curl -sSf -r 1000-1999 "$SITE/a.mp4?rate=16M" | cmp - <(tail -c +1001 "$DIR/films/a.mp4" | head -c 1000) || failed "curl, a range"
curl -sSfL "$SITE/a.mp4.m3u8" | grep -q '#EXT-X-ENDLIST' || failed "curl, playlist"

frames() { ffmpeg -loglevel error -i "$1" -map 0:v:0 -f null -progress - - | grep -o '^frame=.*' | tail -1 | cut -d= -f2; }
for what in a.mp4.m3u8 hls/master.m3u8 dash/a.mpd; do
    got=$(timeout $((LONG * 3 + 30)) bash -c "$(declare -f frames); frames $SITE/$what") || got=none
    say "ffmpeg: $what: ${got:-none} of $((LONG * 24)) frames"
    [ "${got:-0}" -ge $((LONG * 24 - 1)) ] 2>/dev/null || failed "ffmpeg, $what"
done

page() { # NAME SCRIPT SETUP
    cat >"$DIR/$1.html" <<HTML
<video id=v muted></video><script src="file://$2"></script>
<script>
const begun = performance.now(), v = document.getElementById('v');
let started = 0, waits = 0, seeking = false, sought = false, tops = 0;
const tell = (what) => console.log('FOREBAY $1: ' + what + ' at_ms=' + Math.round(performance.now() - begun) +
    ' media_s=' + v.currentTime.toFixed(2));
v.onplaying = () => { if (!started) { started = 1; tell('started'); } };
v.onwaiting = () => { if (started && !seeking && v.currentTime < $LONG - 1) { waits++; tell('waits'); } };
v.onseeked = () => { if (seeking) { seeking = false; tell('sought'); } };
v.ontimeupdate = () => {
    tops = Math.max(tops, v.videoHeight ? level() : 0);
    if (!sought && v.currentTime > $LONG * 0.4) { sought = seeking = true; v.currentTime = $LONG * 0.7; }
};
v.onended = () => {
    const q = v.getVideoPlaybackQuality();
    tell('ended waits=' + waits + ' frames=' + q.totalVideoFrames + ' dropped=' + q.droppedVideoFrames + ' highest=' + tops);
};
let level = () => 0;
$3
v.play();
</script>
HTML
}

play() { # NAME, LEVEL it must reach
    rm -rf "$DIR/user" && mkdir "$DIR/user"
    timeout -k 10 $((LONG * 2 + 60)) chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
        --disable-background-networking --disable-component-update --disable-sync --allow-file-access-from-files \
        --autoplay-policy=no-user-gesture-required --enable-logging=stderr --user-data-dir="$DIR/user" \
        --remote-debugging-port=0 "file://$DIR/$1.html" >"$DIR/$1.log" 2>&1 &
    BROWSER=$!
    while kill -0 "$BROWSER" 2>/dev/null && ! grep -qs "FOREBAY .*\(ended\|failed\)" "$DIR/$1.log"; do sleep 0.5; done
    say "the service meanwhile: $(status | grep -o '"guaranteed":[0-9]*\|"sessions":[0-9]*' | tr '\n' ' ')"
    kill "$BROWSER" 2>/dev/null || true
    wait "$BROWSER" 2>/dev/null || true
    BROWSER=
    grep -o 'FOREBAY [^"]*' "$DIR/$1.log" >&2 || tail -5 "$DIR/$1.log" >&2
    grep -q "FOREBAY $1: ended waits=0 .*highest=$2" "$DIR/$1.log" || failed "$1"
}

if ! command -v chromium >/dev/null; then
    say "SKIPPED: hls.js and dash.js; there is no chromium (apt-get install chromium)"
elif [ ! -f "$MODULES/hls.js/dist/hls.min.js" ] && ! { mkdir -p "$DIR/modules" && npm install --silent --no-save \
    --prefix "$DIR/modules" hls.js@1 dashjs@5 >/dev/null; }; then
    say "SKIPPED: hls.js and dash.js; npm does not have them here"
else
    HLS="const hls = new Hls({ enableWorker: false, startLevel: 0, abrEwmaDefaultEstimate: 300000, maxBufferLength: 8 });
hls.on(Hls.Events.ERROR, (_, e) => { if (e.fatal) tell('failed: ' + e.type + ' ' + e.details); });
level = () => hls.loadLevel; hls.attachMedia(v);"
    page plain "$MODULES/hls.js/dist/hls.min.js" "$HLS hls.loadSource('$SITE/a.mp4.m3u8');"
    play plain 0
    page hls "$MODULES/hls.js/dist/hls.min.js" "$HLS hls.loadSource('$SITE/hls/master.m3u8');"
    play hls 1
    DASH="const p = dashjs.MediaPlayer().create();
p.updateSettings({ streaming: { abr: { initialBitrate: { video: 300 } }, buffer: { bufferTimeDefault: 8, bufferTimeAtTopQuality: 8 } } });
p.on('error', (e) => tell('failed: ' + JSON.stringify(e.error.message)));
level = () => { const r = p.getCurrentRepresentationForType('video'); return r ? r.index : 0; };
p.initialize(v, '$SITE/dash/a.mpd', true);"
    page dash "$MODULES/dashjs/dist/modern/umd/dash.all.min.js" "$DASH"
    play dash 1
fi
glitches=$(status | grep -o '"glitches":{[^}]*}')
say "the service: $glitches, $(status | grep -o '"opened":[0-9]*\|"refused":{[^}]*}' | tr '\n' ' ')"
[ "$glitches" = '"glitches":{}' ] || failed "glitches"
exit $FAILED
