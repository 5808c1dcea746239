use serde_json::json;

use super::*;

fn bound(text: &str) -> Bound {
    Bound::parse(text).unwrap()
}

fn read(number: &str, text: &str, report: &Value) -> Option<f64> {
    Some(Number::parse(number).unwrap().measured(&[report], &bound(text))?.median)
}

#[test]
fn bounds_have_a_direction_a_limit_and_a_unit() {
    assert_eq!(bound("<= 0.85x"), Bound { at_most: true, limit: 0.85, unit: "x".into() });
    assert_eq!(
        bound(">= 10 million/s"),
        Bound { at_most: false, limit: 10.0, unit: "million/s".into() }
    );
    for text in ["<= 0.85x", ">= 10 million/s", "<= 0.1 %", ">= 0.99"] {
        assert_eq!(bound(text).to_string(), text);
    }
    for wrong in ["", "0.85x", "< 0.85x", "<= x", "<= 1.2.3x", "= 1x", "<= -1x"] {
        assert_eq!(Bound::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_number_at_the_limit_is_within_the_bound() {
    assert!(bound("<= 2x").holds(2.0) && !bound("<= 2x").holds(2.001));
    assert!(bound(">= 2x").holds(2.0) && !bound(">= 2x").holds(1.999));
    assert!(!bound("<= 2x").holds(f64::NAN));
}

#[test]
fn a_row_is_chosen_by_its_fields_at_any_depth() {
    let report = json!({"runs": [
        {"what": "raw: one way", "connections": 1, "ratio": 2.0, "ci": [0.1, 0.02]},
        {"what": "rate: one way", "connections": 8, "ratio": null, "inner": {"what": "raw", "ratio": 5.0}},
    ]});
    assert_eq!(read("what^raw: ratio", "<= 3x", &report), Some(2.0));
    assert_eq!(read("what=raw ratio", "<= 3x", &report), Some(5.0));
    assert_eq!(read("connections=1 ratio", "<= 3x", &report), Some(2.0));
    assert_eq!(read("what^raw ci/1", "<= 3 %", &report), Some(2.0));
    for missing in ["what^rate: ratio", "connections=2 ratio", "what=raw ours", "kind=1 ratio"] {
        assert_eq!(read(missing, "<= 3x", &report), None, "{missing}");
    }
    for wrong in ["", "what=raw", "what ratio"] {
        assert!(Number::parse(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn of_several_rows_the_worst_counts_unless_the_best_is_requested() {
    let report = json!([{"ratio": 1.0}, {"ratio": 3.0}, {"ratio": 2.0}]);
    assert_eq!(read("ratio", ">= 1x", &report), Some(1.0));
    assert_eq!(read("ratio", "<= 1x", &report), Some(3.0));
    assert_eq!(read("best ratio", ">= 1x", &report), Some(3.0));
    assert_eq!(read("best ratio", "<= 1x", &report), Some(1.0));
}

#[test]
fn the_worst_row_is_the_one_with_the_worst_median_of_all_rounds() {
    let rounds = [[1.0, 4.0], [5.0, 6.0], [9.0, 8.0]].map(|[a, b]| json!([{"x": a}, {"x": b}]));
    let measured = |number: &str, rounds: &[&Value]| {
        Number::parse(number).unwrap().measured(rounds, &bound(">= 5x"))
    };
    let [first, second, third] = &rounds;
    let worst = Measured { median: 5.0, lowest: 1.0, highest: 9.0, rounds: 3, holds: true };
    assert_eq!(measured("x", &[first, second, third]), Some(worst));
    let best = Measured { median: 6.0, lowest: 4.0, highest: 8.0, rounds: 3, holds: true };
    assert_eq!(measured("best x", &[first, second, third]), Some(best));
    // A round without the number leaves no summary.
    assert_eq!(measured("x", &[first, &json!([])]), None);
    assert_eq!(measured("x", &[first, &json!([{"x": 1.0}])]), None);
    assert_eq!(measured("x", &[]), None);
}

#[test]
fn ours_is_divided_by_theirs_of_the_same_size() {
    let run = |layer: &str, bytes: u64, us: f64| json!({"layer": layer, "bytes": bytes, "us": us});
    let both =
        json!([run("vi", 8, 1.0), run("vi", 64, 3.0), run("tcp", 64, 4.0), run("tcp", 8, 2.0)]);
    assert_eq!(read("layer=vi us / layer=tcp us", "<= 1x", &both), Some(0.75));
    assert_eq!(read("layer=vi us / layer=tcp us", ">= 1x", &both), Some(0.5));
    assert_eq!(read("layer=vi us / layer=ucx us", "<= 1x", &both), None);
    // One size that the peer lacks is no answer.
    let part = json!([run("vi", 8, 1.0), run("vi", 64, 3.0), run("tcp", 64, 4.0)]);
    assert_eq!(read("layer=vi us / layer=tcp us", "<= 1x", &part), None);
    assert!(Number::parse("layer=vi us / layer=tcp us").unwrap().names("tcp"));
}

#[test]
fn sizes_between_powers_of_two_are_compared_with_the_line_through_their_neighbours() {
    let run = |bytes: u64, us: f64| json!({"bytes": bytes, "us": us});
    let report = json!([run(32, 1.0), run(64, 3.0), run(48, 3.0), run(128, 3.0), run(100, 3.0)]);
    assert_eq!(read("line us", "<= 1.1x", &report), Some(1.5));
    assert_eq!(read("line us", "<= 1.1x", &json!([run(32, 1.0), run(64, 3.0)])), None);
}

#[test]
fn shares_become_percent_and_bytes_become_mib() {
    let report = json!({"share": 0.001, "bytes": 3 << 20});
    assert_eq!(read("share", "<= 0.1 %", &report), Some(0.1));
    assert_eq!(read("bytes", "<= 64 MiB", &report), Some(3.0));
}

#[test]
fn each_row_of_the_table_names_a_command_of_the_table() {
    let Promises { rows, commands } = Promises::read();
    for row in &rows {
        assert!(!row.area.is_empty(), "{}", row.what);
        if let Source::Report(name, _) = &row.source {
            assert!(commands.iter().any(|command| command.name == *name), "{}: {name}", row.what);
        }
    }
    for command in &commands {
        let asks =
            |row: &Promise| matches!(&row.source, Source::Report(name, _) if *name == command.name);
        assert!(rows.iter().any(asks), "no row needs {}", command.name);
    }
}
