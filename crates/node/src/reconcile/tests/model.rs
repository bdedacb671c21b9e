//! Random operations, interleaved with partial reconciling, faults and restarts: at the end the
//! backing directory equals the logical tree.
