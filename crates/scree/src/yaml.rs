//! JSON values as YAML. Strings are quoted as in JSON, which YAML 1.2 reads alike, so that no
//! string is read as a number or a date.

use serde_json::Value;

/// Formats `value` as a YAML document.
pub fn to_string(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Array(items) if !items.is_empty() => sequence(items, 0, &mut text),
        Value::Object(fields) if !fields.is_empty() => mapping(fields, 0, &mut text),
        scalar => text = format!("{scalar}\n"),
    }
    text
}

type Fields = serde_json::Map<String, Value>;

fn indent(depth: usize, text: &mut String) {
    text.extend(std::iter::repeat_n("  ", depth));
}

/// What follows `key:` or `-` on its line, and the lines below.
fn nested(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            sequence(items, depth, text);
        }
        Value::Object(fields) if !fields.is_empty() => {
            text.push('\n');
            mapping(fields, depth, text);
        }
        scalar => *text += &format!(" {scalar}\n"),
    }
}

fn mapping(fields: &Fields, depth: usize, text: &mut String) {
    for (key, value) in fields {
        indent(depth, text);
        *text += key;
        text.push(':');
        nested(value, depth + 1, text);
    }
}

fn sequence(items: &[Value], depth: usize, text: &mut String) {
    for item in items {
        indent(depth, text);
        text.push('-');
        match item {
            // The first field is on the line of the dash.
            Value::Object(fields) if !fields.is_empty() => {
                let mut lines = String::new();
                mapping(fields, depth + 1, &mut lines);
                text.push(' ');
                *text += lines.trim_start();
            }
            other => nested(other, depth + 1, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists_nest() {
        let value = serde_json::json!([
            {"id": "vol-1", "size": 4096, "export": {"uri": "nbd:x", "tcp_uri": null}},
            {"id": "no", "snapshots": ["a", "b"], "none": [], "empty": {}},
        ]);
        let expected =
            "- empty: {}\n  id: \"no\"\n  none: []\n  snapshots:\n    - \"a\"\n    - \"b\"\n";
        let text = to_string(&value);
        assert!(text.ends_with(expected), "{text}");
        assert!(
            text.starts_with("- export:\n    tcp_uri: null\n    uri: \"nbd:x\"\n  id:"),
            "{text}"
        );
        assert_eq!(to_string(&serde_json::json!([])), "[]\n");
    }
}
