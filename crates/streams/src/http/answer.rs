//! From a request to its answer.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;

use super::body::{Body, Broken, Held};
use super::clients::{Client, Permit, Reached, Share};
use super::range::{self, Wanted};
use super::session::{LaneInUse, Session, Turn};
use super::{Activity, HttpState, cors, date, index, player};
use crate::error::Error;
use crate::media::{FileKey, Media};
use crate::model::Rate;
use crate::mp4::pace::Pace;
use crate::rate::parse_rate;
use crate::service::{Burst, Class, OpenError, OpenRequest, Rejected, Stream, StreamRequest};

/// Names of a directory that are shown, at most.
const LISTED: usize = 10_000;
/// A burst at a start has so many seconds of the media.
const BURST_S: u64 = 10;

/// What the query of a request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub rate: Option<u64>,
    best_effort: bool,
    max_startup_ms: Option<u64>,
    /// Whether a playlist begins a session.
    pub session: bool,
}

impl Default for Query {
    fn default() -> Self {
        Self { rate: None, best_effort: false, max_startup_ms: None, session: true }
    }
}

fn parse_query(text: &str) -> Result<Query, String> {
    let mut query = Query::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match name {
            "rate" => query.rate = Some(parse_rate(&value)?),
            "class" if value == "best-effort" => query.best_effort = true,
            "class" if value == "guaranteed" => query.best_effort = false,
            "class" => {
                return Err(format!("class '{value}': write guaranteed or best-effort"));
            }
            "max_startup_ms" => {
                let limit =
                    value.parse().map_err(|_| format!("max_startup_ms '{value}': a number"))?;
                query.max_startup_ms = Some(limit);
            }
            "session" if value == "no" => query.session = false,
            // Others belong to the player, such as a version that keeps caches apart.
            _ => {}
        }
    }
    Ok(query)
}

/// The path below the root that a URL names.
fn relative(path: &str) -> Option<PathBuf> {
    let bytes: Vec<u8> = percent_decode_str(path.strip_prefix('/')?).collect();
    let sound = !bytes.is_empty() && !bytes.contains(&0);
    sound.then(|| PathBuf::from(OsStr::from_bytes(&bytes)))
}

/// Media types by the endings of names, for players that go by them.
pub(super) fn media_type(path: &Path) -> &'static str {
    let ending = path.extension().and_then(OsStr::to_str).unwrap_or("").to_ascii_lowercase();
    match ending.as_str() {
        "mp4" | "m4v" => "video/mp4",
        "webm" => "video/webm",
        "mkv" => "video/x-matroska",
        "mov" => "video/quicktime",
        "avi" => "video/x-msvideo",
        "mpg" | "mpeg" => "video/mpeg",
        "ts" => "video/mp2t",
        "ogv" => "video/ogg",
        "mp3" => "audio/mpeg",
        "m4a" => "audio/mp4",
        "ogg" | "oga" | "opus" => "audio/ogg",
        "flac" => "audio/flac",
        "wav" => "audio/wav",
        "m3u8" => "application/vnd.apple.mpegurl",
        "mpd" => "application/dash+xml",
        "m4s" | "cmfv" | "cmfa" => "video/iso.segment",
        "vtt" => "text/vtt",
        _ => "application/octet-stream",
    }
}

