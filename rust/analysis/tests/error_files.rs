//! Golden error files of every shape; the same files and the same manifest as the Python tests read.

use firstfault_analysis::{ErrorKind, Failure, parse};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/error_files")
}

fn read(name: &str) -> Result<Failure, firstfault_analysis::Error> {
    let path = directory().join(name);
    parse::error_file(&path, &std::fs::read(&path).expect("a golden file"))
}

#[test]
fn every_file_is_what_the_manifest_says() {
    let manifest =
        std::fs::read_to_string(directory().join("expected.json")).expect("the manifest");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    let files = manifest["files"].as_object().expect("an object");
    assert_eq!(
        files.len() + 1,
        std::fs::read_dir(directory()).expect("a directory").count(),
        "every file is listed"
    );
    for (name, expected) in files {
        match read(name) {
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Malformed(_)),
                    "{name}: {error}"
                );
                assert!(error.path().ends_with(name), "{error}");
                assert_eq!(
                    error.to_string().contains("no \"message\""),
                    expected == "no message",
                    "{name}: {error}"
                );
                assert!(expected.is_string(), "{name}: {error}");
            }
            Ok(failure) => {
                let message = failure.message.as_str();
                match expected["message"].as_str() {
                    Some(whole) => assert_eq!(message, whole, "{name}"),
                    None => assert!(
                        message.starts_with(expected["message_starts"].as_str().expect(name)),
                        "{name}"
                    ),
                }
                match (expected["time_ns"].as_i64(), expected["timestamp"].as_i64()) {
                    (Some(ns), _) => assert_eq!(
                        (failure.time_ns, failure.whole_seconds),
                        (Some(ns), false),
                        "{name}"
                    ),
                    (None, seconds) => assert_eq!(
                        failure.time_ns.map(|ns| ns / 1_000_000_000),
                        seconds,
                        "{name}"
                    ),
                }
            }
        }
    }
}

#[test]
fn a_signal_record_is_read_whole() {
    let failure = read("firstfault_signal.json").expect("good");
    let section = failure.section.expect("ours");
    assert_eq!(failure.error_code, Some(-11));
    assert_eq!(section.rank.rank, Some(3));
    assert_eq!(section.threads[0].python[1].function, "train_step");
    assert_eq!(section.modules[0].path, "/usr/lib/libc.so.6");
    assert!(section.is_final && section.threads[0].crashed);
}

#[test]
fn a_call_stack_as_a_list_is_joined() {
    let list = read("callstack_list.json").expect("good");
    assert_eq!(
        list.callstack,
        read("torch_nested.json").expect("good").callstack
    );
}
