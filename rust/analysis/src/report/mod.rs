//! A report in the form that a reader wants: text for people, JSON for programs, markdown for issues and chats, a digest
//! or a line where there is little room; and one error file with all its stacks.

pub mod digest;
pub mod json;
pub mod line;
pub mod markdown;
pub mod redact;
pub mod show;
pub mod text;

pub mod safe;
