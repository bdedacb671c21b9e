//! One request as it is read from the device.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fusewire::fuzzing::request(bytes));
