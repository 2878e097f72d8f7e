//! The settings of the grid games. Settings that are newer than the first version are written only
//! if they are set, so that older run files keep their bytes and hash.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::omit;
use crate::submit::Checks;

/// How a frozen lake is shown. Both forms show the whole map and the player's position, and nothing
/// else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LakeView {
    /// The first turn shows the map, one token per cell. Each turn shows the player's cell.
    #[default]
    MapOnce,
    /// Each turn shows the map, a token for each row, as seen from the player: how many rows above
    /// or below, the player's column, and which cells are holes. Then the player's cell. Needs a
    /// vocabulary of `size·(2·size − 1)·2^size` more.
    CentredRows,
}

/// Cross a frozen lake from the top left corner to the bottom right one without falling into a
/// hole.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FrozenLakeSpec {
    /// Cells a side, 2 to 8. Default 4.
    pub size: u32,
    /// Chance that a cell is frozen rather than a hole, 0 to 1. Default 0.8.
    pub frozen: f64,
    /// Turns after which the episode is truncated. Default 10.
    pub max_turns: u32,
    /// Share of the maps, 0 to 1, whose shortest path is longer than the distance from corner to
    /// corner, so that it leads away from the goal somewhere; the other maps have a straight one.
    /// Needs 5 cells a side: smaller maps have none. Default: as the maps are drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub detours: Option<f64>,
    /// How the map and the position are shown. Default `map_once`.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = "map_once"))]
    pub view: LakeView,
    /// Each turn also shows what is on the four sides of the player. A rule that never reads the
    /// map can then solve most maps. Default true, as in the first version.
    #[serde(skip_serializing_if = "omit::is_true")]
    #[schemars(extend("default" = true))]
    pub surroundings: bool,
    /// A move goes where it is meant to with chance 1/3, and to each of the two sides with chance
    /// 1/3, as in gymnasium. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub slippery: bool,
    /// Episodes for training begin on any cell from which the goal can be reached (exploring
    /// starts); episodes for evaluation always begin in the corner. Default false: all begin in the
    /// corner.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub exploring_starts: bool,
}

impl Default for FrozenLakeSpec {
    fn default() -> Self {
        Self {
            size: 4,
            frozen: 0.8,
            max_turns: 10,
            detours: None,
            view: LakeView::MapOnce,
            surroundings: true,
            slippery: false,
            exploring_starts: false,
        }
    }
}

impl FrozenLakeSpec {
    pub(super) fn check(&self, field: &dyn Fn(&str) -> String, checks: &mut Checks) {
        checks.count(&field("size"), u64::from(self.size), 2, 8);
        checks.number(&field("frozen"), self.frozen, 0.0, 1.0);
        let Some(share) = self.detours else { return };
        checks.number(&field("detours"), share, 0.0, 1.0);
        checks.require(
            share == 0.0 || self.size >= 5,
            &field("detours"),
            share,
            "on maps of fewer than 5 cells a side no shortest path is a detour; choose environment.size = 5 or more",
        );
    }

    /// Tokens of an observation: ids are below this.
    #[must_use]
    pub const fn vocabulary(&self) -> u32 {
        self.first_row().saturating_add(self.row_tokens())
    }

    /// The first of the tokens that stand for a row; those before it are actions, cells, places and
    /// surroundings.
    #[must_use]
    pub const fn first_row(&self) -> u32 {
        let others = if self.surroundings { 20 } else { 4 };
        self.size.saturating_mul(self.size).saturating_mul(3).saturating_add(others)
    }

    /// Tokens that stand for a row: ways up or down, times columns of the player, times patterns of
    /// holes.
    const fn row_tokens(&self) -> u32 {
        match self.view {
            LakeView::MapOnce => 0,
            // Maps of more than 8 cells a side are refused; here they must only not overflow.
            LakeView::CentredRows => {
                let size = if self.size > 8 { 8 } else { self.size };
                ((2 * size).saturating_sub(1) * size) << size
            }
        }
    }

    /// Tokens of the first observation and of each later one.
    #[must_use]
    pub const fn observation_tokens(&self) -> (u32, u32) {
        let seen = if self.surroundings { 5 } else { 1 };
        match self.view {
            LakeView::MapOnce => (self.size.saturating_mul(self.size).saturating_add(seen), seen),
            LakeView::CentredRows => (self.size.saturating_add(seen), self.size.saturating_add(seen)),
        }
    }
}

/// Push one box onto its target; levels made solvable by playing backwards from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SokobanSpec {
    /// Cells a side, the outer walls included, 5 to 10. Default 6.
    pub size: u32,
    /// Backward moves that make a level; more is harder. Default 6.
    pub scramble: u32,
    /// Turns that the shortest solution takes at least; levels with a shorter one are left out.
    /// Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0))]
    pub least_turns: u32,
    /// Turns after which the episode is truncated. Default 12.
    pub max_turns: u32,
    /// Cells inside the room that are walls, 0 to 4, elsewhere in each level. Levels are held out
    /// by their walls and target, which no move changes; with 0, by their target alone. Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0))]
    pub walls: u32,
}

impl Default for SokobanSpec {
    fn default() -> Self {
        Self { size: 6, scramble: 6, least_turns: 0, max_turns: 12, walls: 0 }
    }
}

impl SokobanSpec {
    pub(super) fn check(&self, field: &dyn Fn(&str) -> String, checks: &mut Checks) {
        let Self { size, scramble, least_turns, max_turns, walls } = *self;
        checks.count(&field("size"), u64::from(size), 5, 10);
        checks.count(&field("scramble"), u64::from(scramble), 1, 1_000);
        // No level takes more turns than it was made with, nor than an episode has.
        let most = scramble.min(max_turns);
        checks.count(&field("least_turns"), u64::from(least_turns), 0, u64::from(most));
        checks.count(&field("walls"), u64::from(walls), 0, 4);
    }

    /// Tokens of an observation: ids are below this.
    #[must_use]
    pub const fn vocabulary(&self) -> u32 {
        // A box is up to `inside - 1` cells away in either direction.
        let inside = self.size.saturating_sub(2);
        let span = inside.saturating_mul(2).saturating_sub(1);
        let cells = inside.saturating_mul(inside);
        let kinds = if self.walls > 0 { 4 } else { 3 };
        let boxes = span.saturating_mul(span).saturating_mul(2);
        cells.saturating_mul(kinds).saturating_add(boxes).saturating_add(4)
    }
}
