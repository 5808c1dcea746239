use proptest::prelude::*;

use super::*;

const SMALL: &str = "%%MatrixMarket matrix coordinate real general\n% a comment\n\
                     2 2 4\n1 1 4.0\n1 2 1.0\n2 1 1.0\n2 2 3.0\n";

#[test]
fn the_trefethen_matrices_have_their_known_entries_and_radius() {
    // The entries and the radius were computed independently.
    for (n, entries, radius) in [(200, 2_890, 0.8598), (1_000, 18_954, 0.8601)] {
        let system = Linear::new(trefethen(n), None).unwrap();
        assert_eq!(system.a().nnz(), entries);
        let bounds = system.check().unwrap();
        assert!((bounds.at_most - radius).abs() < 1e-4, "{bounds:?}");
        assert!(bounds.at_least <= bounds.at_most);
    }
}

#[test]
fn the_radius_of_a_grid_is_its_exact_cosine() {
    // The five-point stencil on m by m points is bipartite, so a plain power iteration would
    // oscillate.
    let m = 12;
    let mut grid = TriMat::new((m * m, m * m));
    for (i, j) in (0..m * m).flat_map(|at| [(at, at), (at, at + 1), (at, at + m)]) {
        let crosses = j == i + 1 && j % m == 0;
        if j == i {
            grid.add_triplet(i, i, 4.0);
        } else if j < m * m && !crosses {
            grid.add_triplet(i, j, -1.0);
            grid.add_triplet(j, i, -1.0);
        }
    }
    let bounds = Linear::new(grid.to_csr(), None).unwrap().check().unwrap();
    let exact = (std::f64::consts::PI / (m as f64 + 1.0)).cos();
    assert!((bounds.at_least..=bounds.at_most).contains(&exact), "{bounds:?}, {exact}");
    assert!(bounds.at_most - bounds.at_least < 1e-5);
}

#[test]
fn a_system_that_need_not_converge_is_refused() {
    let diverges = Linear::new(random(100, 1.5, 1), None).unwrap();
    assert!(
        matches!(diverges.check(), Err(MatrixError::Diverges { .. })),
        "{:?}",
        diverges.check()
    );
    // The signs differ; the spectral radius of |M| is 1.1.
    let mut signs = TriMat::new((2, 2));
    for (i, j, entry) in [(0, 0, 1.0), (0, 1, 1.1), (1, 0, -1.1), (1, 1, 1.0)] {
        signs.add_triplet(i, j, entry);
    }
    let signs = Linear::new(signs.to_csr(), None).unwrap();
    assert!(matches!(signs.check(), Err(MatrixError::Diverges { .. })));
    let fine = Linear::new(random(100, 0.9, 1), None).unwrap();
    assert!(fine.check().is_ok_and(|bounds| (bounds.at_most - 0.9).abs() < 1e-3));
}

#[test]
fn file_errors_name_the_line() {
    assert_eq!(read(SMALL).unwrap().nnz(), 4);
    let line = |text: &str| match read(text) {
        Err(MatrixError::Line { line, .. }) => line,
        other => panic!("{other:?}"),
    };
    assert_eq!(line(""), 1);
    assert_eq!(line(&SMALL.replace("real", "complex")), 1);
    assert_eq!(line(&SMALL.replace("2 2 4", "2 2")), 3);
    assert_eq!(line(&SMALL.replace("1 2 1.0", "1 2 one")), 5);
    assert_eq!(line(&SMALL.replace("1 2 1.0", "1 3 1.0")), 5);
    assert_eq!(line(&SMALL.replace("2 2 3.0\n", "")), 6);
    assert_eq!(line(&SMALL.replace("1 2 1.0", "1 2 nan")), 5);
    let oblong = SMALL.replace("2 2 4", "2 3 4");
    assert_eq!(read(&oblong).unwrap_err(), MatrixError::NotSquare { rows: 2, columns: 3 });
    let zero = SMALL.replace("2 2 3.0", "2 2 0.0");
    let zero = Linear::new(read(&zero).unwrap(), None).unwrap_err();
    assert_eq!(zero, MatrixError::ZeroDiagonal { row: 2 });
}

#[test]
fn a_matrix_with_an_entry_that_is_not_finite_is_an_error() {
    for value in [f64::NAN, f64::INFINITY] {
        let entries = vec![1.0, value, 0.1, 1.0];
        let matrix = CsMat::new((2, 2), vec![0, 2, 4], vec![0, 1, 0, 1], entries);
        let error = Linear::new(matrix, Some(vec![1.0, 1.0])).unwrap_err();
        assert!(matches!(error, MatrixError::EntryNotFinite { row: 1, column: 2, .. }), "{error}");
    }
}

// Regression: with such a right-hand side no iteration ended.
#[test]
fn a_right_hand_side_that_is_not_finite_is_an_error() {
    for value in [f64::NAN, f64::INFINITY] {
        let error = Linear::new(read(SMALL).unwrap(), Some(vec![1.0, value])).unwrap_err();
        assert!(matches!(error, MatrixError::NotFinite { row: 2, .. }), "{error}");
    }
}

#[test]
fn a_short_file_with_a_huge_size_is_an_error_not_an_allocation() {
    for size in ["3", "4000000000", "18446744073709551615"] {
        let text = SMALL.replace("2 2 4", &format!("{size} {size} 1"));
        assert!(matches!(read(&text), Err(MatrixError::Line { line: 3, .. })), "{size}");
    }
}

#[test]
fn a_symmetric_file_has_both_halves() {
    let text = "%%MatrixMarket matrix coordinate integer symmetric\n2 2 3\n1 1 4\n2 1 1\n2 2 3\n";
    let matrix = read(text).unwrap();
    assert_eq!((matrix.get(0, 1), matrix.get(1, 0)), (Some(&1.0), Some(&1.0)));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "(%%MatrixMarket matrix coordinate real general\n)?[0-9 .e%\n-]{0,80}") {
        let _ = read(&text);
    }
}
