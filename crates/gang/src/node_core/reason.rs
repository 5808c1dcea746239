//! Bounds the texts that say why a job can't continue.

/// Most bytes of a reason. All daemons store the reasons of ended jobs, and a reason may repeat a program's name.
pub(crate) const MOST_BYTES: usize = 2 << 10;
/// The end of a shortened reason.
const MARK: &str = " ...";

/// Shortens a reason to [`MOST_BYTES`].
pub(crate) fn bounded(mut reason: String) -> String {
    if reason.len() > MOST_BYTES {
        let most = MOST_BYTES - MARK.len();
        let end = (0..=most).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        reason.truncate(end);
        reason.push_str(MARK);
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(bounded("short".into()), "short");
        for before in ["", "a"] {
            let cut = bounded(format!("{before}{}", "ä".repeat(MOST_BYTES)));
            assert!(cut.len() <= MOST_BYTES && cut.ends_with("ä ..."), "{} bytes", cut.len());
        }
    }
}
