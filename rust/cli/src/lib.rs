//! The firstfault command line.
#![deny(unsafe_code)]
