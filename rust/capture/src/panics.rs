//! A panic of ours inside the signal handler: it ends its stage and says nothing.

use std::panic;
use std::sync::Once;

use firstfault_handler::handle;

static INSTALLED: Once = Once::new();

/// Lets a panic in a stage of the handler end that stage; any other panic is told of as before.
///
/// The unwinder indexes into tables that the crash may have damaged. What a panic would print is no word of the
/// program's, and its own unwinding allocates and takes the loader's lock.
pub(crate) fn end_stages() {
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |information| {
            handle::give_up_stage();
            previous(information);
        }));
    });
}
