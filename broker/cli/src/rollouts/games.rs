//! What tokens mean in the games of bare tokens. The environments are `workers/src/envs/`; that both
//! agree is tested by playing them, in `tests/cli/rollouts.rs`.

use millrace_schemas::env_step::{EnvironmentSpec, FrozenLakeSpec, SokobanSpec};

/// The actions of the grid games, by token.
const ACTIONS: [&str; 4] = ["left", "down", "right", "up"];
/// The first token of observations.
const FIRST: u32 = 4;

/// One rollout of a game, as far as it was read.
pub(super) enum Game {
    /// Numbers are themselves.
    Counter,
    FrozenLake(Lake),
    Sokoban(Room),
}

/// A frozen lake.
pub(super) struct Lake {
    spec: FrozenLakeSpec,
    /// Which cells are holes, row by row; empty before the map was shown.
    holes: Vec<bool>,
}

/// A room of Sokoban.
pub(super) struct Room {
    /// Cells a side inside the outer walls.
    inside: u32,
    /// Cells with walls, by number inside the outer ones.
    walls: Vec<u32>,
}

impl Game {
    /// A rollout of this environment; `None` if it speaks text.
    pub(super) fn of(environment: &EnvironmentSpec) -> Option<Self> {
        match environment {
            EnvironmentSpec::Counter { .. } => Some(Self::Counter),
            EnvironmentSpec::FrozenLake(spec) => {
                Some(Self::FrozenLake(Lake { spec: *spec, holes: Vec::new() }))
            }
            EnvironmentSpec::Sokoban(SokobanSpec { size, .. }) => {
                Some(Self::Sokoban(Room { inside: size.saturating_sub(2), walls: Vec::new() }))
            }
            EnvironmentSpec::Arithmetic { .. }
            | EnvironmentSpec::Dataset(_)
            | EnvironmentSpec::Agent(_)
            | EnvironmentSpec::Custom { .. } => None,
        }
    }

    /// An observation as text; empty for an empty one.
    pub(super) fn observed(&mut self, tokens: &[u32]) -> String {
        let shown = match self {
            Self::Counter => None,
            Self::FrozenLake(lake) => lake.observed(tokens),
            Self::Sokoban(room) => room.observed(tokens),
        };
        shown.unwrap_or_else(|| numbers(tokens))
    }

    /// A turn as text.
    pub(super) fn acted(&self, tokens: &[u32]) -> String {
        if matches!(self, Self::Counter) {
            return numbers(tokens);
        }
        let action = |token: &u32| match ACTIONS.get(*token as usize) {
            Some(name) => (*name).to_owned(),
            None => format!("token {token}, no action"),
        };
        tokens.iter().map(action).collect::<Vec<_>>().join(" ")
    }
}

