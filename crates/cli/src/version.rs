//! `lifeboat version`.

/// Prints it.
pub fn run() {
    println!("lifeboat {}", env!("CARGO_PKG_VERSION"));
}
