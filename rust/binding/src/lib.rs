//! The Python extension module `firstfault._native`.
