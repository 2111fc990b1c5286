//! One connection: requests are read one after the other, and answered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::objects::{Expired, Page};
use super::selector::Selector;
use super::{Logged, On, Shared, State, Streaming, What};

/// How long a watch lasts that names no time.
const LIFETIME: Duration = Duration::from_secs(300);
/// How often a watch looks whether anybody still reads it.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn serve(shared: &Shared, stream: &TcpStream) {
    // How a connection ends is the client's business.
    let _ = answer_all(shared, stream);
}

fn answer_all(shared: &Shared, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let life = shared.lock().life;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = read_request(&mut reader)? {
        let mut stream = stream.try_clone()?;
        shared.change(|state| state.log.push(request.clone()));
        let what = shared.lock().take_fault(&request);
        let mut exchange = Exchange {
            shared,
            request: &request,
            life,
            body: Body::new(&mut stream, what.as_ref()),
        };
        match exchange.answer(what.as_ref()) {
            Ok(()) => exchange.body.finish()?,
            Err(error) => {
                stream.shutdown(std::net::Shutdown::Both)?;
                return Err(error);
            }
        }
    }
    Ok(())
}

fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Logged>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (at, path) = (Instant::now(), path.to_owned());
    Ok(Some(Logged { at, method, path, query, headers, body }))
}

/// Text from a URL.
fn decode(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        bytes.extend(u8::from_str_radix(code, 16));
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl State {
    fn take_fault(&mut self, request: &Logged) -> Option<What> {
        let place = self.faults.iter().position(|fault| {
            let applies = match fault.on {
                On::Any => true,
                On::List => !request.is_watch() && !request.is_write(),
                On::Write => request.is_write(),
                On::NextPage => request.query.contains_key("continue"),
                On::StreamingList => request.query.contains_key("sendInitialEvents"),
                On::Watch => request.is_watch() && !request.query.contains_key("sendInitialEvents"),
            };
            applies && (fault.resource.is_empty() || fault.resource == request.resource())
        })?;
        let fault = &mut self.faults[place];
        let what = fault.what.clone();
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            self.faults.remove(place);
        }
        Some(what)
    }
}

/// The body of an answer, in chunks.
struct Body<'s> {
    stream: &'s mut TcpStream,
    /// Bytes until the connection is cut.
    left: Option<usize>,
    slow: Option<(usize, Duration)>,
    begun: bool,
}

impl<'s> Body<'s> {
    fn new(stream: &'s mut TcpStream, what: Option<&What>) -> Self {
        let left = match what {
            Some(What::CutAfter(bytes)) => Some(*bytes),
            _ => None,
        };
        let slow = match what {
            Some(What::Slow(bytes, pause)) => Some((*bytes, *pause)),
            _ => None,
        };
        Self { stream, left, slow, begun: false }
    }

