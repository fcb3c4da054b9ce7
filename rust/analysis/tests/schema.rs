//! The JSON Schemas that ship in the wheel are those of the Rust types.
//!
//! After a change of the types: `FIRSTFAULT_UPDATE=1 cargo test -p firstfault-analysis --test schema`.

use firstfault_analysis::schema;
use std::path::Path;

fn check(name: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../python/firstfault/schema")
        .join(name);
    if std::env::var_os("FIRSTFAULT_UPDATE").is_some() {
        std::fs::write(&path, generated).expect("writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed,
        generated,
        "{} is not what the types say",
        path.display()
    );
}

#[test]
fn the_committed_schemas_are_the_types_own() {
    check("error-file.json", &schema::error_file_schema());
    check("report.json", &schema::report_schema());
}

#[test]
fn a_schema_names_its_fields_as_the_files_do() {
    let schema = schema::error_file_schema();
    for name in [
        "\"errorCode\"",
        "\"extraInfo\"",
        "\"py_callstack\"",
        "\"final\"",
        "\"time_ns\"",
        "\"schema_version\"",
    ] {
        assert!(schema.contains(name), "{name}");
    }
}
