//! Reconnect tokens: where a repository is, how its storage is reached and, if wanted, its password, in one word.
//!
//! A token is encoded, not encrypted: whoever has it has the credentials in it.

use super::StorageInfo;
use crate::format::Password;
use crate::gojson::to_string;
use crate::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

/// The only version there is.
const VERSION: &str = "1";

#[derive(Serialize, Deserialize)]
struct Fields {
    version: String,
    storage: StorageInfo,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    password: String,
}

/// The token for a storage and, if it is to be in it, the password of the repository there.
pub fn encode_token(storage: &StorageInfo, password: Option<&Password>) -> Result<Zeroizing<String>> {
    let password = password.map_or_else(String::new, |password| password.expose().to_owned());
    let mut fields = Fields { version: VERSION.to_owned(), storage: storage.clone(), password };
    let json = to_string(&fields);
    fields.password.zeroize();
    let json = json.map_err(|_| Error::Invalid("the storage has no place in a token".to_owned()))?;
    Ok(Zeroizing::new(URL_SAFE_NO_PAD.encode(Zeroizing::new(json).as_bytes())))
}

/// What is in a token. No error quotes any of it.
pub fn decode_token(token: &str) -> Result<(StorageInfo, Option<Password>)> {
    let invalid = |reason: &str| Error::Invalid(format!("this is not a reconnect token: {reason}"));
    let json = URL_SAFE_NO_PAD.decode(token.trim()).map_err(|_| invalid("it is not whole"))?;
    let json = Zeroizing::new(json);
    let fields: Fields = serde_json::from_slice(&json).map_err(|_| invalid("it does not name a storage"))?;
    if fields.version != VERSION {
        return Err(invalid("its version is not known; a newer program may know it"));
    }
    let password = Zeroizing::new(fields.password);
    let password = (!password.is_empty()).then(|| Password::new(password.as_str()));
    Ok((fields.storage, password))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn storage() -> StorageInfo {
        let config = serde_json::json!({ "path": "/a<b>&c" });
        StorageInfo { storage_type: "filesystem".to_owned(), config, ..StorageInfo::default() }
    }

    #[test]
    fn tokens_are_kopias() {
        let token = encode_token(&storage(), Some(&Password::new("p"))).unwrap();
        let json = URL_SAFE_NO_PAD.decode(token.as_bytes()).unwrap();
        let expected = r#"{"version":"1","storage":{"type":"filesystem","config":{"path":"/a\u003cb\u003e\u0026c"}},"password":"p"}"#;
        assert_eq!(String::from_utf8(json).unwrap(), expected);
        let (found, password) = decode_token(&format!(" {}\n", *token)).unwrap();
        assert_eq!((found, password.unwrap().expose()), (storage(), "p"));
        assert!(decode_token(&encode_token(&storage(), None).unwrap()).unwrap().1.is_none());
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_quoted() {
        let secret = URL_SAFE_NO_PAD.encode(r#"{"version":"2","storage":{},"password":"hush"}"#);
        let no_storage = URL_SAFE_NO_PAD.encode(r#"{"version":"1","storage":"hush"}"#);
        for token in ["", "hush!", &secret, &no_storage, &secret[..secret.len() - 3]] {
            let error = decode_token(token).unwrap_err().to_string();
            assert!(!error.contains("hush") && error.contains("reconnect token"), "{error}");
        }
    }
}