pub(super) fn short(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let mut response = Response::new(Body::Short(Bytes::from(text.into() + "\n")));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

pub(super) fn text(value: impl std::fmt::Display) -> HeaderValue {
    HeaderValue::from_str(&value.to_string()).expect("numbers and tags are visible ASCII")
}

/// Answers one request of whoever is at `peer`.
pub(super) async fn answer(
    shared: Arc<HttpState>,
    activity: Arc<Activity>,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Broken> {
    activity.begin_answer(shared.begun);
    let (head, _) = request.into_parts();
    let options = head.method == Method::OPTIONS;
    let asked = head.headers.clone();
    let mut response = match head.method {
        Method::GET | Method::HEAD => admit(&shared, &activity, peer, head).await,
        Method::OPTIONS => allowed(StatusCode::NO_CONTENT),
        _ => allowed(StatusCode::METHOD_NOT_ALLOWED),
    };
    shared.limits.origins.allow(&asked, options, response.headers_mut());
    Ok(response)
}

/// What may be done with everything here.
fn allowed(status: StatusCode) -> Response<Body> {
    let mut response = short(status, cors::METHODS);
    if status == StatusCode::NO_CONTENT {
        *response.body_mut() = Body::Short(Bytes::new());
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(cors::METHODS));
    response
}

/// Who asks for what.
pub(super) struct Asked {
    pub client: Client,
    pub session: Option<Arc<Session>>,
    /// As in the URL, without what names the session.
    pub path: String,
    pub query: Query,
}

/// Looks whether whoever asks may.
async fn admit(
    shared: &Arc<HttpState>,
    activity: &Arc<Activity>,
    peer: IpAddr,
    head: Parts,
) -> Response<Body> {
    let words = head.uri.query().unwrap_or("");
    let client = shared.clients.client(peer, &head.headers);
    let named = shared.limits.tokens.as_ref().is_none_or(|it| it.admit(&head.headers, words));
    let (session, path) = shared.sessions.find(head.uri.path(), client, named);
    if !named && !session.as_ref().is_some_and(|session| session.granted) {
        shared.clients.count("token");
        return unauthorized();
    }
    let query = match parse_query(words) {
        Ok(query) => query,
        Err(why) => return short(StatusCode::BAD_REQUEST, why),
    };
    let asked = Asked { client, session, path: path.to_owned(), query };
    prepare(shared, activity, asked, head).await
}

/// Prepares an answer, in the turns of the client's address: files may take their time, and nobody
/// shall keep all the threads that wait for them.
async fn prepare(
    shared: &Arc<HttpState>,
    activity: &Arc<Activity>,
    asked: Asked,
    head: Parts,
) -> Response<Body> {
    let client = asked.client;
    let request = match shared.clients.take(client, Share::Request) {
        Ok(request) => request,
        Err(reached) => return too_much(reached),
    };
    let turn = Arc::clone(request.turns()).acquire_owned().await;
    let at_work = Arc::clone(shared);
    let look = move || look(&at_work, &asked, &head);
    let found = match tokio::task::spawn_blocking(look).await {
        Ok(Looked::Done(response)) => return response,
        Ok(Looked::Stream(found)) => found,
        Err(error) => return failed(&error),
    };
    let pace = match found.query {
        Query { best_effort: true, .. } => None,
        Query { rate: Some(rate), .. } => Some(Pace::constant(rate)),
        _ if found.pace.is_some() => found.pace.clone(),
        _ => {
            let probed = shared.probe.pace(&found.file, found.key).await;
            probed.or(shared.limits.default_rate.map(Pace::constant))
        }
    };
    let class = match &pace {
        Some(pace) => Class::Guaranteed { rate: pace.rate },
        None => Class::BestEffort,
    };
    let session = found.session.clone();
    let mut taken = Taken { rate: class.rate(), ..Taken::default() };
    if let (Some(session), Some(pace), true) = (&session, &pace, found.pace.is_some()) {
        taken = match take_lane(session, pace.rate, &found.path).await {
            Ok(taken) => taken,
            Err(full) => return full,
        };
    }
    let Taken { lane, before, rate, beside, beginning } = taken;
    let permit = match shared.clients.take(client, Share::Stream(rate)) {
        Ok(permit) => permit,
        Err(reached) => return too_much(reached),
    };
    let at_work = Arc::clone(shared);
    let wanted = move || {
        let reserved = beside.map(|rate| found.reserved(&at_work, rate)).transpose()?;
        Ok::<_, OpenError>((found.wanted(&at_work, pace, rate, before)?, reserved))
    };
    let (prepared, reserved) = match tokio::task::spawn_blocking(wanted).await {
        Ok(Ok(prepared)) => prepared,
        Ok(Err(error)) => return not_opened(error),
        Err(error) => return failed(&error),
    };
    drop((turn, request));
    if let (Some(session), Some(wanted), Some(rate)) = (&session, reserved, beside)
        && let Err(refused) = reserve(shared, client, session, *wanted, rate).await
    {
        return refused;
    }
    let response = open(shared, activity, permit, lane, class, prepared).await;
    let refused = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    if let (Some(session), Some(_), true) = (&session, beginning, refused) {
        // Neither without the other.
        session.forgo();
    }
    response
}

/// A lane of a session.
#[derive(Default)]
struct Taken<'a> {
    lane: Option<LaneInUse>,
    /// The stream whose place it is, and the rate that it had.
    before: Option<(Stream, u64)>,
    rate: u64,
    /// The rate of what is played beside the first of a session.
    beside: Option<u64>,
    /// Others of the session wait for what comes of the first.
    beginning: Option<tokio::sync::MutexGuard<'a, ()>>,
}

async fn take_lane<'a>(
    session: &'a Arc<Session>,
    rate: u64,
    path: &Path,
) -> Result<Taken<'a>, Response<Body>> {
    let waited = session.beginning.lock().await;
    let mut turn = session.take(rate).ok_or_else(|| too_much(Reached::Streams))?;
    let lane = Some(LaneInUse::new(Arc::clone(session), &mut turn));
    let Turn { before, had, rate, first, .. } = turn;
    Ok(Taken {
        lane,
        // What its permit allowed counts no more.
        before: before.map(|(stream, _)| (stream, had)),
        rate,
        beside: if first { session.beside(path) } else { None },
        beginning: first.then_some(waited),
    })
}

