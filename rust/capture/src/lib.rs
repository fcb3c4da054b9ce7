//! The normal-context half of capture.
