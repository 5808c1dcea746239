//! Selects the scenes that this program plays, by the arguments that `cargo test` passes.

/// A scene and its name.
pub(crate) type Scene = (&'static str, fn());

/// Options whose next argument is their value, and no filter.
const WITH_VALUE: [&str; 5] = ["--test-threads", "--format", "--color", "--logfile", "-Z"];

/// The requested scenes; the options are those of the standard test harness.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    filters: Vec<String>,
    skipped: Vec<String>,
    exact: bool,
    ignored: bool,
    include_ignored: bool,
    pub(crate) list: bool,
}

impl Choice {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let (mut choice, mut arguments) = (Self::default(), arguments);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => choice.exact = true,
                "--ignored" => choice.ignored = true,
                "--include-ignored" => choice.include_ignored = true,
                "--list" => choice.list = true,
                "--skip" => choice.skipped.extend(arguments.next()),
                option if WITH_VALUE.contains(&option) => drop(arguments.next()),
                option if option.starts_with('-') => {
                    choice.skipped.extend(option.strip_prefix("--skip=").map(str::to_owned));
                }
                _ => choice.filters.push(argument),
            }
        }
        choice
    }

    fn is_named(&self, name: &str, words: &[String]) -> bool {
        words.iter().any(|word| if self.exact { name == word } else { name.contains(&word[..]) })
    }

    /// Returns the chosen scenes, in order.
    ///
    /// # Errors
    /// If a filter was meant for this program and no scene has that name: the names of all scenes.
    pub(crate) fn of(&self, short: &[Scene], ignored: &[Scene]) -> Result<Vec<Scene>, String> {
        let all = || short.iter().chain(ignored);
        let is_chosen = |name| self.filters.is_empty() || self.is_named(name, &self.filters);
        if !all().any(|(name, _)| is_chosen(name)) && (self.exact || is_run_by_name()) {
            let names: String = all().map(|(name, _)| format!("\n  {name}")).collect();
            return Err(format!("no scene matches {}; there are{names}", self.filters.join(" ")));
        }
        let (short, ignored) = match (self.include_ignored, self.ignored) {
            (true, _) => (short, ignored),
            (false, true) => (&[][..], ignored),
            (false, false) => (short, &[][..]),
        };
        let chosen = short.iter().chain(ignored);
        let chosen = chosen.filter(|(name, _)| is_chosen(name));
        Ok(chosen.filter(|(name, _)| !self.is_named(name, &self.skipped)).copied().collect())
    }
}

/// Returns whether the filters are for this program alone: it was started by hand, or by `cargo test --test live`. A
/// `cargo test` of several programs passes its filters to each of them, and most match nothing in most programs.
fn is_run_by_name() -> bool {
    let parent = std::os::unix::process::parent_id();
    let words = std::fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
    let of_cargo = words.first().is_some_and(|program| program.ends_with(b"cargo"));
    !of_cargo || words.iter().any(|word| word.starts_with(b"--test"))
}