/// Takes a place for what will be played beside the first of a session.
async fn reserve(
    shared: &Arc<HttpState>,
    client: Client,
    session: &Session,
    wanted: OpenRequest,
    rate: u64,
) -> Result<(), Response<Body>> {
    let permit = shared.clients.take(client, Share::Stream(rate)).map_err(too_much)?;
    let stream = shared.service.open(wanted).await.map_err(|rejected| turned_away(&rejected))?;
    session.reserve(stream, permit, rate);
    Ok(())
}

/// What came of looking for the file of a request.
#[expect(clippy::large_enum_variant, reason = "one for each request, and moved once")]
pub(super) enum Looked {
    Done(Response<Body>),
    Stream(Box<Found>),
}

/// A file of which a part is to be streamed.
pub(super) struct Found {
    pub query: Query,
    pub file: File,
    pub key: FileKey,
    pub path: PathBuf,
    pub part: std::ops::Range<u64>,
    /// All but the body.
    pub response: Response<Body>,
    /// What comes before the part.
    pub front: Bytes,
    /// How fast it is played, if that is known already.
    pub pace: Option<Pace>,
    pub session: Option<Arc<Session>>,
}

impl Found {
    /// A place for a stream of this rate: it reads next to nothing, until something takes it.
    fn reserved(&self, shared: &HttpState, rate: u64) -> Result<Box<OpenRequest>, OpenError> {
        let (class, max_startup_ms) = (Class::Guaranteed { rate }, self.query.max_startup_ms);
        let request =
            StreamRequest { class, start: self.part.start, length: Some(1), max_startup_ms };
        let file = self
            .file
            .try_clone()
            .map_err(|source| Error::File { path: self.path.clone(), source })?;
        Ok(Box::new(shared.service.wanted(file, &self.path, &request)?))
    }

    /// Asks the file system where the file lies. A stream of a session has at least its `rate`, and
    /// takes the place of what was `before`.
    fn wanted(
        self,
        shared: &HttpState,
        pace: Option<Pace>,
        rate: u64,
        before: Option<(Stream, u64)>,
    ) -> Result<Prepared, OpenError> {
        let Self { query, file, path, part, response, front, session, .. } = self;
        let length = Some(part.end - part.start);
        let max_startup_ms = query.max_startup_ms;
        let class = pace.as_ref().map_or(Class::BestEffort, |_| Class::Guaranteed { rate });
        let request = StreamRequest { class, start: part.start, length, max_startup_ms };
        let mut wanted = shared.service.wanted(file, &path, &request)?;
        if let Some(pace) = pace {
            let next = session.as_ref().and_then(|session| session.above(pace.rate));
            let until = match session {
                Some(_) => u64::MAX,
                None => part.start.saturating_add(BURST_S.saturating_mul(pace.rate)),
            };
            (wanted.rate, wanted.burst) = rates(&pace, rate, next, until, shared.limits.burst);
        }
        if let Some((before, had)) = before {
            wanted.instead_of = Some(before.into_core());
            // Slower than it should be, but its own: the player will try less.
            wanted.least = Rate::constant(had).ok().filter(|_| had < rate);
        }
        Ok(Prepared { wanted: Box::new(wanted), response, front })
    }
}

