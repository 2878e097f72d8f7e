//! Which requests share a forward.

use millrace_policy::Ticket;

/// Splits `lanes` (request and new tokens, 1 or more) into forwards of like lengths. Within one,
/// attention is padded to the longest, so a first turn with its whole prompt does not share with
/// turns of a few new tokens; and a padded forward stays below `most` tokens, unless a lane alone
/// passes it.
pub(super) fn forwards(
    lanes: &mut [(Ticket, usize)],
    most: usize,
) -> impl Iterator<Item = &[(Ticket, usize)]> {
    lanes.sort_unstable_by_key(|&(ticket, tokens)| (tokens, ticket));
    let mut rest: &[(Ticket, usize)] = lanes;
    std::iter::from_fn(move || {
        let &(_, shortest) = rest.first()?;
        let fits = |(index, &(_, tokens)): (usize, &(Ticket, usize))| {
            index == 0 || (class(tokens) == class(shortest) && (index + 1) * tokens <= most)
        };
        let count = rest.iter().enumerate().take_while(|&lane| fits(lane)).count();
        let (forward, after) = rest.split_at(count);
        rest = after;
        Some(forward)
    })
}

/// Lengths of one class are padded to one another: 1, 2 to 4, 5 to 16, 17 to 64, and so on by
/// fours.
const fn class(tokens: usize) -> u32 {
    (tokens.next_power_of_two().trailing_zeros()).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_is_in_one_forward_and_lengths_are_alike() {
        let lengths = [1, 30, 4, 1, 5, 16, 1000, 17, 1];
        let mut lanes: Vec<_> = lengths.iter().enumerate().map(|(i, &n)| (Ticket(i as u64), n)).collect();
        let split: Vec<Vec<usize>> =
            forwards(&mut lanes, 64).map(|f| f.iter().map(|&(_, n)| n).collect()).collect();
        assert_eq!(split, [vec![1, 1, 1], vec![4], vec![5, 16], vec![17, 30], vec![1000]]);
    }
}
