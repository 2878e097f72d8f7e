//! What each GPU did when, for the picture.

use std::sync::Arc;

use tokio::time::Instant;

use super::node::{Kind, Node};
use super::plant::Plant;

/// What each GPU did when, in seconds since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Timeline {
    /// A GPU each, those that generate first.
    pub(super) gpus: Vec<Lane>,
    /// When versions were published, ascending.
    pub(super) published: Vec<f64>,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lane {
    /// From when to when it decoded.
    pub(super) generates: Vec<(f64, f64)>,
    /// From when to when it trained.
    pub(super) trains: Vec<(f64, f64)>,
}

impl Timeline {
    /// What the nodes did since `began`.
    pub(super) fn read(plant: &Plant, nodes: &[Arc<Node>], began: Instant) -> Self {
        let since = |at: Instant| (at - began).as_secs_f64();
        let seconds = |spans: Vec<(Instant, Instant)>| -> Vec<(f64, f64)> {
            spans.into_iter().map(|(from, to)| (since(from), since(to))).collect()
        };
        let journal = plant.journal();
        let trains = seconds(journal.train_spans.clone());
        let mut gpus = Vec::new();
        for node in nodes {
            for spans in node.spans() {
                let trains = if node.kind == Kind::Both { trains.clone() } else { vec![] };
                gpus.push(Lane { generates: seconds(spans), trains });
            }
        }
        let trainer = Lane { generates: vec![], trains: trains.clone() };
        gpus.extend((0..plant.fleet.train).map(|_| trainer.clone()));
        Self { gpus, published: journal.published.values().map(|at| since(*at)).collect() }
    }
}