/// A stream that is to be opened, and its answer.
struct Prepared {
    wanted: Box<OpenRequest>,
    /// All but the body.
    response: Response<Body>,
    /// What comes before the stream.
    front: Bytes,
}

/// At which rate something of this pace begins, at least at `rate`, and up to where. A player shall see
/// that the rate that is `next` to its own would do.
fn rates(
    pace: &Pace,
    rate: u64,
    next: Option<u64>,
    until: u64,
    factor: f64,
) -> (Option<Rate>, Option<Burst>) {
    let constant = |rate: u64| Rate::constant(rate).ok();
    let base = if rate > pace.rate { constant(rate) } else { pace.rate(1.0) };
    let times = |rate: u64| (rate as f64 * factor) as u64;
    let fast = times(pace.rate);
    let less = if rate > pace.rate { constant(fast) } else { pace.rate(factor) };
    let Some(base) = base.clone().filter(|_| factor > 1.0) else { return (base, None) };
    match next.map(times).filter(|next| *next > fast.max(rate)) {
        Some(next) => {
            let less = less.filter(|_| fast > rate);
            (constant(next), Some(Burst { base, less, until }))
        }
        None if fast > rate => (less, Some(Burst { base, less: None, until })),
        None => (Some(base), None),
    }
}

fn look(shared: &HttpState, asked: &Asked, head: &Parts) -> Looked {
    let Parts { uri, headers, .. } = head;
    let head_only = head.method == Method::HEAD;
    if shared.limits.index
        && let Some(directory) = asked.path.strip_suffix('/')
    {
        return Looked::Done(directory_index(shared, directory, head));
    }
    let Some(path) = relative(&asked.path) else {
        return Looked::Done(short(StatusCode::NOT_FOUND, "no such file"));
    };
    if let Some(looked) = player::look(shared, asked, &path, head) {
        return looked;
    }
    let opened = shared.service.library().file(&path);
    let (file, key) = match opened.and_then(|file| Media::key_of(&file).map(|key| (file, key))) {
        Ok(opened) => opened,
        Err(error) => return Looked::Done(no_file(shared, &path, uri, &error)),
    };
    let (part, mut response) = part_of(shared, headers, key);
    let status = response.status();
    if !matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        return Looked::Done(response);
    }
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type(&path)));
    let bytes = part.end - part.start;
    if head_only {
        fields.insert(header::CONTENT_LENGTH, text(bytes));
    }
    if head_only || bytes == 0 {
        return Looked::Done(response);
    }
    let (query, front, session) = (asked.query, Bytes::new(), asked.session.clone());
    let known = session.as_ref().and_then(|it| it.rate.or_else(|| it.rate_of(&path)));
    let pace = known.map(Pace::constant);
    Looked::Stream(Box::new(Found { query, file, key, path, part, response, front, pace, session }))
}

/// Which part of a file is asked for, and the head of the answer.
fn part_of(
    shared: &HttpState,
    headers: &HeaderMap,
    key: FileKey,
) -> (std::ops::Range<u64>, Response<Body>) {
    let size = key.size();
    let (status, part) = match wanted(headers, key) {
        _ if not_changed(headers, key) => (StatusCode::NOT_MODIFIED, 0..0),
        Wanted::Whole => (StatusCode::OK, 0..size),
        Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Wanted::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
    };
    let mut response = Response::new(Body::Short(Bytes::new()));
    *response.status_mut() = status;
    head_of_file(shared, key, response.headers_mut());
    let fields = response.headers_mut();
    fields.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let range = match status {
        StatusCode::RANGE_NOT_SATISFIABLE => Some(format!("bytes */{size}")),
        StatusCode::PARTIAL_CONTENT => {
            Some(format!("bytes {}-{}/{size}", part.start, part.end - 1))
        }
        _ => None,
    };
    if let Some(range) = range {
        fields.insert(header::CONTENT_RANGE, text(range));
    }
    (part, response)
}

