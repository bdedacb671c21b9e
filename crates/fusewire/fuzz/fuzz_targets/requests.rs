//! Several requests on one connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fusewire::fuzzing::requests(bytes));
