//! A record while it is written: nameless where the file system can, under a temporary name elsewhere.

use core::ffi::CStr;

use firstfault_format::files;

use crate::commit::{Content, Paths};
use crate::place::{Place, Process};
use crate::sys::{self, Errno};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Nameless,
    Named,
}

pub(crate) struct Temporary {
    pub(crate) descriptor: i32,
    kind: Kind,
}

impl Temporary {
    pub(crate) fn create(
        place: &Place<'_>,
        process: &Process,
        kind: Kind,
        paths: &mut Paths,
    ) -> Result<Self, Errno> {
        // The thread's ID keeps a crash apart from a record that another thread is writing just then.
        paths
            .temporary
            .start(place.error().to_bytes())
            .push(b".")
            .push_decimal(process.id as u64)
            .push(b".")
            .push_decimal(sys::thread_id() as u64)
            .push(files::TEMPORARY.as_bytes());
        let descriptor = match kind {
            Kind::Nameless => sys::open(
                place.directory(),
                libc::O_TMPFILE | libc::O_WRONLY,
                place.mode(),
            )?,
            Kind::Named => {
                let path = paths.temporary.as_c_str().ok_or(libc::ENAMETOOLONG)?;
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_NOFOLLOW;
                match sys::open(path, flags, place.mode()) {
                    Err(libc::EEXIST) => {
                        sys::unlink(path)?;
                        sys::open(path, flags, place.mode())?
                    }
                    other => other?,
                }
            }
        };
        paths
            .nameless
            .start(b"/proc/self/fd/")
            .push_decimal(descriptor as u64);
        Ok(Self { descriptor, kind })
    }

    /// Tries what a commit does, and leaves nothing: a file under its temporary name.
    pub(crate) fn probe(
        place: &Place<'_>,
        process: &Process,
        kind: Kind,
        content: &mut dyn Content,
        paths: &mut Paths,
    ) -> Result<(), Errno> {
        let temporary = Self::create(place, process, kind, paths)?;
        let named = paths.temporary.as_c_str().ok_or(libc::ENAMETOOLONG);
        let result = named.and_then(|named| {
            content.write(temporary.descriptor)?;
            match kind {
                Kind::Nameless => {
                    temporary.publish(named, paths)?;
                    sys::unlink(named)
                }
                Kind::Named => Ok(()),
            }
        });
        temporary.discard(paths);
        result
    }

    fn name<'p>(&self, paths: &'p Paths) -> Result<&'p CStr, Errno> {
        match self.kind {
            Kind::Nameless => paths.nameless.as_c_str(),
            Kind::Named => paths.temporary.as_c_str(),
        }
        .ok_or(libc::ENAMETOOLONG)
    }

    /// Gives the file this name; fails with `EEXIST` where it is taken.
    pub(crate) fn publish(&self, path: &CStr, paths: &Paths) -> Result<(), Errno> {
        let name = self.name(paths)?;
        match sys::link(name, path) {
            // No hard links here.
            Err(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK)
                if self.kind == Kind::Named =>
            {
                match sys::rename_to_free(name, path) {
                    // The caller has just seen that the name is free: only that moment is left open.
                    Err(libc::EINVAL | libc::ENOSYS) => sys::rename(name, path),
                    other => other,
                }
            }
            other => other,
        }
    }

    /// Puts the file in the place of whatever has this name.
    pub(crate) fn publish_over(&self, path: &CStr, paths: &Paths) -> Result<(), Errno> {
        let named = paths.temporary.as_c_str().ok_or(libc::ENAMETOOLONG)?;
        if self.kind == Kind::Nameless {
            sys::link(self.name(paths)?, named)?;
        }
        let result = sys::rename(named, path);
        if result.is_err() && self.kind == Kind::Nameless {
            let _ = sys::unlink(named);
        }
        result
    }

    pub(crate) fn discard(self, paths: &Paths) {
        sys::close(self.descriptor);
        if self.kind == Kind::Named
            && let Some(path) = paths.temporary.as_c_str()
        {
            // Gone already where it was renamed.
            let _ = sys::unlink(path);
        }
    }
}