/// Which version of a file it is, and who may keep it.
pub(super) fn head_of_file(shared: &HttpState, key: FileKey, fields: &mut HeaderMap) {
    fields.insert(header::ETAG, text(tag(key)));
    if let Some(modified) = date::write(key.modified_s()) {
        fields.insert(header::LAST_MODIFIED, text(modified));
    }
    if shared.limits.tokens.is_some() {
        // Nobody between may give it to others.
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("private"));
    }
}

/// The names in a directory, whose path is without its last slash.
fn directory_index(shared: &HttpState, directory: &str, head: &Parts) -> Response<Body> {
    let path = if directory.is_empty() { Some(PathBuf::new()) } else { relative(directory) };
    let Some(path) = path else { return short(StatusCode::NOT_FOUND, "no such directory") };
    let entries = match shared.service.library().list(&path, LISTED) {
        Ok(entries) => entries,
        Err(error) => return refused_file(&error),
    };
    let accepted = head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let (kind, body) = if accepted.is_some_and(|kinds| kinds.contains("application/json")) {
        ("application/json", index::json(&entries))
    } else {
        // The token that opened this page opens what it names.
        let query = head.uri.query().unwrap_or("");
        let token = query.split('&').find(|pair| pair.starts_with("token=")).unwrap_or("");
        let shown = format!("/{}", path.display());
        let shown = if shown == "/" { shown } else { shown + "/" };
        ("text/html; charset=utf-8", index::page(&shown, &entries, token))
    };
    let mut response = short(StatusCode::OK, body);
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    fields.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    fields.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
    response
}

/// No file is there; if it is a directory whose names are shown, they are one slash further.
fn no_file(shared: &HttpState, path: &Path, uri: &hyper::Uri, error: &io::Error) -> Response<Body> {
    let there = || shared.service.library().list(path, 1).is_ok();
    if !shared.limits.index || error.kind() != io::ErrorKind::NotFound || !there() {
        return refused_file(error);
    }
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    let to = format!("{}/{query}", uri.path());
    let mut response = short(StatusCode::MOVED_PERMANENTLY, "a directory");
    if let Ok(to) = HeaderValue::from_str(&to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

async fn open(
    shared: &Arc<HttpState>,
    activity: &Arc<Activity>,
    permit: Permit,
    lane: Option<LaneInUse>,
    class: Class,
    Prepared { wanted, mut response, front }: Prepared,
) -> Response<Body> {
    let left = front.len() as u64 + wanted.end - wanted.start;
    let stream = match shared.service.open(*wanted).await {
        Ok(stream) => stream,
        Err(rejected) => return turned_away(&rejected),
    };
    let fields = response.headers_mut();
    match class {
        Class::Guaranteed { rate } => {
            fields.insert("forebay-rate-bytes-per-second", text(rate));
            let bound = stream.first_byte_within().as_millis();
            fields.insert("forebay-first-byte-within-ms", text(bound));
        }
        Class::BestEffort => {
            fields.insert("forebay-class", HeaderValue::from_static("best-effort"));
        }
    }
    activity.begin_stream(class.rate(), left);
    let (held, shared) = (Held::new(stream, permit, lane), Arc::clone(shared));
    let activity = Arc::clone(activity);
    *response.body_mut() = Body::Stream { front, held, left, activity, shared };
    response
}

fn failed(error: &tokio::task::JoinError) -> Response<Body> {
    tracing::error!(%error, "a request was not answered");
    short(StatusCode::INTERNAL_SERVER_ERROR, "internal error; see the server's log")
}

fn unauthorized() -> Response<Body> {
    let why = "a token is needed: `Authorization: Bearer TOKEN`, or ?token=TOKEN";
    let mut response = short(StatusCode::UNAUTHORIZED, why);
    let fields = response.headers_mut();
    fields.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"forebay\""));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// 429: the address has its share.
fn too_much(reached: Reached) -> Response<Body> {
    let (message, suggested_rate) = match reached {
        Reached::Connections => ("too many connections from your address", None),
        Reached::Streams => ("too many streams to your address", None),
        Reached::Rate(left) => {
            let left = (left > 0).then_some(left);
            ("the streams to your address have all of the rate that it may have", left)
        }
    };
    let mut response = turned_away(&Rejected::of_client(message, suggested_rate));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    response
}

fn not_opened(error: OpenError) -> Response<Body> {
    match error {
        OpenError::Rejected(rejected) => turned_away(&rejected),
        OpenError::Failed(error) => {
            tracing::warn!(%error, "a stream could not be opened");
            short(StatusCode::INTERNAL_SERVER_ERROR, "the file could not be opened")
        }
    }
}

/// 503, with what a client needs to do better next time.
fn turned_away(rejected: &Rejected) -> Response<Body> {
    let body = serde_json::to_string(rejected).unwrap_or_default();
    let mut response = short(StatusCode::SERVICE_UNAVAILABLE, body);
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let seconds = rejected.retry_after_ms.div_ceil(1000).max(1);
    fields.insert(header::RETRY_AFTER, text(seconds));
    response
}

pub(super) fn refused_file(error: &io::Error) -> Response<Body> {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename => {
            short(StatusCode::NOT_FOUND, "no such file")
        }
        io::ErrorKind::PermissionDenied => {
            short(StatusCode::FORBIDDEN, "the server may not read this file")
        }
        _ => {
            tracing::warn!(%error, "opening a file");
            short(StatusCode::INTERNAL_SERVER_ERROR, "the file could not be opened")
        }
    }
}

