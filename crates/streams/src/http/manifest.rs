//! What a playlist of HLS (RFC 8216) or a manifest of DASH (ISO/IEC 23009-1) says of segments: which
//! there are, and how fast they are played. Only as much of both is understood as that takes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

/// Most segments of a playlist that are remembered.
const SEGMENTS_MAX: usize = 1 << 15;
/// Most representations of a manifest, or variants of a playlist.
const VARIANTS_MAX: usize = 256;

/// What is played beside other kinds: a player needs one rendition of each at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pictures,
    Sound,
    /// Both in one, or nothing is said.
    Any,
}

impl Kind {
    fn of(type_of_media: &str) -> Self {
        match type_of_media.split('/').next() {
            Some("video") => Self::Pictures,
            Some("audio") => Self::Sound,
            _ => Self::Any,
        }
    }
}

/// Segments of one rendition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rendition {
    /// Bytes a second.
    pub rate: u64,
    pub kind: Kind,
    names: Names,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    /// Hashes of their paths, in order.
    Each(Vec<u64>),
    /// A template: what stands between its parts are digits.
    Template(Vec<String>),
}

impl Rendition {
    /// Whether this path is one of its segments.
    pub fn has(&self, path: &Path) -> bool {
        match &self.names {
            Names::Each(hashes) => hashes.binary_search(&hash(path)).is_ok(),
            Names::Template(parts) => path.to_str().is_some_and(|path| fits(path, parts)),
        }
    }
}

fn hash(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

fn fits(path: &str, parts: &[String]) -> bool {
    let Some((first, rest)) = parts.split_first() else { return false };
    let Some(mut left) = path.strip_prefix(&first[..]) else { return false };
    for part in rest {
        let digits = left.bytes().take_while(u8::is_ascii_digit).count();
        let Some(after) = left[digits..].strip_prefix(&part[..]).filter(|_| digits > 0) else {
            return false;
        };
        left = after;
    }
    left.is_empty()
}

/// The path that a reference leads to from a file; none if it leads to another server, or outside.
fn resolve(from: &Path, reference: &str) -> Option<PathBuf> {
    let reference = reference.split(['?', '#']).next()?;
    if reference.is_empty() || reference.contains("://") || reference.starts_with('/') {
        return None;
    }
    let decoded = percent_decode_str(reference).decode_utf8().ok()?;
    let mut path = from.parent()?.to_path_buf();
    for part in decoded.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if !path.pop() {
                    return None;
                }
            }
            part => path.push(part),
        }
    }
    Some(path)
}

/// The value of an attribute in a line of HLS or a tag of XML.
fn attribute<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find(name)?;
        let before = text[..at].chars().next_back();
        from = at + name.len();
        let Some(value) = text[from..].strip_prefix('=') else { continue };
        if before.is_some_and(|before| before.is_ascii_alphanumeric() || before == '-') {
            continue;
        }
        return match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split(quote).next(),
            _ => value.split([',', ' ', '/', '>']).next(),
        };
    }
}

/// A playlist of HLS.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Playlist {
    /// Playlists of variants, with their rates.
    pub variants: Vec<(PathBuf, u64)>,
    /// Playlists of sound that is played beside the pictures of the variants.
    pub sounds: Vec<PathBuf>,
    /// Segments: each a path, its milliseconds and, if it is a part of a file, its bytes.
    pub segments: Vec<(PathBuf, u64, Option<u64>)>,
    /// What comes before them.
    maps: Vec<PathBuf>,
}

