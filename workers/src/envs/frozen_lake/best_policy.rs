//! The best policy on slippery ice, by value iteration: it knows the map, and where the ice may lead but not where it will.
//! Nothing that sees no more than that can do better on average.

use super::{MOVES, beside, slips};

/// The action that most often leads to the goal within `turns` turns, the first of equal ones, and how often it does.
pub(super) fn best_action(size: u32, holes: u64, player: u32, turns: u32) -> (u32, f64) {
    let cells = size * size;
    let over = |cell| cell == cells - 1 || holes >> cell & 1 == 1;
    // [n] by cell: the chance of the goal with so many turns left, at first none.
    let mut values: Vec<f64> = (0..cells).map(|cell| f64::from(u8::from(cell == cells - 1))).collect();
    for _ in 1..turns {
        let next = (0..cells).map(|cell| {
            if over(cell) { values[cell as usize] } else { best(chances(size, &values, cell)).1 }
        });
        values = next.collect();
    }
    best(chances(size, &values, player))
}

/// The chance of the goal after each of the four actions in `cell`; `values` has those of all cells afterwards.
fn chances(size: u32, values: &[f64], cell: u32) -> [f64; 4] {
    MOVES.map(|ahead| {
        let ends = slips(ahead).map(|movement| beside(size, cell, movement).unwrap_or(cell));
        ends.map(|end| values[end as usize]).iter().sum::<f64>() / 3.0
    })
}

fn best(chances: [f64; 4]) -> (u32, f64) {
    (0..).zip(chances).fold((0, -1.0), |best, next| if next.1 > best.1 { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envs::tokens::{DOWN, LEFT, RIGHT, UP};

    /// P .
    /// O G
    #[test]
    fn a_lake_of_four_cells_is_as_by_hand() {
        let chance = |player, turns| best_action(2, 0b0100, player, turns).1;
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} is not {b}");
        // In the upper right corner any move but up ends at the goal once in three times.
        assert_eq!(best_action(2, 0b0100, 1, 1).0, LEFT);
        close(chance(1, 1), 1.0 / 3.0);
        // From the start it takes two turns, and left never goes there.
        close(chance(0, 1), 0.0);
        assert_eq!(best_action(2, 0b0100, 0, 2).0, DOWN);
        close(chance(0, 2), 1.0 / 9.0);
        // With time left, up at the start and right in the corner: no slip leads back or into the hole, and two of 20
        // moves have to go the one way in three that leads on.
        assert_eq!(best_action(2, 0b0100, 0, 20).0, UP);
        assert_eq!(best_action(2, 0b0100, 1, 20).0, RIGHT);
        let stays = |moves| (2.0f64 / 3.0).powi(moves);
        close(chance(1, 20), 1.0 - stays(20));
        close(chance(0, 20), 1.0 - stays(20) - 20.0 / 3.0 * stays(19));
    }

    /// The 4 x 4 map that gymnasium ships: its best policy is known to reach the goal in 0.8235 of endless episodes.
    ///
    /// S . . .
    /// . O . O
    /// . . . O
    /// O . . G
    #[test]
    fn the_known_map_has_its_known_value() {
        let holes = 1 << 5 | 1 << 7 | 1 << 11 | 1 << 12;
        let (action, chance) = best_action(4, holes, 0, 5000);
        assert!((chance - 14.0 / 17.0).abs() < 1e-6, "{chance}");
        assert_eq!(action, LEFT);
        // Gymnasium's own limit of 100 turns costs some of it.
        let (_, in_time) = best_action(4, holes, 0, 100);
        assert!((0.7..chance).contains(&in_time), "{in_time}");
        assert!(best_action(4, holes, 0, 99).1 <= in_time);
    }
}
