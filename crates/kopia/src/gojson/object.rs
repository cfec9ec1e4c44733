//! Structures as Go declares them: fields in order, empty ones left out, unknown ones kept.

use jiff::Timestamp;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;

/// What Go's `omitempty` asks of a value.
pub trait OmitEmpty {
    /// Whether a field with this value is left out: false, zero, empty, absent.
    fn is_empty_value(&self) -> bool;
}

macro_rules! empty_is_default {
    ($($type:ty),*) => {$(
        impl OmitEmpty for $type {
            fn is_empty_value(&self) -> bool {
                *self == <$type>::default()
            }
        }
    )*};
}

// Kopia's timestamps are integers underneath: the Unix epoch is the empty one.
empty_is_default!(bool, i64, u32, u64, f64, String, Timestamp);

impl<T> OmitEmpty for Option<T> {
    fn is_empty_value(&self) -> bool {
        self.is_none()
    }
}

impl<T> OmitEmpty for Vec<T> {
    fn is_empty_value(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> OmitEmpty for BTreeMap<K, V> {
    fn is_empty_value(&self) -> bool {
        self.is_empty()
    }
}

/// The fields of an object that this program does not know, in the order in which they were read, byte for byte.
///
/// They are written back after the known ones, so that rewriting what a newer program wrote loses nothing.
#[derive(Clone, Default)]
pub struct Unknown(Vec<(String, Box<RawValue>)>);

impl Unknown {
    /// The raw JSON of the field `name`; of several equal names the last one.
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().rfind(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// Sets the field `name`, in place if it is there already.
    pub fn set(&mut self, name: impl Into<String>, value: Box<RawValue>) {
        let name = name.into();
        match self.0.iter_mut().rfind(|(key, _)| *key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Adds a field as it was read, without looking for an equal name: a hostile object may have millions.
    pub(crate) fn push(&mut self, name: String, value: Box<RawValue>) {
        self.0.push((name, value));
    }

    /// All of them in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), &**value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq for Unknown {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self.iter().zip(other.iter()).all(|((a, x), (b, y))| a == b && x.get() == y.get())
    }
}

impl Eq for Unknown {}

// Names only: a field that we do not know may hold a secret.
impl fmt::Debug for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Declares a structure that is read and written as Go does it.
///
/// Each field is `pub name: Type => "json name"`, in the order of the format, followed by `omitempty` where Go
/// leaves empty values out. As with Go, a missing field or `null` is the default, the last of two equal names
/// counts. Fields that are not listed are kept in `unknown`.
macro_rules! go_object {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$field_meta:meta])* pub $field:ident : $type:ty => $json:literal $($omit:ident)? ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
            /// Fields that this program does not know; kept when it is rewritten.
            pub unknown: $crate::gojson::Unknown,
        }

        const _: () = {
            use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
            use serde::ser::{Serialize, SerializeMap, Serializer};
            use std::result::Result;

            #[allow(non_camel_case_types)]
            enum Key { $($field,)* Unknown(String) }

            struct KeyVisitor;

            impl Visitor<'_> for KeyVisitor {
                type Value = Key;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a field name")
                }
                fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Key, E> {
                    Ok(match name {
                        $($json => Key::$field,)*
                        other => Key::Unknown(other.to_owned()),
                    })
                }
            }

            impl<'de> Deserialize<'de> for Key {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_str(KeyVisitor)
                }
            }

            struct ObjectVisitor;

            impl<'de> Visitor<'de> for ObjectVisitor {
                type Value = $name;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str(concat!("a JSON object (", stringify!($name), ")"))
                }
                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                    let mut object = $name {
                        $($field: <$type>::default(),)*
                        unknown: $crate::gojson::Unknown::default(),
                    };
                    while let Some(key) = map.next_key::<Key>()? {
                        match key {
                            $(Key::$field => {
                                object.$field = map.next_value::<Option<$type>>()?.unwrap_or_default();
                            })*
                            Key::Unknown(name) => object.unknown.push(name, map.next_value()?),
                        }
                    }
                    Ok(object)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_map(ObjectVisitor)
                }
            }

            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    let mut map = serializer.serialize_map(None)?;
                    $( $crate::gojson::object_field!(map, self.$field, $json $(, $omit)?); )*
                    for (name, value) in self.unknown.iter() {
                        map.serialize_entry(name, value)?;
                    }
                    map.end()
                }
            }
        };
    };
}

/// Writes one field of a [`go_object`].
macro_rules! object_field {
    ($map:ident, $value:expr, $json:literal) => {
        $map.serialize_entry($json, &$value)?
    };
    ($map:ident, $value:expr, $json:literal, omitempty) => {
        if !$crate::gojson::OmitEmpty::is_empty_value(&$value) {
            $map.serialize_entry($json, &$value)?;
        }
    };
}

pub(crate) use {go_object, object_field};