impl Playlist {
    /// Reads the playlist of a file; what is not understood is passed by.
    pub fn read(from: &Path, text: &str) -> Self {
        let mut playlist = Self::default();
        let (mut rate, mut ms, mut part) = (None, None, None);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(info) = line.strip_prefix("#EXT-X-STREAM-INF:") {
                let bits = attribute(info, "BANDWIDTH").and_then(|bits| bits.parse::<u64>().ok());
                rate = bits.map(|bits| bits.div_ceil(8));
            } else if let Some(info) = line.strip_prefix("#EXT-X-MEDIA:") {
                let sound = attribute(info, "TYPE") == Some("AUDIO");
                let list = attribute(info, "URI").and_then(|uri| resolve(from, uri));
                let room = playlist.sounds.len() < VARIANTS_MAX;
                playlist.sounds.extend(list.filter(|_| sound && room));
            } else if let Some(info) = line.strip_prefix("#EXTINF:") {
                let seconds = info.split(',').next().and_then(|text| text.parse::<f64>().ok());
                ms = seconds.map(|seconds| (seconds * 1000.0) as u64);
            } else if let Some(info) = line.strip_prefix("#EXT-X-BYTERANGE:") {
                part = info.split('@').next().and_then(|text| text.parse::<u64>().ok());
            } else if let Some(info) = line.strip_prefix("#EXT-X-MAP:") {
                let map = attribute(info, "URI").and_then(|uri| resolve(from, uri));
                playlist.maps.extend(map.filter(|_| playlist.maps.len() < VARIANTS_MAX));
            } else if !line.starts_with('#') {
                let (rate, ms, part) = (rate.take(), ms.take(), part.take());
                let Some(path) = resolve(from, line) else { continue };
                if let Some(rate) = rate.filter(|_| playlist.variants.len() < VARIANTS_MAX) {
                    playlist.variants.push((path, rate));
                } else if let Some(ms) = ms.filter(|_| playlist.segments.len() < SEGMENTS_MAX) {
                    playlist.segments.push((path, ms, part));
                }
            }
        }
        playlist
    }

    /// Its segments at a rate.
    pub fn rendition(&self, rate: u64, kind: Kind) -> Rendition {
        let paths = self.segments.iter().map(|segment| &segment.0).chain(&self.maps);
        let mut hashes: Vec<u64> = paths.map(|path| hash(path)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        Rendition { rate, kind, names: Names::Each(hashes) }
    }

    /// The highest rate of a segment, if `size` tells how large files are.
    pub fn peak(&self, size: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
        let mut known: HashMap<&Path, Option<u64>> = HashMap::new();
        let rates = self.segments.iter().filter(|segment| segment.1 >= 100);
        let rates = rates.filter_map(|(path, ms, part)| {
            let bytes = part.or_else(|| *known.entry(path).or_insert_with(|| size(path)))?;
            Some(bytes.saturating_mul(1000) / ms)
        });
        rates.max().filter(|rate| *rate > 0)
    }
}

/// The representations of a manifest of DASH.
pub(super) fn representations(from: &Path, text: &str) -> Vec<Rendition> {
    let mut found = Vec::new();
    // Templates of the set, and the representation whose own are read.
    let mut of_set: Vec<String> = Vec::new();
    let mut open: Option<(String, u64, Vec<String>)> = None;
    let mut kind = Kind::Any;
    for piece in text.split('<').skip(1) {
        let (tag, behind) = piece.split_once('>').unwrap_or((piece, ""));
        let name = tag.split([' ', '\n', '\r', '\t', '/']).find(|part| !part.is_empty());
        let ends = tag.starts_with('/');
        let mut names: Vec<String> = ["initialization", "media", "sourceURL"]
            .iter()
            .filter_map(|name| attribute(tag, name).map(str::to_owned))
            .collect();
        let says = |tag| attribute(tag, "contentType").or_else(|| attribute(tag, "mimeType"));
        match name.unwrap_or("") {
            "AdaptationSet" if ends => of_set.clear(),
            "AdaptationSet" => {
                of_set.clear();
                kind = says(tag).map_or(Kind::Any, Kind::of);
            }
            "Representation" if ends => found.extend(close(from, open.take(), kind, &of_set)),
            "Representation" => {
                found.extend(close(from, open.take(), kind, &of_set));
                if kind == Kind::Any {
                    kind = says(tag).map_or(Kind::Any, Kind::of);
                }
                let bits = attribute(tag, "bandwidth").and_then(|bits| bits.parse::<u64>().ok());
                let id = attribute(tag, "id").unwrap_or("").to_owned();
                open = bits.map(|bits| (id, bits, Vec::new()));
                if tag.ends_with('/') {
                    found.extend(close(from, open.take(), kind, &of_set));
                }
            }
            "BaseURL" if !ends && open.is_some() => names.push(behind.trim().to_owned()),
            "SegmentTemplate" | "SegmentURL" | "Initialization" => {}
            _ => names.clear(),
        }
        let into = open.as_mut().map_or(&mut of_set, |open| &mut open.2);
        into.extend(names.into_iter().take(SEGMENTS_MAX - into.len().min(SEGMENTS_MAX)));
        if found.len() > VARIANTS_MAX * 4 {
            break;
        }
    }
    found.extend(close(from, open, kind, &of_set));
    found
}

