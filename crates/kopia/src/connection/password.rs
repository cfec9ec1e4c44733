//! The password beside the connection file, for machines without a keyring: base64, readable by the owner alone.

use super::file::{local, write_private};
use crate::format::Password;
use crate::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

fn password_file(connection_file: &Path) -> PathBuf {
    let mut name = connection_file.as_os_str().to_owned();
    name.push(".kopia-password");
    name.into()
}

/// The password stored for the connection file, if any.
pub fn load_password(connection_file: &Path) -> Result<Option<Password>> {
    let path = password_file(connection_file);
    let text = match std::fs::read(&path) {
        Ok(text) => Zeroizing::new(text),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(local("read password file", &path, error)),
    };
    let damaged =
        || Error::Invalid(format!("{} does not hold a stored password; connect again", path.display()));
    let decoded = Zeroizing::new(STANDARD.decode(text.trim_ascii()).map_err(|_| damaged())?);
    let password = std::str::from_utf8(&decoded).map_err(|_| damaged())?;
    Ok(Some(Password::new(password)))
}

/// Stores the password for the connection file.
pub fn store_password(connection_file: &Path, password: &Password) -> Result<()> {
    let text = Zeroizing::new(STANDARD.encode(password.expose()));
    write_private(&password_file(connection_file), text.as_bytes())
}

/// Removes the stored password; none is no error.
pub fn forget_password(connection_file: &Path) -> Result<()> {
    let path = password_file(connection_file);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(local("delete", &path, error)),
        _ => Ok(()),
    }
}
