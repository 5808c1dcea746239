//! Every published result of the papers' machines comes out within a tenth, and to the last digit each time.

#[path = "../examples/anchors/measure.rs"]
mod measure;
#[path = "../examples/anchors/raw.rs"]
mod raw;

use measure::Anchor;

#[test]
fn published_results_come_out_within_a_tenth() {
    let anchors = measure::all();
    assert_eq!(anchors.len(), 4 + 10 + 8 + 2);
    let wrong: Vec<&Anchor> = anchors.iter().filter(|anchor| !anchor.holds()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_order_of_the_papers_machines_holds() {
    let measured = |what: &str| {
        let anchors = measure::all();
        anchors.iter().find(|anchor| anchor.what.contains(what)).unwrap().measured
    };
    assert!(measured("coprocessor to coprocessor") * 3.0 < measured("application to application"));
    assert!(measured("M-VIA") < measured("TCP"));
}
