//! The meaning of tokens in the grid games, defined here alone. A model made from scratch learns
//! them, so a change here makes older weights useless.

/// Actions, the same in every grid game.
pub(super) const LEFT: u32 = 0;
pub(super) const DOWN: u32 = 1;
pub(super) const RIGHT: u32 = 2;
pub(super) const UP: u32 = 3;

/// Number of actions; observations use the tokens from here on.
pub(super) const FIRST_SEEN: u32 = 4;

/// The move (rows, columns) of the turn's last token; `None` if it is no action.
pub(super) fn movement(tokens: &[u32]) -> Option<(i32, i32)> {
    match *tokens.last()? {
        LEFT => Some((0, -1)),
        DOWN => Some((1, 0)),
        RIGHT => Some((0, 1)),
        UP => Some((-1, 0)),
        _ => None,
    }
}

/// The cell beside `cell` in a square grid of `size`, by index; `None` beyond the edge.
pub(super) fn beside(size: u32, cell: u32, (rows, columns): (i32, i32)) -> Option<u32> {
    let row = (cell / size).checked_add_signed(rows)?;
    let column = (cell % size).checked_add_signed(columns)?;
    (row < size && column < size).then(|| row * size + column)
}

/// All moves.
pub(super) const MOVES: [(i32, i32); 4] = [(0, -1), (1, 0), (0, 1), (-1, 0)];
