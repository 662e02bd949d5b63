//! How the chosen values are compared.

use tower_webhook_dedup::NoId;

use crate::{all_differ, except, fields, key, none, same, ways};

// R30, R60
#[test]
fn values_are_compared_by_what_they_mean() {
    for (key_by, body) in ways() {
        let bodies = |values: &[&str]| values.iter().map(|v| body(v)).collect::<Vec<_>>();
        let differ = [
            "null",
            "true",
            "false",
            "0",
            "\"\"",
            "\"null\"",
            "\"true\"",
            "\"0\"",
            "\" \"",
            "[]",
            "{}",
            "[null]",
            "[[]]",
            "[0,1]",
            "[1,0]",
            "[[0],1]",
            "[[0,1]]",
            "[\"0,1\"]",
            r#"{"a":null}"#,
            r#"{"a":0}"#,
            r#"{"a":{"b":0}}"#,
            r#"{"a":0,"b":0}"#,
            r#"{"a":"","b":0}"#,
            r#"{"":0}"#,
            r#"{"b":0}"#,
            // Numbers count by their text: what a double makes of it is not known.
            "-0",
            "0.0",
            "1",
            "1.0",
            "1e0",
            "1E0",
            "9007199254740993",
            "9007199254740992",
            "18446744073709551616",
            "18446744073709551617",
            "1e999",
            // Text is not normalised.
            "\"\u{e9}\"",
            "\"e\u{301}\"",
            "\"\\u0000\"",
        ];
        let differ = bodies(&differ);
        all_differ(
            &key_by,
            &differ.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        for alike in [
            &[
                r#"{"a":[1,2],"b":{"c":3,"d":4}}"#,
                "{ \"b\" : {\"d\":4 ,\n\"c\":3} , \"a\"\t:[ 1,2\r] }",
            ][..],
            &[
                "\"a/\u{e9}\u{1F600}\\n\"",
                r#""\u0061\/\u00E9\ud83d\ude00\u000a""#,
            ],
            &[r#"{"a":0}"#, r#"{"\u0061":0}"#],
            &["[]", "[ ]"],
            &["{}", "{\n}"],
        ] {
            let alike = bodies(alike);
            same(
                &key_by,
                &alike.iter().map(String::as_str).collect::<Vec<_>>(),
            );
        }
    }
}

// R60
#[test]
fn a_key_twice_in_what_counts_makes_no_id() {
    let twice = [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":2,"\u0061":2}"#,
        r#"[0,{"x":{"a":1,"a":2}}]"#,
    ];
    for (key_by, body) in ways() {
        for value in twice {
            none(&key_by, NoId::Ambiguous, &[&body(value)]);
        }
    }
    // On the way to what counts, or to what does not.
    none(
        &fields(),
        NoId::Ambiguous,
        &[
            r#"{"a":1,"a":1}"#,
            r#"{"b":{"c":1},"b":{}}"#,
            r#"{"b":{"c":1,"c":1}}"#,
        ],
    );
    none(
        &except(),
        NoId::Ambiguous,
        &[
            r#"{"n":1,"n":2}"#,
            r#"{"deep":{"er":1},"deep":{"er":2}}"#,
            r#"{"deep":{"er":{"n":1,"n":1}}}"#,
        ],
    );
    // Elsewhere it is nothing to us.
    key(&fields(), r#"{"z":1,"z":2,"a":1}"#).unwrap();
}

#[test]
fn many_keys_are_no_trouble() {
    let members = |numbers: &mut dyn Iterator<Item = usize>| {
        let members: Vec<_> = numbers.map(|n| format!("\"k{n}\":{n}")).collect();
        format!("{{{}}}", members.join(","))
    };
    let (up, down) = (members(&mut (0..50_000)), members(&mut (0..50_000).rev()));
    same(&except(), &[&up, &down]);
    none(
        &except(),
        NoId::Ambiguous,
        &[&up.replace("\"k49999\"", "\"k0\"")],
    );
}
