//! What a long analysis shows of itself: the number of files read, on a terminal.

use firstfault_analysis::{Error, Options, Progress, Report, analyze, analyze_watched};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// An analysis that ends sooner shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Analyzes these paths, and says on standard error how far it is, where that is a terminal.
pub(crate) fn with_progress(paths: &[PathBuf], options: &Options) -> Result<Report, Error> {
    if !io::stderr().is_terminal() {
        return analyze(paths, options);
    }
    let progress = Arc::new(Progress::default());
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        let tell = || {
            let ended = ended;
            let mut is_shown = false;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PATIENCE) {
                is_shown = true;
                show(&format!("\r{} files read …", progress.files()));
            }
            if is_shown {
                show("\r\x1b[K");
            }
        };
        // Where no thread can be started, nothing is shown.
        let _ = thread::Builder::new().spawn_scoped(scope, tell);
        let found = analyze_watched(paths, options, &progress);
        drop(done);
        found
    })
}

fn show(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
