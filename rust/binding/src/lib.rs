//! The Python extension module `firstfault._native`: conversions only.

mod black_box;
mod capture;
mod error;
mod interpreter;
mod interpreter_end;
mod python_stack;
mod reading;
mod report;

/// The Rust core of firstfault.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::black_box::{black_box, breadcrumb, discard_black_box, exiting, step};
    #[pymodule_export]
    use crate::capture::{
        activate, after_fork, clock, commit, give_alternate_stack, held, identity, may_hang,
        precede, protect_native_threads, reassert, replace,
    };
    #[pymodule_export]
    use crate::reading::{doctor, is_collateral, modules_to_import, run_cli, signal_name};
    #[pymodule_export]
    use crate::report::{report, root_cause};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::interpreter::require_main(pyo3::Bound::py(module))
    }
}
