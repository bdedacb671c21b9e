//! The namespace: one metadata store above a narrow engine.
