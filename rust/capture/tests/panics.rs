//! An unwinder that panics in the signal handler, in a process that really dies.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use firstfault_capture as capture;
use firstfault_handler::foreign;

/// The error file of the process that shall die; its parent's run of the same test has none.
const ERROR_FILE: &str = "FIRSTFAULT_TEST_ERROR_FILE";

#[test]
fn a_panic_costs_its_stage_and_prints_nothing() {
    if let Some(path) = std::env::var_os(ERROR_FILE) {
        die(Path::new(&path));
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("panics/error.json");
    let directory = path.parent().expect("a directory");
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).expect("a directory");
    let test = "a_panic_costs_its_stage_and_prints_nothing";
    let ended = Command::new(std::env::current_exe().expect("a test"))
        .args(["--exact", "--nocapture", test])
        .env(ERROR_FILE, &path)
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("a child");
    assert_eq!(ended.status.signal(), Some(6));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(said.matches(" panicked at ").count(), 1, "{said}");
    assert!(said.contains("before the crash"), "{said}");
    let record = std::fs::read_to_string(path).expect("an error file");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    let stages = record["firstfault"]["stages"].as_array().expect("stages");
    let status = |name| {
        let stage = stages.iter().find(|stage| stage["name"] == name);
        stage.and_then(|stage| stage["status"].as_str())
    };
    assert_eq!(status("own_native_stack"), Some("fault"));
    assert_eq!(status("park"), Some("ok"));
}

fn die(path: &Path) -> ! {
    capture::activate(Some(path), &[], None).expect("activation");
    let survived = std::panic::catch_unwind(|| panic!("before the crash"));
    assert!(survived.is_err());
    foreign::set_unwinder(|_, stack, _| {
        stack.push_instruction(0);
        panic!("in the unwinder");
    });
    std::process::abort();
}
