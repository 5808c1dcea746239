//! Formats a report as text. Each list of rows becomes a table with a column for each field; fields that are the same in
//! all rows stand above it.

use serde::Serialize;
use serde_json::Value;

use crate::report;

/// The names and texts of a row's fields.
type Row = Vec<(String, String)>;

fn leaf(value: &Value) -> String {
    match value {
        Value::Bool(value) => if *value { "yes" } else { "no" }.into(),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            let digits = match number.abs() {
                100.0.. => 0,
                10.0.. => 1,
                1.0.. => 2,
                _ => 4,
            };
            format!("{number:.digits$}")
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Appends a value's fields to a row; a field of a field has both names.
fn flatten(value: &Value, name: &str, row: &mut Row) {
    match value {
        Value::Null => {}
        Value::Array(list) => {
            let texts = list.iter().map(|value| {
                let mut inner = Row::new();
                flatten(value, "", &mut inner);
                inner.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
            });
            row.push((name.into(), texts.collect::<Vec<_>>().join(", ")));
        }
        Value::Object(fields) => {
            for (inner, value) in fields {
                let both = format!("{name} {}", inner.replace('_', " "));
                flatten(value, both.trim_start(), row);
            }
        }
        value => row.push((name.into(), leaf(value))),
    }
}

/// Formats a document, which is an object.
pub(crate) fn text(document: &impl Serialize) -> String {
    let Ok(Value::Object(fields)) = serde_json::to_value(document) else { return String::new() };
    let (mut text, mut rest) = (String::new(), Row::new());
    for (name, value) in fields {
        match value {
            Value::Array(rows) if rows.iter().all(Value::is_object) => text += &table(&rows),
            value => flatten(&value, &name.replace('_', " "), &mut rest),
        }
    }
    text.extend(rest.iter().map(|(name, text)| format!("{name}: {text}\n")));
    text
}

fn table(rows: &[Value]) -> String {
    let rows = rows.iter().map(|value| {
        let mut row = Row::new();
        flatten(value, "", &mut row);
        row
    });
    let rows: Vec<Row> = rows.collect();
    let Some(first) = rows.first() else { return String::new() };
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let cell = |row: &Row, name: &str| {
        let found = row.iter().find(|(field, _)| field == name);
        found.map_or_else(|| "-".to_owned(), |(_, text)| text.clone())
    };
    let is_same =
        |name: &&str| rows.len() > 1 && rows.iter().all(|row| cell(row, name) == cell(first, name));
    let (same, columns): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_same(name));
    let same: Vec<String> =
        same.iter().map(|name| format!("{name}: {}", cell(first, name))).collect();
    let above = if same.is_empty() { String::new() } else { same.join("; ") + "\n" };
    let cells = |row| columns.iter().map(|name| cell(row, name)).collect();
    above + &report::table(&columns.join(","), rows.iter().map(cells)) + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_become_a_table_below_the_fields_that_all_rows_share() {
        let row = |kind, save: Value| json!({"kind": kind, "nodes": 4, "save": save});
        let rows = [row("host", Value::Null), row("nic", json!({"median_us": 12.34}))];
        let formatted = text(&json!({"rows": rows, "none": [], "holds": true}));
        let table = "kind  save median us\nhost               -\nnic             12.3\n";
        assert_eq!(formatted, format!("nodes: 4\n{table}\nholds: yes\n"));
    }
}
