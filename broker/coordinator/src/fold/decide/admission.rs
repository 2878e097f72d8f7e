//! Keeps the window full.

use millrace_schemas::RolloutId;

use crate::fold::command::Commands;
use crate::fold::domains::Dealer;
use crate::fold::rollout::Group;
use crate::fold::state::Run;
use crate::fold::{tasks, window};

/// Admits as many groups as the window has room for.
pub(super) fn refill(run: &mut Run, out: &mut Commands) {
    if run.policy.is_none() || !run.state.works() {
        return;
    }
    let version = run.version();
    let admissible = window::admissible(&run.spec, run.load());
    if admissible == 0 {
        return;
    }
    let mut dealer = Dealer::of(run);
    for _ in 0..admissible {
        let id = run.next_group;
        run.next_group += 1;
        let size = run.spec.rollout.group_size;
        let group = match run.stored.draw(&run.spec, id) {
            Some((prompt, start)) => Group::new(&run.spec.part(0), prompt, Some(start), size, version),
            None => {
                let (domain, prompt) = dealer.next(run);
                Group::new(&run.spec.part(domain), prompt, None, size, version)
            }
        };
        for index in 0..size {
            run.books.admit(RolloutId { group: id, index, attempt: 0 }, group.domain, version);
        }
        tasks::put_group(run, id, &group, out);
        run.groups.insert(id, group);
    }
}
