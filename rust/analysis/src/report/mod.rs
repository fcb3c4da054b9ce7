//! A report in the form that a reader wants: text for people, JSON for programs, markdown for issues and chats.

pub mod json;
pub mod markdown;
pub mod text;

mod safe;
