//! What can be wrong with a configuration.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// One problem that keeps a configuration from being used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file that cannot be read.
    #[error("{}: cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file that is neither YAML nor JSON.
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the parser says.
        message: String,
    },
    /// A field or flag with a value that is not allowed.
    #[error("{}{field}: {value} is not allowed: must be {allowed}", prefix(place.as_ref()))]
    Field {
        /// Where the value was written, if in a file.
        place: Option<Place>,
        /// JSON path of the field, like `nftables.masqueradeBit`, or the flag.
        field: String,
        /// The offending value, strings in quotes.
        value: String,
        /// The values that would do.
        allowed: String,
    },
}

/// A line of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named.
    pub file: String,
    /// The line, counted from 1, where known.
    pub line: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

fn prefix(place: Option<&Place>) -> String {
    place.map(|place| format!("{place}: ")).unwrap_or_default()
}

/// All problems of a configuration, found in one pass (C1.5). Never empty.
#[derive(Debug)]
pub struct ConfigErrors(pub(super) Vec<ConfigError>);

impl ConfigErrors {
    /// The problems in the order found.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
            if let ConfigError::Unreadable { source, .. } = error {
                write!(f, ": {source}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
