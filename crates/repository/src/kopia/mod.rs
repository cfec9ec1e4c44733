//! The Kopia engine behind the Unified Repository Interface.

mod errors;
mod object;
mod open;
mod scatter;
mod service;
mod settings;

pub use open::KopiaRepository;
pub use service::{KopiaService, store_config};
