//! A cluster in memory: the API as far as agents use it, and a model of everybody who acts on what they ask for.
//!
//! The agents on it are the real ones. Everything else is as quick as memory, so that thousands of operations, and every
//! fault at every phase, take seconds.

#![allow(dead_code)] // each test uses a part of it

pub mod agents;
pub mod api;
pub mod http;
pub mod objects;
pub mod world;
