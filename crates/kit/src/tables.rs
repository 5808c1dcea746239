//! Formats a report as text. Each list of rows becomes a table with a column for each field; fields that are the same in
//! all rows stand above it.

use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A JSON value whose objects keep the order of their fields; numbers are formatted.
#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Null,
    Leaf(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Order)
    }
}

struct Order;

impl<'de> Visitor<'de> for Order {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(if value { "yes" } else { "no" }.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        let digits = match value.abs() {
            100.0.. => 0,
            10.0.. => 1,
            1.0.. => 2,
            _ => 4,
        };
        Ok(Tree::Leaf(format!("{value:.digits$}")))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = from.next_element()? {
            list.push(value);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = from.next_entry()? {
            fields.push(field);
        }
        Ok(Tree::Object(fields))
    }
}

/// The names and texts of a row's fields.
type Row = Vec<(String, String)>;

impl Tree {
    /// Appends the value's fields to a row; a field of a field has both names.
    fn flatten(self, name: String, row: &mut Row) {
        match self {
            Self::Null => {}
            Self::Leaf(text) => row.push((name, text)),
            Self::List(list) => {
                let texts = list.into_iter().map(|value| {
                    let mut inner = Row::new();
                    value.flatten(String::new(), &mut inner);
                    inner.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
                });
                row.push((name, texts.collect::<Vec<_>>().join(", ")));
            }
            Self::Object(fields) => {
                for (inner, value) in fields {
                    let inner = inner.replace('_', " ");
                    let both = if name.is_empty() { inner } else { format!("{name} {inner}") };
                    value.flatten(both, row);
                }
            }
        }
    }
}

/// Formats a document, which is an object.
pub(crate) fn text(document: &impl Serialize) -> String {
    let json = serde_json::to_string(document).expect("reports are plain data");
    let tree = serde_json::from_str(&json).expect("it was written just now");
    let Tree::Object(fields) = tree else { return json + "\n" };
    let (mut text, mut rest) = (String::new(), Row::new());
    for (name, value) in fields {
        match value {
            Tree::List(rows) if rows.iter().all(|row| matches!(row, Tree::Object(_))) => {
                text += &table(rows);
            }
            value => value.flatten(name.replace('_', " "), &mut rest),
        }
    }
    text.extend(rest.iter().map(|(name, text)| format!("{name}: {text}\n")));
    text
}

fn table(rows: Vec<Tree>) -> String {
    let rows = rows.into_iter().map(|tree| {
        let mut row = Row::new();
        tree.flatten(String::new(), &mut row);
        row
    });
    let rows: Vec<Row> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let cell = |row: &Row, name: &str| -> String {
        let found = row.iter().find(|(field, _)| field == name);
        found.map_or_else(|| "-".into(), |(_, text)| text.clone())
    };
    let is_same = |name: &&str| {
        let mut cells = rows.iter().map(|row| cell(row, name));
        let first = cells.next();
        rows.len() > 1 && cells.all(|cell| Some(cell) == first)
    };
    let (same, columns): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_same(name));
    let same: Vec<String> =
        same.iter().map(|name| format!("{name}: {}", cell(&rows[0], name))).collect();
    let mut text = if same.is_empty() { String::new() } else { same.join("; ") + "\n" };
    let heading: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    let cells = |row| columns.iter().map(|name| cell(row, name)).collect();
    let lines: Vec<Vec<String>> = [heading].into_iter().chain(rows.iter().map(cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).filter_map(width).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        text += &(cells.collect::<Vec<_>>().join("  ") + "\n");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Inner {
        median_us: f64,
    }

    #[derive(Serialize)]
    struct Line {
        kind: &'static str,
        nodes: u16,
        save: Option<Inner>,
    }

    #[derive(Serialize)]
    struct Document {
        rows: Vec<Line>,
        none: Vec<Line>,
        holds: bool,
    }

    #[test]
    fn rows_become_a_table_and_what_is_the_same_in_all_stands_above() {
        let row = |kind, save: Option<f64>| {
            let save = save.map(|median_us| Inner { median_us });
            Line { kind, nodes: 4, save }
        };
        let rows = vec![row("host", None), row("nic", Some(12.34))];
        let said = text(&Document { rows, none: Vec::new(), holds: true });
        let table = "kind  save median us\nhost               -\n nic            12.3\n";
        assert_eq!(said, format!("nodes: 4\n{table}\nholds: yes\n"));
    }
}