fn tag(key: FileKey) -> String {
    format!("\"{:016x}\"", key.version())
}

/// A range counts only for the version that `If-Range` names, by its tag or by when it was modified;
/// a file that was modified a moment ago may have been so again in the same second.
fn wanted(headers: &HeaderMap, key: FileKey) -> Wanted {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let same = |version: &str| {
        let modified = key.modified_s();
        let settled = now_s() > modified + 1;
        version == tag(key) || settled && date::read(version) == Some(modified)
    };
    match (value(header::RANGE), value(header::IF_RANGE)) {
        (Some(_), Some(version)) if !same(version) => Wanted::Whole,
        (Some(range), _) => range::parse(range, key.size()),
        (None, _) => Wanted::Whole,
    }
}

fn now_s() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

/// Whether the client has this version. A date counts only where there is no tag.
fn not_changed(headers: &HeaderMap, key: FileKey) -> bool {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let ours = tag(key);
    if let Some(tags) = value(header::IF_NONE_MATCH) {
        let mut tags = tags.split(',').map(str::trim);
        return tags.any(|tag| tag == "*" || tag.trim_start_matches("W/") == ours);
    }
    let since = value(header::IF_MODIFIED_SINCE).and_then(date::read);
    since.is_some_and(|since| key.modified_s() <= since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_when_read_then_known_words_count_and_others_do_not() {
        let query = parse_query("v=3&rate=2M&max_startup_ms=500&class=guaranteed").unwrap();
        let (rate, max_startup_ms) = (Some(250_000), Some(500));
        let expected = Query { rate, max_startup_ms, ..Query::default() };
        assert_eq!(query, expected);
        assert_eq!(parse_query("").unwrap(), Query::default());
        assert!(parse_query("class=best%2Deffort&x").unwrap().best_effort);
        for wrong in ["rate=", "rate=fast", "class=royal", "max_startup_ms=soon"] {
            assert!(parse_query(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn path_when_decoded_then_relative_or_nothing() {
        assert_eq!(relative("/a/b%20c.mp4"), Some("a/b c.mp4".into()));
        assert_eq!(relative("/..%2f..%2fetc/passwd"), Some("../../etc/passwd".into()));
        for wrong in ["/", "", "a", "/a%00b", "*"] {
            assert_eq!(relative(wrong), None, "{wrong}");
        }
    }
}
