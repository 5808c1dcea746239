//! Tests of timing claims: passed, missed, and excused by the machine's load.

use super::{Compared, Verdict, median, outcome};

const STEADY: [f64; 3] = [10.0, 11.0, 12.0];
const UNSTEADY: [f64; 3] = [10.0, 11.0, 16.0];

fn judged(ratios: [f64; 3], theirs: [f64; 3], wanted: f64) -> Verdict {
    let rounds: Vec<(f64, f64)> = ratios.into_iter().zip(theirs).collect();
    Compared::of(&rounds).unwrap().judge(wanted)
}

#[test]
fn the_median_counts_where_theirs_is_steady() {
    assert_eq!(judged([0.9, 1.2, 1.3], STEADY, 1.0), Verdict::Holds);
    assert_eq!(judged([0.8, 0.9, 1.3], STEADY, 1.0), Verdict::Missed);
    assert_eq!(judged([1.1, 1.2, 1.6], STEADY, 1.5), Verdict::Missed);
}

/// Regression: the median of an even number of values was the greater one of the two in the middle.
#[test]
fn the_median_of_two_rounds_lies_between_them() {
    assert_eq!(Compared::of(&[(3.0, 1.0), (1.0, 1.0)]).unwrap().ratio, 2.0);
    assert_eq!(median(vec![9.0, 1.0, 3.0, 2.0]), 2.5);
    assert_eq!(median(vec![9.0, 1.0, 3.0]), 3.0);
    assert!(median(Vec::new()).is_nan());
}

#[test]
fn a_ratio_below_one_that_reaches_its_bound_is_slower() {
    assert_eq!(judged([0.6, 0.7, 1.3], STEADY, 0.5), Verdict::Slower);
    assert_eq!(judged([0.9, 1.2, 1.3], STEADY, 0.5), Verdict::Holds);
    assert_eq!(judged([0.4, 0.4, 0.6], STEADY, 0.5), Verdict::Missed);
}

#[test]
fn rounds_must_agree_where_theirs_is_not_steady() {
    assert_eq!(judged([1.1, 1.2, 1.3], UNSTEADY, 1.0), Verdict::Holds);
    assert_eq!(judged([0.9, 1.2, 1.3], UNSTEADY, 1.0), Verdict::Unclear);
    assert_eq!(judged([0.8, 0.9, 1.3], UNSTEADY, 1.0), Verdict::Unclear);
    assert_eq!(judged([0.7, 0.8, 0.9], UNSTEADY, 1.0), Verdict::Missed);
    assert_eq!(judged([0.7, 0.8, 0.9], UNSTEADY, 0.5), Verdict::Slower);
}

#[test]
fn of_nine_rounds_two_outliers_at_each_end_do_not_count() {
    let rounds = [1.2, 1.1, 0.3, 0.2, 1.2, 9.0, 1.2, 9.0, 1.3].map(|ratio| (ratio, 10.0 / ratio));
    let compared = Compared::of(&rounds).unwrap();
    assert_eq!((compared.lowest_ratio, compared.highest_ratio), (1.1, 1.3));
    assert!(compared.anchor_spread < 1.2);
    // A third outlier counts.
    let rounds = [1.2, 0.4, 0.3, 0.2, 1.2, 1.1, 1.2, 1.2, 1.3].map(|ratio| (ratio, 10.0 / ratio));
    assert_eq!(Compared::of(&rounds).unwrap().judge(1.0), Verdict::Unclear);
}

#[test]
fn few_rounds_or_a_build_without_optimization_are_not_judged() {
    assert_eq!(Compared::of(&[(0.5, 10.0)]).unwrap().verdict(1.0), Verdict::NotJudged);
    let three = Compared::of(&[(0.5, 10.0); 3]).unwrap().verdict(1.0);
    assert_eq!(three == Verdict::NotJudged, cfg!(debug_assertions));
}

#[test]
fn rounds_without_a_number_have_no_result() {
    assert!(Compared::of(&[]).is_none());
    assert!(Compared::of(&[(1.0, 1.0), (f64::NAN, 1.0), (1.0, 1.0)]).is_none());
}

#[test]
fn only_evidence_of_other_load_excuses_a_missed_claim() {
    use Verdict::{Holds, Missed, NoNumber, NotJudged, Slower, Unclear};
    let (quiet, busy) = (|| None, || Some("30 % was stolen".to_owned()));
    assert_eq!(outcome(&[Holds, NotJudged], busy), Ok(0));
    assert_eq!(outcome(&[Holds, Missed], quiet), Ok(1));
    assert_eq!(outcome(&[Holds, Slower], quiet), Ok(0));
    assert_eq!(outcome(&[Missed, Unclear], quiet), Ok(1));
    assert!(outcome(&[Holds, Missed], busy).is_err());
    assert!(outcome(&[Holds, Unclear], quiet).is_err());
    // A number that could not be measured is a failure, however busy the machine is.
    assert_eq!(outcome(&[Holds, NoNumber], busy), Ok(1));
}
