//! Lines of the program's source, where they are those that ran.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// The largest source file that is looked into.
const MAX_SOURCE_BYTES: u64 = 4 << 20;

/// Lines of the program's source, where the file here is not newer than the failure.
pub(super) struct Sources {
    time_ns: Option<i64>,
    files: HashMap<String, Option<String>>,
}

impl Sources {
    pub(super) fn new(time_ns: Option<i64>) -> Self {
        Self {
            time_ns,
            files: HashMap::new(),
        }
    }

    pub(super) fn line(&mut self, file: &str, line: u32) -> Option<String> {
        if !self.files.contains_key(file) {
            let text = self.text(Path::new(file));
            self.files.insert(file.to_owned(), text);
        }
        let text = self.files.get(file)?.as_deref()?;
        let line = text
            .lines()
            .nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
        Some(line.trim().to_owned()).filter(|line| !line.is_empty())
    }

    fn text(&self, path: &Path) -> Option<String> {
        // The record may name anything: a relative path means another directory here, a device would never end.
        let status = path.metadata().ok()?;
        if !path.is_absolute() || !status.is_file() || status.len() > MAX_SOURCE_BYTES {
            return None;
        }
        let changed = status.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        if i64::try_from(changed.as_nanos()).ok()? > self.time_ns? {
            return None;
        }
        let mut bytes = Vec::new();
        let mut file = File::open(path).ok()?.take(MAX_SOURCE_BYTES);
        file.read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_newer_than_the_failure_is_not_quoted() {
        let file = file!();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/show/sources.rs");
        let path = path.to_str().unwrap();
        assert!(file.ends_with("sources.rs"));
        assert_eq!(Sources::new(Some(0)).line(path, 1), None);
        assert_eq!(Sources::new(None).line(path, 1), None);
        assert_eq!(Sources::new(Some(i64::MAX)).line("sources.rs", 1), None);
        assert_eq!(Sources::new(Some(i64::MAX)).line("/dev/zero", 1), None);
        let line = Sources::new(Some(i64::MAX)).line(path, 1).unwrap();
        assert!(line.starts_with("//! Lines of the program"), "{line}");
    }
}