fn close(
    from: &Path,
    open: Option<(String, u64, Vec<String>)>,
    kind: Kind,
    of_set: &[String],
) -> Vec<Rendition> {
    let Some((id, bits, own)) = open else { return Vec::new() };
    let templates = if own.is_empty() { of_set } else { &own[..] };
    let mut each = Vec::new();
    let mut found = Vec::new();
    let rate = bits.div_ceil(8).max(1);
    for template in templates {
        let named = template.replace("$RepresentationID$", &id);
        let named = named.replace("$Bandwidth$", &bits.to_string());
        let parts: Vec<&str> = named.split('$').collect();
        // Every other part is a variable: a number or a time, perhaps with a width.
        if parts.len() == 1 {
            each.extend(resolve(from, &named).map(|path| hash(&path)));
        } else if let Some(first) = resolve(from, &format!("{}_", parts[0])) {
            let first = first.to_str().unwrap_or("");
            let mut names = vec![first[..first.len().saturating_sub(1)].to_owned()];
            names.extend(parts.iter().skip(2).step_by(2).map(|part| (*part).to_owned()));
            found.push(Rendition { rate, kind, names: Names::Template(names) });
        }
    }
    each.sort_unstable();
    found.push(Rendition { rate, kind, names: Names::Each(each) });
    found.truncate(VARIANTS_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlists_when_read_then_variants_with_rates_and_segments_with_times() {
        let master = "#EXTM3U\n#EXT-X-STREAM-INF:AVERAGE-BANDWIDTH=7,BANDWIDTH=800000,CODECS=\"a,b\"\n\
            low/list.m3u8\n#EXT-X-STREAM-INF:BANDWIDTH=1600000\nhttp://elsewhere/x.m3u8\n";
        let read = Playlist::read(Path::new("films/a.m3u8"), master);
        assert_eq!(read.variants, [(PathBuf::from("films/low/list.m3u8"), 100_000)]);
        let media = "#EXTM3U\n#EXT-X-MAP:URI=\"i%20i.mp4\"\n#EXTINF:4.0,\n0.ts?x=1\n#EXTINF:2,\n\
            #EXT-X-BYTERANGE:3000@0\n../all.ts\n#EXTINF:9,\n../../../out.ts\n/abs.ts\n";
        let read = Playlist::read(Path::new("films/low/list.m3u8"), media);
        assert_eq!(read.segments.len(), 2);
        assert_eq!(read.segments[1], ("films/all.ts".into(), 2000, Some(3000)));
        assert_eq!(read.peak(|_| Some(8000)), Some(2000));
        let rendition = read.rendition(5, Kind::Any);
        for (path, is) in [("films/low/0.ts", true), ("films/low/i i.mp4", true), ("0.ts", false)] {
            assert_eq!(rendition.has(Path::new(path)), is, "{path}");
        }
    }

    #[test]
    fn pictures_and_sound_when_apart_then_told_apart() {
        let text = r#"<MPD><AdaptationSet contentType="video"><Representation id="v" bandwidth="8000">
            <BaseURL>v.mp4</BaseURL></Representation></AdaptationSet><AdaptationSet>
            <Representation mimeType='audio/mp4' id="a" bandwidth="80"><BaseURL>a.mp4</BaseURL>
            </Representation></AdaptationSet><AdaptationSet><Representation bandwidth="8">
            <BaseURL>t.vtt</BaseURL></Representation></AdaptationSet></MPD>"#;
        let found = representations(Path::new("a.mpd"), text);
        let kind =
            |path: &str| found.iter().find(|one| one.has(Path::new(path))).map(|one| one.kind);
        let kinds = ["v.mp4", "a.mp4", "t.vtt"].map(kind);
        assert_eq!(kinds, [Some(Kind::Pictures), Some(Kind::Sound), Some(Kind::Any)]);
        let master = "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",URI=\"s.m3u8\"\n\
            #EXT-X-MEDIA:TYPE=SUBTITLES,URI=\"t.m3u8\"\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"b\"\n";
        let read = Playlist::read(Path::new("d/m.m3u8"), master);
        assert_eq!(read.sounds, [PathBuf::from("d/s.m3u8")]);
    }

    #[test]
    fn manifest_of_dash_when_read_then_segments_by_template_list_and_base() {
        let text = r#"<MPD><Period><AdaptationSet id="0"><SegmentTemplate timescale="1"
            initialization="init-$RepresentationID$.m4s" media="s/c-$RepresentationID$-$Number%05d$.m4s">
            </SegmentTemplate><Representation id="0" bandwidth="800000"/>
            <Representation id="1" bandwidth="8000000"></Representation></AdaptationSet>
            <AdaptationSet><Representation id="2" bandwidth="80"><BaseURL>one.mp4</BaseURL>
            <SegmentList><SegmentURL media="x.m4s"/></SegmentList></Representation>
            </AdaptationSet></Period></MPD>"#;
        let found = representations(Path::new("d/a.mpd"), text);
        let rate =
            |path: &str| found.iter().find(|one| one.has(Path::new(path))).map(|one| one.rate);
        for (path, expected) in [
            ("d/init-0.m4s", Some(100_000)),
            ("d/s/c-0-00001.m4s", Some(100_000)),
            ("d/s/c-1-00017.m4s", Some(1_000_000)),
            ("d/s/c-1-.m4s", None),
            ("d/s/c-1-1.m4sx", None),
            ("d/one.mp4", Some(10)),
            ("d/x.m4s", Some(10)),
        ] {
            assert_eq!(rate(path), expected, "{path}: {found:?}");
        }
        for senseless in
            ["", "<", "<Representation bandwidth=", "<Representation id='$' bandwidth=9"]
        {
            representations(Path::new("a"), senseless);
        }
    }
}
