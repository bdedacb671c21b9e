//! The arguments of INIT.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fusewire::fuzzing::init(bytes));
