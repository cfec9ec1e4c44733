//! Our definitions accept and show what those of the real Velero do.

#![allow(clippy::unwrap_used)]

use lifeboat_testkit::tools;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// What has to be equal: everything but the words that people read and the marks of the generator.
fn essence(mut value: Value) -> Value {
    strip(&mut value);
    value
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(object) => {
            // A property may be called "description" too; the text is always a string.
            object.retain(|key, value| !(value.is_null() || key == "description" && value.is_string()));
            object.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

fn by_name(definitions: Vec<Value>) -> BTreeMap<String, Value> {
    definitions
        .into_iter()
        .map(|definition| (definition["metadata"]["name"].as_str().unwrap().to_owned(), definition))
        .collect()
}

/// Every difference, as a path and the two values.
fn differences(path: &str, theirs: &Value, ours: &Value, found: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            let keys: std::collections::BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
            for key in keys {
                let null = Value::Null;
                differences(
                    &format!("{path}.{key}"),
                    theirs.get(key).unwrap_or(&null),
                    ours.get(key).unwrap_or(&null),
                    found,
                );
            }
        }
        (Value::Array(theirs), Value::Array(ours)) if path.ends_with(".required") => {
            let sorted = |list: &[Value]| {
                let mut list: Vec<_> = list.iter().map(Value::to_string).collect();
                list.sort();
                list
            };
            if sorted(theirs) != sorted(ours) {
                found.push(format!("{path}: {theirs:?} and {ours:?}"));
            }
        }
        (Value::Array(theirs), Value::Array(ours)) if theirs.len() == ours.len() => {
            for (position, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
                differences(&format!("{path}[{position}]"), theirs, ours, found);
            }
        }
        _ if theirs == ours => {}
        // Nothing at all and an empty set of subresources mean the same.
        _ if path.ends_with(".subresources")
            && [theirs, ours].iter().all(|side| side.is_null() || **side == serde_json::json!({})) => {}
        _ => found.push(format!("{path}: {theirs} and {ours}")),
    }
}

#[test]
fn definitions_equal_those_that_velero_installs() {
    let velero = tools::path("velero").unwrap();
    let printed =
        Command::new(velero).args(["install", "--crds-only", "--dry-run", "-o", "yaml"]).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let theirs: Value = serde_norway::from_slice(&printed.stdout).unwrap();
    let theirs = by_name(theirs["items"].as_array().unwrap().clone());
    let ours = by_name(
        lifeboat_api::crds::all()
            .unwrap()
            .iter()
            .map(|definition| serde_json::to_value(definition).unwrap())
            .collect(),
    );

    assert_eq!(theirs.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>());
    let mut found = Vec::new();
    for (name, theirs) in theirs {
        let (theirs, ours) = (essence(theirs), essence(ours[&name].clone()));
        for part in ["group", "names", "scope", "versions"] {
            differences(&format!("{name} {part}"), &theirs["spec"][part], &ours["spec"][part], &mut found);
        }
        differences(
            &format!("{name} labels"),
            &theirs["metadata"]["labels"],
            &ours["metadata"]["labels"],
            &mut found,
        );
    }
    assert!(found.is_empty(), "{} differences (Velero's value first):\n{}", found.len(), found.join("\n"));
}
