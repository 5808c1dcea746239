//! Tests that docs/foreign.md lists each test of tokio that runs here, or can't.

#[test]
fn each_test_of_tokio_is_listed_in_its_row() {
    let text = std::fs::read_to_string("../../docs/foreign.md").unwrap();
    let mut count = 0;
    for line in include_str!(concat!(env!("OUT_DIR"), "/tokio_tests.txt")).lines() {
        let (file, test) = line.split_once(' ').unwrap();
        let row = text.lines().find(|row| row.starts_with(&format!("| `{file}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/foreign.md has no row of {file}"));
        assert!(row.contains(&format!("`{test}`")), "{file}: docs/foreign.md lacks {test}");
        count += 1;
    }
    assert!(count > 80, "{count}");
}
