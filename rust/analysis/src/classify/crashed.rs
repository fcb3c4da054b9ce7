//! What a signal's record says: the signal, the thread that it came to, and the code that this was in.

use super::{Finding, rules};
use crate::demangle;
use crate::failure::{Failure, Frame, Kind, NativeFrame, Section, Thread};
use crate::groups::Fingerprint;
use crate::parse::headline;
use crate::traceback::{self, FrameRef};
use std::borrow::Cow;

pub(super) fn is_signal(section: &Section) -> bool {
    section.signal.is_some() && matches!(section.kind, Some(Kind::Signal | Kind::Terminated) | None)
}

/// A crash: by what the C++ runtime or glibc said last, else by the signal.
pub(super) fn crash(failure: &Failure, section: &Section) -> Finding {
    let number = section.signal.as_ref().map_or(0, |signal| signal.number);
    let what = section
        .cpp_exception
        .as_ref()
        .map(|cpp| Cow::Owned(headline(&cpp.type_name, &cpp.what)));
    let said = section.abort_message.as_deref().map(Cow::Borrowed);
    let by_text = [what, said]
        .into_iter()
        .flatten()
        .find_map(|text| rules().by_text("", &text, ""));
    let sent = section.signal.as_ref().and_then(|signal| {
        let sender = signal.sender.as_ref()?;
        let other = sender.pid != 0 && Some(sender.pid) != section.process.pid;
        (other && crate::outcome::is_crash(-i64::from(number))).then_some((signal, sender))
    });
    let rule = match by_text {
        _ if sent.is_some() => rules().by_id("sent-signal"),
        Some(rule) => rule,
        None if section.cpp_exception.is_some() => rules().by_id("cpp-exception"),
        None => rules().by_status(-i64::from(number)),
    };
    let frames = crashed_frames(section);
    let name = section.signal.as_ref().map_or("", |signal| &signal.name);
    let text = if frames.clone().next().is_some() {
        ""
    } else {
        failure.message.as_str()
    };
    let fingerprint = Fingerprint::of(&rule.category, name, text, frames);
    let headline = match sent {
        None => with_function(&failure.message, section).into_owned(),
        Some((signal, sender)) => {
            let name = sender
                .comm
                .as_deref()
                .map(|name| format!(" ({name})"))
                .unwrap_or_default();
            let user = sender
                .uid
                .map(|uid| format!(" of user {uid}"))
                .unwrap_or_default();
            format!("{} sent by process {}{name}{user}", signal.name, sender.pid)
        }
    };
    Finding::plain(rule, fingerprint, headline)
}

/// Returns the Python frames of the thread that crashed, innermost first; those of the first thread that has any where
/// that one has none.
pub(crate) fn crashed_frames(section: &Section) -> impl Iterator<Item = FrameRef<'_>> + Clone {
    let crashed = section
        .threads
        .iter()
        .find(|thread| thread.crashed && !thread.python.is_empty());
    let thread = crashed.or_else(|| {
        section
            .threads
            .iter()
            .find(|thread| !thread.python.is_empty())
    });
    let frames = thread.map_or(&[][..], |thread| &thread.python);
    frames.iter().map(Frame::as_ref)
}

/// Returns the Python frames of the main thread, innermost first; those of the thread that crashed where it has none.
pub(crate) fn waiting_frames(section: &Section) -> Vec<FrameRef<'_>> {
    let mut threads = section.threads.iter();
    let main =
        threads.find(|thread| thread.tid == section.process.pid && !thread.python.is_empty());
    main.map_or_else(
        || crashed_frames(section).collect(),
        |main| main.python.iter().map(Frame::as_ref).collect(),
    )
}

/// Returns the native code where a crashed thread stood, for people.
pub(crate) fn native_place(section: &Section) -> Option<String> {
    // The innermost that is in a file: after a call through a null pointer, the caller.
    let mut frames = crashed_thread(section)?.native.iter();
    let frame = frames.find(|frame| frame.module.is_some() || frame.symbol.is_some())?;
    if let Some(function) = function_of(section, frame) {
        return Some(format!("in {function}"));
    }
    let name = traceback::short(&section.modules.get(frame.module?)?.path);
    Some(frame.offset.as_ref().map_or_else(
        || format!("in {name}"),
        |offset| format!("in {name}+{offset}"),
    ))
}

pub(super) fn crashed_thread(section: &Section) -> Option<&Thread> {
    let mut threads = section.threads.iter();
    threads
        .find(|thread| thread.crashed)
        .or(section.threads.first())
}

/// Returns a native frame's function and its module, where the record names the function.
pub(super) fn function_of(section: &Section, frame: &NativeFrame) -> Option<String> {
    let function = demangle::place(frame.symbol.as_deref()?);
    let module = frame.module.and_then(|module| section.modules.get(module));
    Some(match module {
        Some(module) => format!("{function} ({})", traceback::short(&module.path)),
        None => function,
    })
}

/// Returns the summary of a crash with the function that the thread was in, where the record names it, for its offset.
pub(super) fn with_function<'a>(message: &'a str, section: &Section) -> Cow<'a, str> {
    let named = crashed_thread(section).and_then(|thread| {
        let frame = thread.native.first()?;
        let function = function_of(section, frame)?;
        let path = &section.modules.get(frame.module?)?.path;
        let name = path.rsplit('/').next()?;
        let place = format!(", in {name}+{},", frame.offset.as_ref()?);
        let (before, after) = message.split_once(&place)?;
        Some(format!("{before}, in {function},{after}"))
    });
    named.map_or(Cow::Borrowed(message), Cow::Owned)
}
