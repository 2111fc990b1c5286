//! How a request came to its end.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// The longest wait that a server may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a request came to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// What proves who we are cannot be had.
    #[error("no credentials: {0}")]
    Credentials(String),
    /// The answer broke off.
    #[error("the answer broke off: {0}")]
    Cut(String),
    /// A watch was ended in good order.
    #[error("the watch was ended")]
    Ended,
    /// The answer makes no sense.
    #[error("the answer makes no sense: {0}")]
    Garbage(String),
    /// The server refused.
    #[error("{0}")]
    Refused(Status),
    /// Nothing was heard for too long.
    #[error("no answer for {} s", .0.as_secs())]
    Silent(Duration),
    /// The server cannot be reached.
    #[error("{0}")]
    Unreachable(String),
}

impl Fault {
    /// Whether a request came to nothing, rather than something that had been going on.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Credentials(_) | Self::Refused(_) | Self::Unreachable(_))
    }

    /// Whether the server was not even heard.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Credentials(_) | Self::Silent(_) | Self::Unreachable(_))
    }

    /// Whether the server has forgotten what it was asked for.
    pub(super) fn is_expiry(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        status.code == 410 || matches!(&*status.reason, "Expired" | "Gone")
    }

    /// Whether the server does not know yet what it was asked for: it may have been restored.
    pub(super) fn is_too_new(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        status.message.contains("Too large resource version")
            || status.details.causes.iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
    }

    /// Whether another version might be answered better.
    pub(super) fn may_be_about_the_version(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        matches!(status.code, 400 | 404 | 422 | 500 | 504)
    }

    /// Whether this, in answer to a streaming list, means that the server does not have them.
    ///
    /// A server on an old etcd answers 500, "RequestWatchProgress is disabled".
    pub(super) fn means_no_streaming(&self) -> bool {
        match self {
            Self::Ended | Self::Silent(_) => true,
            Self::Refused(status) => {
                matches!(status.code, 400 | 405 | 406 | 415 | 422 | 500 | 501)
            }
            _ => false,
        }
    }

    /// How long the server asks to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let Self::Refused(status) = self else { return None };
        let seconds = status.details.retry_after_seconds?;
        Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
    }

    /// Whether other credentials might help.
    pub(super) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused(Status { code: 401, .. }))
    }
}

/// What a server says when it refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) details: Details,
}

/// `details` of a status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Details {
    pub(super) causes: Vec<Cause>,
    pub(super) retry_after_seconds: Option<u64>,
}

/// One of a status's causes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Cause {
    pub(super) reason: String,
}

impl Status {
    /// Reads a status, or takes the text for its message.
    pub(super) fn read(text: &[u8]) -> Self {
        serde_json::from_slice(text).unwrap_or_else(|_| {
            let message: String = String::from_utf8_lossy(text).trim().chars().take(200).collect();
            Self { message, ..Self::default() }
        })
    }

    /// From an answer with this status code and `Retry-After`.
    pub(super) fn of_answer(code: u16, retry_after: Option<u64>, body: &[u8]) -> Self {
        let mut status = Self { code, ..Self::read(body) };
        status.details.retry_after_seconds = retry_after.or(status.details.retry_after_seconds);
        status
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.message, &*self.reason) {
            ("", "") => write!(f, "status {}", self.code),
            ("", reason) => write!(f, "status {}, {reason}", self.code),
            (message, _) => write!(f, "status {}: {message}", self.code),
        }
    }
}
