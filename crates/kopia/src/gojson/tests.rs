#![allow(clippy::unwrap_used)]

use super::*;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

go_object! {
    /// A structure with everything in it.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct Sample {
        /// Always written.
        pub name: String => "name",
        /// Left out if empty.
        pub count: i64 => "count" omitempty,
        /// Left out at the epoch.
        pub time: Timestamp => "time" omitempty,
        /// Never left out.
        pub go_time: GoTime => "goTime",
        /// Left out if zero.
        pub span: Nanos => "span" omitempty,
        /// Left out if empty.
        pub bytes: Base64 => "bytes" omitempty,
        /// Left out if empty.
        pub map: BTreeMap<String, String> => "map" omitempty,
        /// `null` if absent.
        pub list: Option<Vec<i64>> => "list",
        /// Whole numbers without fraction.
        pub ratio: f64 => "ratio" omitempty,
    }
}

#[test]
fn strings_are_escaped_as_go_does_it() {
    let text = "a<b>&c\u{2028}\u{2029}\"\\\n\r\t\u{8}\u{c}\u{1}\u{1f}\u{7f}é😀/";
    assert_eq!(
        to_string(text).unwrap(),
        "\"a\\u003cb\\u003e\\u0026c\\u2028\\u2029\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\u{7f}é😀/\""
    );
    // The bytes around U+2028 are not taken for it.
    assert_eq!(to_string("\u{2027}\u{202a}\u{20a8}").unwrap(), "\"\u{2027}\u{202a}\u{20a8}\"");
}

#[test]
fn an_empty_structure_shows_what_is_never_left_out() {
    let json = to_string(&Sample::default()).unwrap();
    assert_eq!(json, r#"{"name":"","goTime":"0001-01-01T00:00:00Z","list":null}"#);
}

#[test]
fn values_look_as_go_writes_them() {
    let sample = Sample {
        name: "n".into(),
        count: -1,
        time: "2026-08-19T08:00:00.120Z".parse().unwrap(),
        go_time: GoTime("2026-08-19T10:00:00.000000001+02:00".parse().unwrap()),
        span: Nanos::from_hours(24),
        bytes: Base64(vec![0, 1, 255]),
        map: BTreeMap::from([("b".into(), "2".into()), ("a&".into(), "1".into())]),
        list: Some(vec![]),
        ratio: 30.0,
        unknown: Unknown::default(),
    };
    let json = to_string(&sample).unwrap();
    assert_eq!(
        json,
        concat!(
            r#"{"name":"n","count":-1,"time":"2026-08-19T08:00:00.12Z","goTime":"2026-08-19T08:00:00.000000001Z","#,
            r#""span":86400000000000,"bytes":"AAH/","map":{"a\u0026":"1","b":"2"},"list":[],"ratio":30}"#
        )
    );
    assert_eq!(serde_json::from_str::<Sample>(&json).unwrap(), sample);
}

#[test]
fn null_and_missing_fields_are_defaults_and_the_last_of_equal_names_counts() {
    let json = r#"{"name":null,"count":1,"map":null,"count":2,"goTime":null}"#;
    let sample: Sample = serde_json::from_str(json).unwrap();
    assert_eq!(sample, Sample { count: 2, ..Sample::default() });
}

#[test]
fn unknown_fields_survive_in_order_and_byte_for_byte() {
    let json = r#"{"new":{"b": 1.50, "a":[1e400]},"name":"n","zz":12345678901234567890123,"goTime":"0001-01-01T00:00:00Z","list":null}"#;
    let mut sample: Sample = serde_json::from_str(json).unwrap();
    assert_eq!(sample.unknown.len(), 2);
    assert_eq!(sample.unknown.get("zz").unwrap().get(), "12345678901234567890123");
    let rewritten = to_string(&sample).unwrap();
    assert_eq!(
        rewritten,
        r#"{"name":"n","goTime":"0001-01-01T00:00:00Z","list":null,"new":{"b": 1.50, "a":[1e400]},"zz":12345678901234567890123}"#
    );
    sample.unknown.set("zz", RawValue::from_string("true".into()).unwrap());
    sample.unknown.set("more", RawValue::from_string("[]".into()).unwrap());
    assert!(to_string(&sample).unwrap().ends_with(r#","zz":true,"more":[]}"#));
    assert!(!format!("{sample:?}").contains("123456"), "what is unknown may be secret");
}

#[test]
fn wrong_types_are_errors_that_say_what_was_expected() {
    let error = serde_json::from_str::<Sample>(r#"[1]"#).unwrap_err();
    assert!(error.to_string().contains("Sample"), "{error}");
    assert!(serde_json::from_str::<Sample>(r#"{"time":"yesterday"}"#).is_err());
    assert!(serde_json::from_str::<Sample>(r#"{"bytes":"*"}"#).is_err());
}

#[test]
fn times_of_any_offset_are_understood() {
    for text in ["2026-11-16T00:30:20.5Z", "2026-11-16T02:30:20.5+02:00", "2026-11-15T17:30:20.500000-07:00"]
    {
        let time: GoTime = serde_json::from_str(&format!("{text:?}")).unwrap();
        assert_eq!(to_string(&time).unwrap(), "\"2026-11-16T00:30:20.5Z\"");
    }
    assert_eq!(GoTime::default().get(), None);
    assert_eq!(to_string(&GoTime::ZERO).unwrap(), "\"0001-01-01T00:00:00Z\"");
}

#[test]
fn indented_output_has_two_spaces_and_a_newline() {
    let json = to_pretty_line(&BTreeMap::from([("k", vec![1]), ("<", vec![])])).unwrap();
    assert_eq!(String::from_utf8(json).unwrap(), "{\n  \"\\u003c\": [],\n  \"k\": [\n    1\n  ]\n}\n");
}

#[test]
fn fractions_keep_their_digits() {
    assert_eq!(
        to_string(&[0.5, 1e300, -2.0, 9_007_199_254_740_993.5]).unwrap(),
        "[0.5,1e+300,-2,9007199254740994.0]"
    );
}

#[test]
fn spans_out_of_go_s_range_are_cut_and_negative_ones_count_as_none() {
    assert_eq!(Nanos::from(std::time::Duration::MAX), Nanos(i64::MAX));
    assert_eq!(Nanos(-5).to_duration(), std::time::Duration::ZERO);
}

proptest! {
    #[test]
    fn every_text_survives_and_never_contains_what_html_would_misread(text in "\\PC*|[\u{0}-\u{ffff}]*") {
        let json = to_string(&text).unwrap();
        prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        let misread = json.contains(['<', '>', '&', '\u{2028}', '\u{2029}', '\n']);
        prop_assert!(!misread, "{}", json);
    }

    #[test]
    fn any_bytes_are_refused_or_understood_but_never_a_panic(bytes: Vec<u8>) {
        let _ = serde_json::from_slice::<Sample>(&bytes);
    }
}
