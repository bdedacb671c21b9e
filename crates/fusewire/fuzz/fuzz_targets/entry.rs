//! One entry of a ring, as the kernel fills it and as a dead process leaves it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fusewire::fuzzing::entry(bytes));
