//! What is in the folder, and what is in one of its files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Larger files are refused rather than read into memory.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A file that changed this recently might change again without looking different.
const TIMESTAMP_GRAIN: Duration = Duration::from_millis(100);

/// Whether a file of this name is a manifest.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.starts_with(b".")
        && [&b".yaml"[..], b".yml", b".json"].into_iter().any(|ending| bytes.ends_with(ending))
}

/// Whether there is a symbolic link at this path.
pub(super) fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

/// What tells one state of a file from another without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What a look at the folder found.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The manifests.
    pub(super) files: BTreeMap<OsString, Stamp>,
    /// The folders that symbolic links among them lead to.
    pub(super) targets: BTreeSet<PathBuf>,
}

/// Lists the manifests directly in `dir`, following symbolic links.
pub(super) fn list(dir: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if !is_manifest(&name) {
            continue;
        }
        let path = entry.path();
        // What vanished meanwhile, and links that lead nowhere, are as good as absent.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if entry.file_type().is_ok_and(|kind| kind.is_symlink())
            && let Ok(target) = fs::canonicalize(&path)
        {
            listing.targets.extend(target.parent().map(Path::to_owned));
        }
        if metadata.is_file() {
            listing.files.insert(name, Stamp::of(&metadata));
        }
    }
    Ok(listing)
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) bytes: Vec<u8>,
    /// The state it was read in; none if it is too young to be told from a later one.
    pub(super) stamp: Option<Stamp>,
}

/// Reads a manifest. None if there is no such file.
pub(super) fn read(path: &Path) -> io::Result<Option<Text>> {
    let absent = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
        _ => Err(error),
    };
    match fs::metadata(path) {
        // Opening anything but a file might wait for somebody.
        Ok(metadata) if !metadata.is_file() => return Ok(None),
        Ok(_) => {}
        Err(error) => return absent(error),
    }
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return absent(error),
    };
    let metadata = file.metadata()?;
    if metadata.size() > MAX_FILE_BYTES {
        let message = format!("larger than {} MiB", MAX_FILE_BYTES >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    let mut bytes = Vec::new();
    bytes.reserve_exact(usize::try_from(metadata.size()).unwrap_or_default() + 1);
    file.by_ref().take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    let settled = metadata
        .modified()
        .ok()
        .and_then(|modified| SystemTime::now().duration_since(modified).ok())
        .is_some_and(|age| age > TIMESTAMP_GRAIN);
    Ok(Some(Text { bytes, stamp: settled.then(|| Stamp::of(&metadata)) }))
}
