//! One HTTP question from a chosen source, enough for health and metrics ports.
//!
//! Like [`crate::dial`], it acts in the namespace of the calling thread.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::dial::{Origin, open_stream};
use crate::target::Target;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Everything after the header.
    pub body: String,
}

/// Asks with GET.
pub fn get(
    origin: &Origin,
    address: SocketAddr,
    path: &str,
    limit: Duration,
) -> io::Result<Response> {
    let mut stream: TcpStream = open_stream(origin, &Target::tcp(address), limit)?;
    stream.set_read_timeout(Some(limit))?;
    // In one piece: a simple server may answer and close as soon as it has read something.
    let question = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    parse(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: {text:?}")))
}

fn parse(text: &str) -> Option<Response> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut words = head.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    Some(Response { status: words.next()?.parse().ok()?, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let response = parse("HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}\n").unwrap();
        assert_eq!(response, Response { status: 503, body: "{}\n".to_owned() });
        assert_eq!(parse("SSH-2.0-x\r\n\r\n"), None);
    }
}
