//! Reads the tables of a scenario file, which is TOML, and notes every mistake with its line, its key and the allowed values.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most mistakes that are reported.
const MOST: usize = 20;

/// A file, and the mistakes in it: the line of each, from 1, and its description.
pub(super) struct File<'a> {
    text: &'a str,
    mistakes: RefCell<Vec<(usize, String)>>,
}

impl<'a> File<'a> {
    /// Reads a file; all keys that `read` does not request are mistakes.
    ///
    /// # Errors
    /// All mistakes in one line, in the order of the file.
    pub(super) fn read<T>(text: &'a str, read: impl FnOnce(&Table<'_>) -> T) -> Result<T, String> {
        let file = File { text, mistakes: RefCell::default() };
        let root = DeTable::parse(text).map_err(|error| {
            let line = file.line(error.span().map_or(0, |span| span.start));
            format!("line {line}: {}", error.message().trim().replace('\n', ", "))
        })?;
        let table = Table::of(&file, 0, Some(root.get_ref()));
        let content = read(&table);
        drop(table);
        let mut mistakes = file.mistakes.into_inner();
        if mistakes.is_empty() {
            return Ok(content);
        }
        mistakes.sort_by_key(|(line, _)| *line);
        let lines = mistakes.iter().take(MOST).map(|(line, what)| format!("line {line}: {what}"));
        Err(lines.collect::<Vec<_>>().join("; "))
    }

    /// Returns the line of a position, from 1.
    fn line(&self, at: usize) -> usize {
        self.text[..at.min(self.text.len())].matches('\n').count() + 1
    }

    fn note(&self, at: usize, what: String) {
        self.mistakes.borrow_mut().push((self.line(at), what));
    }
}

/// A table of a file. When it is dropped, it notes the keys that were not requested.
pub(super) struct Table<'a> {
    file: &'a File<'a>,
    at: usize,
    /// `None` if the file does not have this table.
    keys: Option<&'a DeTable<'a>>,
    requested: RefCell<Vec<&'static str>>,
    /// True if keys that were not requested are mistakes.
    checked: Cell<bool>,
}

impl<'a> Table<'a> {
    fn of(file: &'a File<'a>, at: usize, keys: Option<&'a DeTable<'a>>) -> Self {
        Self { file, at, keys, requested: RefCell::default(), checked: Cell::new(true) }
    }

    fn new(file: &'a File<'a>, key: &str, value: &'a Spanned<DeValue<'a>>) -> Self {
        let (keys, at) = (value.get_ref().as_table(), value.span().start);
        if keys.is_none() {
            file.note(at, format!("`{key}` is {}, not a table", &file.text[value.span()]));
        }
        Self::of(file, at, keys)
    }

    fn value(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.requested.borrow_mut().push(key);
        self.keys.and_then(|keys| keys.get(key))
    }

    /// Returns the table of a key.
    pub(super) fn table(&self, key: &'static str) -> Self {
        match self.value(key) {
            Some(value) => Self::new(self.file, key, value),
            None => Self::of(self.file, self.at, None),
        }
    }

    /// Returns all tables of a key.
    pub(super) fn tables(&self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let Some(all) = value.get_ref().as_array() else {
            self.note_value(key, value, &format!("tables: write [[{key}]]"));
            return Vec::new();
        };
        all.iter().map(|value| Self::new(self.file, key, value)).collect()
    }

    /// Returns true if the file has this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.is_some_and(|keys| keys.contains_key(key))
    }

    /// Leaves the keys that were not requested unchecked.
    pub(super) fn ignore_rest(&self) {
        self.checked.set(false);
    }

    /// Notes a mistake in the value of a key, or else in the table.
    pub(super) fn note(&self, key: &str, what: String) {
        let value = self.keys.and_then(|keys| keys.get(key));
        self.file.note(value.map_or(self.at, |value| value.span().start), what);
    }

    fn note_value(&self, key: &str, value: &Spanned<DeValue<'_>>, allowed: &str) {
        self.note(key, format!("`{key}` is {}, not {allowed}", &self.file.text[value.span()]));
    }

    /// Parses a value with `read`. Notes a wrong value. If the value is missing or wrong, returns `default`; if that is
    /// `None`, notes a missing value, too.
    fn get<T>(
        &self,
        key: &'static str,
        default: Option<T>,
        allowed: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        let Some(value) = self.value(key) else {
            if default.is_none() {
                self.note(key, format!("`{key}` is missing: {allowed}"));
            }
            return default;
        };
        let found = read(value.get_ref());
        if found.is_none() {
            self.note_value(key, value, allowed);
        }
        found.or(default)
    }

    /// Returns a whole number; without `default`, the key is required.
    pub(super) fn number<T: Copy + Display + PartialOrd + TryFrom<i128>>(
        &self,
        key: &'static str,
        default: Option<T>,
        allowed: RangeInclusive<T>,
    ) -> T {
        let (low, high) = (*allowed.start(), *allowed.end());
        let found = self.get(key, default, &format!("from {low} to {high}"), |value| {
            let number = value.as_integer()?;
            let number = i128::from_str_radix(number.as_str(), number.radix()).ok()?;
            T::try_from(number).ok().filter(|number| allowed.contains(number))
        });
        found.unwrap_or(low)
    }

    /// Returns a number from 0 to 1, which is required.
    pub(super) fn probability(&self, key: &'static str) -> f64 {
        let found = self.get(key, None, "from 0 to 1", |value| {
            let text = value.as_float().map(|number| number.as_str());
            let text = text.or_else(|| value.as_integer().map(|number| number.as_str()));
            text?.parse().ok().filter(|number| (0.0..=1.0).contains(number))
        });
        found.unwrap_or_default()
    }

    /// Returns the choice that a name stands for; without `default`, the key is required.
    pub(super) fn choice<T: Clone>(
        &self,
        key: &'static str,
        default: Option<T>,
        names: &[(impl AsRef<str>, T)],
    ) -> Option<T> {
        let all: Vec<_> = names.iter().map(|(name, _)| format!("\"{}\"", name.as_ref())).collect();
        self.get(key, default, &format!("one of {}", all.join(", ")), |value| {
            let found = names.iter().find(|(name, _)| value.as_str() == Some(name.as_ref()));
            found.map(|(_, choice)| choice.clone())
        })
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        let requested = self.requested.borrow();
        for (key, _) in self.keys.into_iter().flatten() {
            let name: &str = key.get_ref();
            if self.checked.get() && !requested.contains(&name) {
                let known = requested.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>();
                let what = format!("`{name}`: unknown here, expected one of {}", known.join(", "));
                self.file.note(key.span().start, what);
            }
        }
    }
}