fn numbers(tokens: &[u32]) -> String {
    tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

impl Lake {
    /// The map where it was not shown before, then where the player is, and what is beside. `None` if
    /// the tokens are of no such lake.
    fn observed(&mut self, tokens: &[u32]) -> Option<String> {
        let size = self.spec.size;
        let cells = size * size;
        let (places, sides) = (FIRST + 2 * cells, FIRST + 3 * cells);
        let player = tokens.last()?.checked_sub(places).filter(|cell| *cell < cells)?;
        let mut holes = self.holes.clone();
        let mut beside = Vec::new();
        for token in &tokens[..tokens.len() - 1] {
            if *token >= self.spec.first_row() {
                let row = token - self.spec.first_row();
                let (pattern, ways) = (row & ((1 << size) - 1), (row >> size) / size);
                let shown = (ways + player / size).checked_sub(size - 1).filter(|shown| *shown < size)?;
                holes.resize(cells as usize, false);
                for column in 0..size {
                    holes[(shown * size + column) as usize] = pattern >> column & 1 == 1;
                }
            } else if *token >= sides {
                let (side, what) = ((token - sides) / 4, (token - sides) % 4);
                let what = ["ice", "hole", "edge", "goal"][what as usize];
                beside.push(format!("{} {what}", ACTIONS.get(side as usize)?));
            } else {
                let cell = token.checked_sub(FIRST).filter(|cell| *cell < 2 * cells)?;
                holes.resize(cells as usize, false);
                holes[(cell / 2) as usize] = cell % 2 == 1;
            }
        }
        let place = format!("player at row {}, column {}", player / size + 1, player % size + 1);
        let place = if beside.is_empty() { place } else { format!("{place}: {}", beside.join(", ")) };
        if holes == self.holes {
            return Some(place);
        }
        self.holes = holes;
        Some(format!("{}\n{place}", self.map(player)))
    }

    /// As gymnasium draws it: S, F, H and G, and P where the player is.
    fn map(&self, player: u32) -> String {
        let size = self.spec.size;
        let cell = |cell: u32| match (cell, self.holes.get(cell as usize)) {
            (cell, _) if cell == player => 'P',
            (0, _) => 'S',
            (cell, _) if cell + 1 == size * size => 'G',
            (_, Some(true)) => 'H',
            _ => 'F',
        };
        let row = |row: u32| (0..size).map(|column| cell(row * size + column)).collect::<String>();
        (0..size).map(row).collect::<Vec<_>>().join("\n")
    }
}

impl Room {
    /// The room as Sokoban's players draw it. `None` if the tokens are of no such room.
    fn observed(&mut self, tokens: &[u32]) -> Option<String> {
        let cells = self.inside * self.inside;
        let span = (2 * self.inside).saturating_sub(1);
        let (ways, walls) = (FIRST + 3 * cells, FIRST + 3 * cells + 2 * span * span);
        let (mut player, mut box_at, mut target) = (None, None, None);
        for token in tokens {
            let cell = token.checked_sub(FIRST)?;
            match cell.checked_div(cells)? {
                _ if *token >= walls => self.walls.push(token - walls),
                // How far they are apart follows from where they are.
                _ if *token >= ways => {}
                0 => player = Some(cell),
                1 => box_at = Some(cell - cells),
                _ => target = Some(cell - 2 * cells),
            }
        }
        let (player, box_at, target) = (player?, box_at?, target?);
        let drawn = |cell: u32| match cell {
            _ if cell == player && cell == target => '+',
            _ if cell == player => '@',
            _ if cell == box_at && cell == target => '*',
            _ if cell == box_at => '$',
            _ if cell == target => '.',
            _ if self.walls.contains(&cell) => '#',
            _ => ' ',
        };
        let row =
            |row: u32| (0..self.inside).map(|column| drawn(row * self.inside + column)).collect::<String>();
        let edge = "#".repeat(self.inside as usize + 2);
        let rows = (0..self.inside).map(|number| format!("#{}#", row(number)));
        Some([edge.clone()].into_iter().chain(rows).chain([edge]).collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use millrace_schemas::env_step::LakeView;

    use super::*;

    #[test]
    fn a_frozen_lake_is_drawn_once_and_then_the_players_place() {
        let spec = FrozenLakeSpec { size: 2, ..FrozenLakeSpec::default() };
        let mut game = Game::of(&EnvironmentSpec::FrozenLake(spec)).unwrap();
        // Four cells, the second a hole; left and up the edge, down ice, right a hole; the corner.
        let first = [4, 7, 8, 10, 18, 20, 25, 30, 12];
        let sides = "left edge, down ice, right hole, up edge";
        assert_eq!(game.observed(&first), format!("PH\nFG\nplayer at row 1, column 1: {sides}"));
        assert_eq!(game.observed(&[14]), "player at row 2, column 1");
        assert_eq!(game.observed(&[]), "", "nothing follows the last turn");
        assert_eq!(game.observed(&[3, 999]), "3 999", "of no such lake");
        assert_eq!((game.acted(&[2]), game.acted(&[9])), ("right".into(), "token 9, no action".into()));
    }

    #[test]
    fn rows_as_seen_from_the_player_are_the_map() {
        let view = LakeView::CentredRows;
        let spec = FrozenLakeSpec { size: 2, view, surroundings: false, ..FrozenLakeSpec::default() };
        let row =
            |ways: u32, column: u32, pattern: u32| spec.first_row() + ((ways * 2 + column) << 2) + pattern;
        let mut game = Game::of(&EnvironmentSpec::FrozenLake(spec)).unwrap();
        // From the second row: a hole in the first row's second cell.
        let tokens = [row(0, 0, 0b10), row(1, 0, 0), 4 + 8 + 2];
        assert_eq!(game.observed(&tokens), "SH\nPG\nplayer at row 2, column 1");
    }

    #[test]
    fn a_room_is_drawn_with_its_walls_every_turn() {
        let spec = SokobanSpec { size: 5, walls: 1, ..SokobanSpec::default() };
        let mut game = Game::of(&EnvironmentSpec::Sokoban(spec)).unwrap();
        let (ways, walls) = (4 + 27, 4 + 27 + 50);
        let drawn = game.observed(&[walls + 8, 4 + 18 + 2, 4 + 9 + 4, 4, ways, ways + 25]);
        assert_eq!(drawn, "#####\n#@ .#\n# $ #\n#  ##\n#####");
        let drawn = game.observed(&[4 + 18 + 2, 4 + 9 + 4, 4 + 1, ways, ways + 25]);
        assert!(drawn.starts_with("#####\n# @.#") && drawn.contains("#  ##"), "{drawn}");
    }
}
