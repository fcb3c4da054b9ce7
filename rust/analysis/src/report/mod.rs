//! A report in the form that a reader wants: text for people, JSON for programs, markdown for issues and chats; and one
//! error file with all its stacks.

pub mod json;
pub mod markdown;
pub mod redact;
pub mod show;
pub mod text;

pub mod safe;
