//! Brings a document into the spelling of its schema, and finds what the schema does not know.

use serde_json::{Map, Value};

/// On a property: other names under which it was once documented.
pub(super) const ALIASES: &str = "x-lifeboat-aliases";

/// Renames keys to the spelling of `schema`, drops nulls, and warns of keys that have no effect.
pub(super) fn fit(value: &mut Value, schema: &Value, path: &str, warnings: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                fit_object(object, properties, path, warnings);
            } else if let Some(inner) = schema.get("additionalProperties") {
                for (key, value) in object {
                    fit(value, inner, &join(path, key), warnings);
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = schema.get("items") {
                for (position, item) in items.iter_mut().enumerate() {
                    fit(item, inner, &format!("{path}[{position}]"), warnings);
                }
            }
        }
        _ => {}
    }
}

fn fit_object(
    object: &mut Map<String, Value>,
    properties: &Map<String, Value>,
    path: &str,
    warnings: &mut Vec<String>,
) {
    for (key, mut value) in std::mem::take(object) {
        let place = join(path, &key);
        let Some((name, schema)) = properties.iter().find(|(name, schema)| means(&key, name, schema)) else {
            warnings.push(format!("{place} is not a setting and has no effect"));
            continue;
        };
        if !key.eq_ignore_ascii_case(name) {
            warnings.push(format!("{place} is taken as {}: write that instead", join(path, name)));
        }
        // Go leaves a field as it is when its value is null.
        if value.is_null() {
            continue;
        }
        fit(&mut value, schema, &join(path, name), warnings);
        if object.insert(name.clone(), value).is_some() {
            warnings.push(format!("{} is given more than once; the last one counts", join(path, name)));
        }
    }
}

fn means(key: &str, name: &str, schema: &Value) -> bool {
    let aliases = schema.get(ALIASES).and_then(Value::as_array);
    key.eq_ignore_ascii_case(name)
        || aliases.is_some_and(|aliases| {
            aliases.iter().filter_map(Value::as_str).any(|alias| key.eq_ignore_ascii_case(alias))
        })
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
