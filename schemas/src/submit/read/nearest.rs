//! The known name that was probably meant.

/// Bytes of a word that may be a typing error. The comparison takes as many steps as the product of
/// both lengths.
const MAX_WORD_BYTES: usize = 64;

/// The name of `known` nearest to `word`, unless none is near: more than a third of its letters
/// would have to change.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    let plain = |name: &str| name.to_lowercase().replace('+', "plus").replace(['-', ' ', '_'], "");
    let word = plain(word);
    let with_distance = known.map(|name| (distance(&word, &plain(name)), name));
    let (off, name) = with_distance.min_by_key(|(off, _)| *off)?;
    (3 * off <= name.len().max(3)).then_some(name)
}

/// Letters to insert, remove, change or swap with their neighbour to come from `a` to `b`: Damerau,
/// "A Technique for Computer Detection and Correction of Spelling Errors", 1964.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_near_and_another_word_is_not() {
        let names = ["grpo", "dr_grpo", "reinforce_plus_plus", "raft"];
        for (word, meant) in [
            ("gpro", Some("grpo")),
            ("GRPO", Some("grpo")),
            ("drgrpo", Some("dr_grpo")),
            ("reinforce-plus-plus", Some("reinforce_plus_plus")),
            ("reinforce_plus", Some("reinforce_plus_plus")),
            ("gae", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names.into_iter()), meant, "{word:?}");
        }
        assert_eq!(nearest("x", std::iter::empty()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