    fn begin(&mut self, code: u16, header: &str) -> io::Result<()> {
        self.begun = true;
        write!(
            self.stream,
            "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\n{header}\
             Transfer-Encoding: chunked\r\n\r\n"
        )
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let sent = self.left.map_or(text.len(), |left| left.min(text.len()));
        let size = self.slow.map_or(64 << 10, |(size, _)| size).max(1);
        for piece in text[..sent].chunks(size) {
            let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
            chunk.extend(piece);
            chunk.extend(b"\r\n");
            self.stream.write_all(&chunk)?;
            if let Some((_, pause)) = self.slow {
                pause_for(pause);
            }
        }
        if let Some(left) = &mut self.left {
            *left -= sent;
            if *left == 0 {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        Ok(())
    }

    /// Whether the client has closed the connection.
    fn is_abandoned(&self) -> io::Result<bool> {
        self.stream.set_nonblocking(true)?;
        let read = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        Ok(matches!(read, Ok(0)))
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.begun { self.stream.write_all(b"0\r\n\r\n") } else { Ok(()) }
    }
}

fn pause_for(time: Duration) {
    std::thread::park_timeout(time);
}

struct Exchange<'s> {
    shared: &'s Shared,
    request: &'s Logged,
    life: u64,
    body: Body<'s>,
}

impl Exchange<'_> {
    fn answer(&mut self, what: Option<&What>) -> io::Result<()> {
        match what {
            Some(What::Body(body)) => {
                self.body.begin(200, "")?;
                return self.body.write(body);
            }
            Some(What::Status { code, reason, message, retry_after }) => {
                return self.refuse(*code, reason, message, *retry_after);
            }
            Some(What::Hang) => {
                let life = self.life;
                self.shared.wait_while(LIFETIME, |state| state.life == life);
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Some(What::Expired) => {
                self.body.begin(200, "")?;
                return self.line(&json!({"type": "ERROR", "object": expired()}));
            }
            Some(What::CutAfter(_) | What::Slow(..)) | None => {}
        }
        if !self.is_welcome() {
            return self.refuse(401, "Unauthorized", "Unauthorized", None);
        }
        if !self.is_allowed() {
            let what = self.request.access().map_or_else(
                || format!("{} {}", self.request.method, self.request.path),
                |access| access.to_string(),
            );
            return self.refuse(403, "Forbidden", &format!("forbidden: cannot {what}"), None);
        }
        let resource = self.request.resource().to_owned();
        if self.shared.lock().absent.contains(&resource) {
            let message = "the server could not find the requested resource";
            return self.refuse(404, "NotFound", message, None);
        }
        if self.request.is_write() {
            return self.write();
        }
        if self.request.is_watch() { self.watch(&resource) } else { self.list(&resource) }
    }

    fn write(&mut self) -> io::Result<()> {
        match self.shared.change(|state| super::write::write(&mut state.objects, self.request)) {
            Ok((code, object)) => {
                self.body.begin(code, "")?;
                self.body.write(object.to_string().as_bytes())
            }
            Err((code, reason, message)) => self.refuse(code, reason, &message, None),
        }
    }

    fn is_welcome(&self) -> bool {
        let state = self.shared.lock();
        let given = self.request.headers.get("authorization");
        state.token.as_ref().is_none_or(|token| given == Some(&format!("Bearer {token}")))
    }

    fn is_allowed(&self) -> bool {
        let state = self.shared.lock();
        state.allowed.as_ref().is_none_or(|rules| {
            let access = self.request.access();
            access.is_some_and(|access| rules.iter().any(|rule| rule.allows(&access)))
        })
    }

    fn refuse(
        &mut self,
        code: u16,
        reason: &str,
        message: &str,
        retry_after: Option<u64>,
    ) -> io::Result<()> {
        let mut header = String::new();
        if let Some(seconds) = retry_after {
            // Writing to a string cannot fail.
            let _ = write!(header, "Retry-After: {seconds}\r\n");
        }
        self.body.begin(code, &header)?;
        self.body.write(status(code, reason, message).to_string().as_bytes())
    }

    fn selector(&self) -> Selector {
        let request = self.request;
        Selector::parse(request.parameter("labelSelector"), request.parameter("fieldSelector"))
    }

    // === lists ===

    fn list(&mut self, resource: &str) -> io::Result<()> {
        let mut limit: usize = self.request.parameter("limit").parse().unwrap_or_default();
        let page = {
            let mut state = self.shared.lock();
            if state.unlimited && self.request.parameter("resourceVersion") == "0" {
                limit = 0;
            }
            match self.request.parameter("continue") {
                "" => Ok(state.objects.list(resource, &self.selector(), limit)),
                mark => state.objects.next_page(mark, limit),
            }
        };
        match page {
            Err(Expired) => self.refuse(410, "Expired", "the continue token is too old", None),
            Ok(page) => {
                self.body.begin(200, "")?;
                self.write_page(page)
            }
        }
    }

    fn write_page(&mut self, page: Page) -> io::Result<()> {
        let kind = page.items.first().and_then(|item| item["kind"].as_str()).map(str::to_owned);
        let mut metadata = json!({"resourceVersion": page.version.to_string()});
        if let Some(next) = page.next {
            metadata["continue"] = json!(next);
        }
        let kind = kind.map_or_else(|| "null".to_owned(), |kind| format!("\"{kind}List\""));
        let mut text = format!("{{\"kind\":{kind},\"metadata\":{metadata},\"items\":[");
        for (number, mut item) in page.items.into_iter().enumerate() {
            // Items of a list do not say what they are.
            if let Some(item) = item.as_object_mut() {
                item.remove("kind");
                item.remove("apiVersion");
            }
            let comma = if number > 0 { "," } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{item}");
            if text.len() > 32 << 10 {
                self.body.write(std::mem::take(&mut text).as_bytes())?;
            }
        }
        text.push_str("]}\n");
        self.body.write(text.as_bytes())
    }

    // === watches ===

    fn watch(&mut self, resource: &str) -> io::Result<()> {
        let streaming = self.shared.lock().streaming;
        let streams = self.request.parameter("sendInitialEvents") == "true";
        match streaming {
            Streaming::Refused if streams => {
                let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for \
                               watch unless the WatchList feature gate is enabled";
                return self.refuse(422, "Invalid", message, None);
            }
            Streaming::NoProgress if streams => {
                return self.refuse(500, "InternalError", "RequestWatchProgress is disabled", None);
            }
            _ => {}
        }
        self.body.begin(200, "")?;
        self.shared.change(|state| *state.watchers.entry(resource.to_owned()).or_default() += 1);
        let result = self.watch_on(resource, streams && streaming == Streaming::On);
        self.shared.change(|state| *state.watchers.entry(resource.to_owned()).or_default() -= 1);
        result
    }

    fn watch_on(&mut self, resource: &str, streams: bool) -> io::Result<()> {
        let selector = self.selector();
        let asked = self.request.parameter("resourceVersion").parse().unwrap_or(0_u64);
        let initial = streams || asked == 0;
        let (mut version, objects, mut bookmarks, epoch) = {
            let state = self.shared.lock();
            let objects =
                if initial { state.objects.selected(resource, &selector) } else { Vec::new() };
            let version = if initial { state.objects.version() } else { asked };
            (version, objects, state.bookmarks, state.epoch)
        };
        for object in objects {
            self.line(&json!({"type": "ADDED", "object": object}))?;
        }
        if streams {
            self.bookmark(version, &json!({"k8s.io/initial-events-end": "true"}))?;
        }
        let seconds = self.request.parameter("timeoutSeconds").parse();
        let end = Instant::now() + seconds.map_or(LIFETIME, Duration::from_secs);
        let has_bookmarks = self.request.parameter("allowWatchBookmarks") == "true";
        loop {
            let (lines, now, marks) = {
                let state = self.shared.lock();
                if state.life != self.life {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                if state.epoch != epoch {
                    return Ok(());
                }
                if !state.objects.reaches_back_to(version) {
                    drop(state);
                    return self.line(&json!({"type": "ERROR", "object": expired()}));
                }
                let lines = state.objects.changes_since(version, resource, &selector);
                (lines, state.objects.version(), state.bookmarks)
            };
            for line in &lines {
                self.line(line)?;
            }
            version = now;
            if std::mem::replace(&mut bookmarks, marks) != marks && has_bookmarks {
                self.bookmark(version, &json!({}))?;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.body.is_abandoned()? {
                return Ok(());
            }
            let waiting = |state: &mut State| {
                state.objects.version() == version
                    && (state.bookmarks, state.epoch, state.life) == (bookmarks, epoch, self.life)
            };
            self.shared.wait_while(left.min(LOOK), waiting);
        }
    }

    fn bookmark(&mut self, version: u64, annotations: &Value) -> io::Result<()> {
        let version = version.to_string();
        let metadata = json!({"resourceVersion": version, "annotations": annotations});
        self.line(&json!({"type": "BOOKMARK", "object": {"metadata": metadata}}))
    }

    fn line(&mut self, line: &Value) -> io::Result<()> {
        self.body.write(format!("{line}\n").as_bytes())
    }
}

fn expired() -> Value {
    status(410, "Expired", "too old resource version")
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}
