//! Names: subjects, keys, ids, and which event may be on which subject.

use millrace_schemas::subjects::{is_subject_of, parse_task, run_of_log, stage_of_task, task};
use millrace_schemas::{Event, PoolName, RunId, TaskKey, WorkerId};

use crate::fuzz::fuzz;

fn read_all(text: &str) {
    if let Ok(key) = text.parse::<TaskKey>() {
        assert_eq!(key.to_string().parse::<TaskKey>().unwrap(), key);
    }
    let _ =
        (text.parse::<RunId>().is_ok(), text.parse::<PoolName>().is_ok(), text.parse::<WorkerId>().is_ok());
    let _ = (stage_of_task(text), run_of_log(text));
    if let Ok(named) = parse_task(text) {
        // One task has one subject, or the server could hold it twice.
        assert_eq!(task(&named.pool, &named.run, named.version, named.key), text);
    }
    assert!(!is_subject_of(text, "lake", &Event::Cancelled { reason: String::new() }));
}

#[test]
fn arbitrary_names_are_read_or_refused() {
    fuzz(&".{0,80}", |text| read_all(&text));
    fuzz(&"mr\\.(task|log)\\.(generate|reward|x)?\\.[a-z0-9.*>-]{0,40}", |text| read_all(&text));
    fuzz(&"[gtp][0-9]{0,22}[ra]?[0-9]{0,12}[ar]?[0-9]{0,12}-?[swe]?[0-9]{0,12}", |text| read_all(&text));
    fuzz(&"mr\\.task\\.generate\\.policy\\.lake\\.v[0-9]{0,21}\\.g[0-9]{1,3}r0a0-s[0-9]{1,3}", |text| {
        read_all(&text)
    });
}
