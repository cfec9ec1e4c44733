//! Text of the protocols: percent-encoding of keys and queries, XML bodies.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::DeserializeOwned;

/// Everything but the characters that no store and no signature treats specially.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const ENCODED_IN_PATH: &AsciiSet = &ENCODED.remove(b'/');

/// A key as the path of a URL; slashes stay.
pub(crate) fn path(key: &str) -> String {
    utf8_percent_encode(key, ENCODED_IN_PATH).to_string()
}

/// A key as one segment of a path, or as the value of a query parameter.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Undoes the encoding of keys in listings that were asked for with `encoding-type=url`.
pub(crate) fn decode_key(text: &str) -> Option<String> {
    // Stores encode as for a form: a space is a plus.
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8().ok().map(Into::into)
}

/// Reads an XML body, with the reason if it is not what was expected.
pub(crate) fn xml<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    // A byte order mark, which Azure sends, is no part of the document.
    quick_xml::de::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_for_paths_and_queries() {
        assert_eq!(path("a b/ä+%~._-"), "a%20b/%C3%A4%2B%25~._-");
        assert_eq!(segment("a/b?c=d&e"), "a%2Fb%3Fc%3Dd%26e");
        assert_eq!(decode_key("a+b%2B%2Fc").as_deref(), Some("a b+/c"));
        assert_eq!(decode_key("%ff"), None);
    }
}
