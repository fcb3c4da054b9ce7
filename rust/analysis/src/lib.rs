//! Evidence to verdict to report.
#![deny(unsafe_code)]
