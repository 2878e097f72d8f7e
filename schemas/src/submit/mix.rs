//! Assigns groups to domains: the next group goes to the domain that would fall behind its share
//! first. The sequence is Tijdeman's (1980, "The chairman assignment problem"): of the first n
//! groups each of K domains has its share to within 1 − 1 / (2K − 2), which no sequence improves.
//! It is a pure function of the shares and of the counts so far.

/// The domain of the next group. `dealt` are the groups that each domain has so far by this
/// sequence. Computed in integers, so that nothing drifts.
#[must_use]
pub fn next(shares: &[u64], dealt: &[u64]) -> usize {
    let wide = |number: u64| i128::from(number);
    let total: i128 = shares.iter().copied().map(wide).sum();
    let number = dealt.iter().copied().map(wide).sum::<i128>() + 1;
    // 2K - 2, by which all is multiplied.
    let halves = 2 * shares.len() as i128 - 2;
    // How far each is behind its share once this group is dealt to another, in (2K - 2) · total-ths
    // of a group.
    let behind = shares
        .iter()
        .zip(dealt)
        .map(|(share, dealt)| (wide(*share), halves * (wide(*share) * number - wide(*dealt) * total)));
    let due = behind.enumerate().filter(|(_, (_, behind))| *behind >= total);
    // The time left until it would be too far behind, times its share: of fractions, the least.
    let left = due.map(|(domain, (share, behind))| (domain, share, total * (halves - 1) - behind));
    let first =
        left.min_by(|(_, a_share, a_left), (_, b_share, b_left)| (a_left * b_share).cmp(&(b_left * a_share)));
    first.map_or(0, |(domain, ..)| domain)
}

/// How many of the first `number` groups each domain has.
#[must_use]
pub fn counts(shares: &[u64], number: u64) -> Vec<u64> {
    let mut dealt = vec![0; shares.len()];
    if shares.len() == 1 {
        return vec![number];
    }
    for _ in 0..number {
        deal(shares, &mut dealt);
    }
    dealt
}

/// Assigns the next group and returns its domain.
pub fn deal(shares: &[u64], dealt: &mut [u64]) -> usize {
    let domain = next(shares, dealt);
    if let Some(count) = dealt.get_mut(domain) {
        *count += 1;
    }
    domain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares from a stream of its own: 2 to 12 of them, some alike, some of very different size.
    fn shares(case: u64) -> Vec<u64> {
        let mut word = case.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            1 + word % below
        };
        let count = 1 + draw(11);
        (0..count).map(|_| if draw(2) == 1 { draw(9) * 100_000 } else { draw(1_000_000) }).collect()
    }

    #[test]
    fn each_share_is_kept_to_the_exact_bound() {
        for case in 0..300 {
            let shares = shares(case);
            let (count, total) = (shares.len() as i128, shares.iter().sum::<u64>());
            let mut dealt = vec![0; shares.len()];
            for number in 1..1_500_i128 {
                deal(&shares, &mut dealt);
                for (share, dealt) in shares.iter().zip(&dealt) {
                    let off = (i128::from(*share) * number - i128::from(*dealt) * i128::from(total)).abs();
                    // |n · share − dealt| ≤ 1 − 1 / (2K − 2), times (2K − 2) · total.
                    let bound = (2 * count - 3) * i128::from(total);
                    assert!((2 * count - 2) * off <= bound, "{shares:?} after {number}: {dealt}");
                }
            }
        }
    }

    #[test]
    fn a_batch_that_can_have_the_mix_as_asked_has_it() {
        let shares = [400_000, 300_000, 300_000];
        let mut before = vec![0; 3];
        for batch in 1..50 {
            let dealt = counts(&shares, 10 * batch);
            let of_batch: Vec<u64> = dealt.iter().zip(&before).map(|(now, before)| now - before).collect();
            assert_eq!(of_batch, [4, 3, 3]);
            before = dealt;
        }
        // Elsewhere a batch is off by less than two groups, being the difference of two counts that
        // are off by less than one.
        let shares = [5, 3, 1, 1];
        for batch in 1..200 {
            let (now, before) = (counts(&shares, 7 * batch), counts(&shares, 7 * (batch - 1)));
            for (share, (now, before)) in shares.iter().zip(now.iter().zip(&before)) {
                assert!((7.0 * f64::from(*share as u32) / 10.0 - (now - before) as f64).abs() < 2.0);
            }
        }
    }

    #[test]
    fn one_domain_has_all() {
        assert_eq!((next(&[1], &[7]), counts(&[1], 9)), (0, vec![9]));
    }
}
