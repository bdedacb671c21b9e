//! What players of HLS and DASH ask for: playlists, and the segments that they name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use super::HttpState;
use super::answer::{Asked, Found, Looked, head_of_file, media_type, refused_file, short, text};
use super::body::Body;
use super::film::{self, CutFile, Piece};
use super::manifest::{self, Kind, Playlist};
use super::session::Session;
use crate::media::FileKey;

/// Larger playlists are served as any file, and not read.
const PLAYLIST_MAX: u64 = 4 << 20;
/// Segments whose sizes are looked at for the rate of a playlist that says none.
const LOOKED_AT: usize = 1024;

/// Whether this is the name of a playlist or a manifest.
fn is_playlist(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
    ending.eq_ignore_ascii_case("m3u8") || ending.eq_ignore_ascii_case("mpd")
}

/// Answers what belongs to playing by segments; `None` if the request is for a file as it is.
pub(super) fn look(shared: &HttpState, asked: &Asked, path: &Path, head: &Parts) -> Option<Looked> {
    let library = shared.service.library();
    let plain = library.file(path);
    let playlist = is_playlist(path);
    let begins = playlist && asked.session.is_none() && head.method == Method::GET;
    if let Ok(file) = &plain {
        if begins && asked.query.session {
            return Some(Looked::Done(begin(shared, asked)));
        }
        let size = file.metadata().map_or(u64::MAX, |found| found.len());
        return (playlist && size <= PLAYLIST_MAX).then(|| served(shared, asked, path, file, head));
    }
    let (film_path, piece) = film::meant(path)?;
    let cut = match shared.films.film(library, &film_path) {
        Ok(Ok(cut)) => cut,
        Ok(Err(why)) => {
            let why = format!("no playlist can be made of this file: {why}");
            return Some(Looked::Done(short(StatusCode::NOT_FOUND, why)));
        }
        Err(error) => return Some(Looked::Done(refused_file(&error))),
    };
    if begins && asked.query.session {
        return Some(Looked::Done(begin(shared, asked)));
    }
    Some(of_film(shared, asked, path, cut, piece, head))
}

/// Sends a player on to a session of its own.
fn begin(shared: &HttpState, asked: &Asked) -> Response<Body> {
    let granted = shared.limits.tokens.is_some();
    let begun = shared.sessions.begin(asked.client, granted, asked.query.rate);
    let Some(session) = begun else {
        return short(StatusCode::SERVICE_UNAVAILABLE, "no session can be begun");
    };
    // Relative, for whoever sits behind a proxy at a path of its own.
    let up = asked.path.bytes().filter(|byte| *byte == b'/').count().saturating_sub(1);
    let to = session.path(&asked.path);
    let to = format!("{}{}", "../".repeat(up), to.trim_start_matches('/'));
    let mut response = short(StatusCode::FOUND, "your session");
    let fields = response.headers_mut();
    if let Ok(to) = HeaderValue::from_str(&to) {
        fields.insert(header::LOCATION, to);
    }
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn answered(
    shared: &HttpState,
    key: FileKey,
    kind: &'static str,
    head: &Parts,
    body: Vec<u8>,
) -> Looked {
    let mut response = Response::new(Body::Short(Bytes::new()));
    head_of_file(shared, key, response.headers_mut());
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if head.method == Method::HEAD {
        fields.insert(header::CONTENT_LENGTH, text(body.len()));
    } else {
        *response.body_mut() = Body::Short(body.into());
    }
    Looked::Done(response)
}

/// Serves a playlist that lies in the library, and learns from it.
fn served(shared: &HttpState, asked: &Asked, path: &Path, file: &File, head: &Parts) -> Looked {
    let read = || {
        let key = crate::media::Media::key_of(file)?;
        let mut bytes = vec![0; usize::try_from(key.size()).unwrap_or(0)];
        file.read_exact_at(&mut bytes, 0)?;
        Ok::<_, io::Error>((key, bytes))
    };
    let (key, bytes) = match read() {
        Ok(read) => read,
        Err(error) => return Looked::Done(refused_file(&error)),
    };
    if let Some(session) = &asked.session {
        learn(shared, session, path, &String::from_utf8_lossy(&bytes));
    }
    answered(shared, key, media_type(path), head, bytes)
}

fn learn(shared: &HttpState, session: &Session, path: &Path, text: &str) {
    if text.trim_start_matches('\u{feff}').starts_with("#EXTM3U") {
        let playlist = Playlist::read(path, text);
        let kind = session.kind_of_playlist(path);
        learn_segments(shared, session, path, &playlist, kind);
        // What is played beside the variants is admitted with them, and nobody has asked for it yet.
        for sound in &playlist.sounds {
            let Some(text) = text_of(shared, sound) else { continue };
            learn_segments(shared, session, sound, &Playlist::read(sound, &text), Kind::Sound);
        }
        session.learn_playlists(playlist.variants, &playlist.sounds);
    } else {
        session.learn(manifest::representations(path, text));
    }
}

fn learn_segments(
    shared: &HttpState,
    session: &Session,
    path: &Path,
    playlist: &Playlist,
    kind: Kind,
) {
    let library = shared.service.library();
    let looked_at = std::cell::Cell::new(0);
    let size = |path: &Path| {
        looked_at.set(looked_at.get() + 1);
        let file = (looked_at.get() <= LOOKED_AT).then(|| library.file(path).ok())??;
        Some(file.metadata().ok()?.len())
    };
    let rate = session.variant(path).or_else(|| playlist.peak(size));
    let renditions = rate.map(|rate| playlist.rendition(rate, kind)).into_iter().collect();
    session.learn(renditions);
}

/// A playlist of the library, if it is none too large.
fn text_of(shared: &HttpState, path: &Path) -> Option<String> {
    let file = shared.service.library().file(path).ok()?;
    let size = file.metadata().ok()?.len();
    let mut bytes = vec![0; usize::try_from(size).ok().filter(|_| size <= PLAYLIST_MAX)?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Serves what is made of a film.
fn of_film(
    shared: &HttpState,
    asked: &Asked,
    path: &Path,
    CutFile { file, key, film }: CutFile,
    piece: Piece,
    head: &Parts,
) -> Looked {
    let number = match piece {
        Piece::Playlist => {
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or("");
            let name = percent_encoding::utf8_percent_encode(name, super::index::IN_LINKS);
            let playlist = film.segments.playlist(&format!("{name}.hls"));
            let kind = "application/vnd.apple.mpegurl";
            return answered(shared, key, kind, head, playlist.into_bytes());
        }
        Piece::Init => return answered(shared, key, "video/mp4", head, film.segments.init()),
        Piece::Segment(number) => number,
    };
    let front = film.segments.head(number);
    let (Some(front), Some(segment)) = (front, film.segments.segments.get(number)) else {
        return Looked::Done(short(StatusCode::NOT_FOUND, "the film has no such segment"));
    };
    let part = segment.bytes.clone();
    let mut response = Response::new(Body::Short(Bytes::new()));
    head_of_file(shared, key, response.headers_mut());
    let fields = response.headers_mut();
    fields.insert(header::ACCEPT_RANGES, HeaderValue::from_static("none"));
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("video/mp4"));
    if head.method == Method::HEAD {
        fields.insert(header::CONTENT_LENGTH, text(front.len() as u64 + part.end - part.start));
        return Looked::Done(response);
    }
    let (query, pace) = (asked.query, Some(film.pace.clone()));
    let (session, path) = (asked.session.clone(), path.to_path_buf());
    let front = Bytes::from(front);
    Looked::Stream(Box::new(Found { query, file, key, path, part, response, front, pace, session }))
}
