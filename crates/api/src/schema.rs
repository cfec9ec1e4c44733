//! How Rust types become the OpenAPI schemas that Velero's definitions have.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

/// A list or map for which `null` may stand in an object, meaning the empty one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Nullable<T>(pub T);

impl<T> Deref for Nullable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Nullable<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> From<T> for Nullable<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<'de, T: Default + Deserialize<'de>> Deserialize<'de> for Nullable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Option::deserialize(deserializer)?.unwrap_or_default()))
    }
}

impl<T: JsonSchema> JsonSchema for Nullable<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Nullable{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<T>::json_schema(generator)
    }

    fn inline_schema() -> bool {
        true
    }
}

/// Defines an enumeration of strings; a variant stands for its own name unless it says otherwise.
macro_rules! string_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$variant_meta:meta])* $variant:ident $(= $text:literal)? ),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $( $(#[$variant_meta])* $( #[serde(rename = $text)] )? $variant ),+
        }

        impl $name {
            /// Every value, in the order of the definition.
            pub const ALL: &'static [Self] = &[$( Self::$variant ),+];

            /// The value as it stands in an object.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $( Self::$variant => $crate::schema::string_enum!(@text $variant $($text)?) ),+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let values: Vec<&str> = Self::ALL.iter().map(|value| value.as_str()).collect();
                schemars::json_schema!({ "type": "string", "enum": values })
            }
        }
    };
    (@text $variant:ident) => { stringify!($variant) };
    (@text $variant:ident $text:literal) => { $text };
}
pub(crate) use string_enum;

/// Schemas of types of Kubernetes itself, as they stand inside Velero's definitions.
pub(crate) mod foreign {
    use super::{Schema, SchemaGenerator, json_schema};

    /// A selector of objects by their labels.
    pub fn label_selector(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
                "matchExpressions": {
                    "type": "array",
                    "x-kubernetes-list-type": "atomic",
                    "items": {
                        "type": "object",
                        "required": ["key", "operator"],
                        "properties": {
                            "key": { "type": "string" },
                            "operator": { "type": "string" },
                            "values": { "type": "array", "x-kubernetes-list-type": "atomic", "items": { "type": "string" } },
                        },
                    },
                },
            },
        })
    }

    /// One selector, or null.
    pub fn nullable_label_selector(generator: &mut SchemaGenerator) -> Schema {
        nullable(label_selector(generator))
    }

    /// A list of selectors, or null.
    pub fn nullable_label_selectors(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "nullable": true, "items": label_selector(generator) })
    }

    /// A reference to any object.
    pub fn object_reference(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "apiVersion": { "type": "string" },
                "fieldPath": { "type": "string" },
                "kind": { "type": "string" },
                "name": { "type": "string" },
                "namespace": { "type": "string" },
                "resourceVersion": { "type": "string" },
                "uid": { "type": "string" },
            },
        })
    }

    /// A reference to an object of the same namespace.
    pub fn local_reference(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "required": ["kind", "name"],
            "properties": { "apiGroup": { "type": "string" }, "kind": { "type": "string" }, "name": { "type": "string" } },
        })
    }

    /// Such a reference, or null.
    pub fn nullable_local_reference(generator: &mut SchemaGenerator) -> Schema {
        nullable(local_reference(generator))
    }

    /// A key of a secret.
    pub fn secret_key(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "required": ["key"],
            "properties": {
                "key": { "type": "string" },
                "name": { "type": "string", "default": "" },
                "optional": { "type": "boolean" },
            },
        })
    }

    /// Bytes in Base64.
    pub fn bytes(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "byte" })
    }

    /// A list of containers, of which only a pod's admission knows whether they are right.
    pub fn containers(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "x-kubernetes-preserve-unknown-fields": true,
            "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        })
    }

    /// A list of strings that may not be empty.
    pub fn command(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "minItems": 1, "items": { "type": "string" } })
    }

    fn nullable(mut schema: Schema) -> Schema {
        schema.insert("nullable".to_owned(), true.into());
        schema
    }
}

/// Makes the generated schema of one kind what Velero's is: no defaults from Rust, plain integers without a width,
/// `apiVersion`, `kind` and `metadata` named, and nothing required at the top.
pub(crate) fn normalise_root(root: &mut Value) {
    normalise(root);
    let Some(root) = root.as_object_mut() else { return };
    root.remove("required");
    root.remove("title");
    if let Some(properties) = root.get_mut("properties").and_then(Value::as_object_mut) {
        for name in ["spec", "status"] {
            if let Some(part) = properties.get_mut(name).and_then(Value::as_object_mut) {
                part.remove("nullable");
                part.entry("type").or_insert_with(|| "object".into());
            }
        }
        properties.insert(
            "apiVersion".into(),
            json!({ "type": "string", "description": "The version of this object's schema." }),
        );
        properties.insert("kind".into(), json!({ "type": "string", "description": "What this object is." }));
        properties.insert("metadata".into(), json!({ "type": "object" }));
    }
}

fn normalise(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    // Types of Kubernetes itself are as they should be, their defaults too.
    if schema.contains_key("x-kubernetes-map-type") {
        return;
    }
    schema.remove("default");
    if schema.get("format").is_some_and(|format| format == "int32") {
        schema.remove("format");
    }
    if let Some(required) = schema.get("required").and_then(Value::as_array)
        && required.is_empty()
    {
        schema.remove("required");
    }
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.iter_mut().for_each(|(_, property)| normalise(property));
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(inner) {
            normalise(inner);
        }
    }
}
