//! Sessions that clients leave open.

use serde_json::{Value, json};

use super::service::{Service, service};

impl Service {
    fn open(&self, id: &str, session: &str) -> Value {
        self.post("/create_session", &json!({ "sandbox_id": id, "session": session }))
    }

    fn opened(&self, id: &str, session: &str) {
        let made = self.open(id, session);
        assert_eq!(made["status"], "Success", "{session}: {made}");
    }

    fn in_session(&self, id: &str, session: &str, command: &str) -> Value {
        self.post("/run_in_session", &json!({ "sandbox_id": id, "session": session, "command": command }))
    }

    fn ran(&self, id: &str, session: &str, command: &str) -> String {
        let ran = self.in_session(id, session, command);
        ran["result"]["output"].as_str().unwrap_or_else(|| panic!("{session}: {ran}")).to_owned()
    }
}

#[test]
fn a_session_of_no_more_use_makes_room_and_one_that_runs_or_left_something_stays() {
    let service = service(&[]);
    let id = service.start();
    for (session, command) in [
        ("bash-job", "nohup sleep 3000 < /dev/null > /dev/null 2>&1 & disown"),
        ("bash-orphan", "(setsid sleep 3001 > /dev/null 2>&1 &)"),
        ("named", "A=kept"),
        ("over", "exit"),
    ] {
        service.opened(&id, session);
        service.in_session(&id, session, command);
    }
    service.opened(&id, "bash-talks");
    let talks = json!({ "sandbox_id": id, "session": "bash-talks", "command": "echo ready; cat", "expect": ["ready"] });
    assert_eq!(service.post("/run_in_session", &talks)["result"]["expect_string"], "ready");
    service.opened(&id, "bash-busy");
    service.opened(&id, "bash-fresh");
    std::thread::scope(|scope| {
        let busy = scope
            .spawn(|| service.ran(&id, "bash-busy", "until [ -e go ]; do sleep 0.01; done; echo through"));
        for n in 0..130 {
            let session = format!("bash-{n}");
            service.opened(&id, &session);
            assert_eq!(service.ran(&id, &session, "echo x"), "x");
        }
        service.ran(&id, "named", "touch go");
        assert_eq!(busy.join().unwrap(), "through");
    });
    assert_eq!(service.ran(&id, "named", "echo $A; pgrep -c sleep"), "kept\n2");
    assert_eq!(service.ran(&id, "bash-fresh", "echo x"), "x");
    let typed = json!({ "sandbox_id": id, "session": "bash-talks", "command": "typed", "expect": ["typed"] });
    assert_eq!(service.post("/run_in_session", &typed)["result"]["expect_string"], "typed");
    for gone in ["bash-0", "over"] {
        let said = service.in_session(&id, gone, "echo x").to_string();
        assert!(said.contains("made room for another; create it"), "{gone}: {said}");
    }
}

#[test]
fn no_session_is_opened_where_all_left_something() {
    let service = service(&[]);
    let id = service.start();
    for n in 0..64 {
        let session = format!("bash-{n}");
        service.opened(&id, &session);
        service.ran(&id, &session, "sleep 3000 > /dev/null 2>&1 &");
    }
    let refused = service.open(&id, "more").to_string();
    assert!(refused.contains("64 sessions") && refused.contains("close one"), "{refused}");
    assert_eq!(service.ran(&id, "bash-63", "pgrep -c sleep"), "64");
    service.ran(&id, "bash-7", "kill %1; wait");
    service.opened(&id, "more");
    assert_eq!(service.ran(&id, "bash-63", "pgrep -c sleep"), "63");
}
