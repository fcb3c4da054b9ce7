//! What runs at signal time, and its installation.
#![no_std]
