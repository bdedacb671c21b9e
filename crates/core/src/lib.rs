//! Every decision Forebay takes, as pure state machines: no I/O, clock, thread or hidden randomness.
