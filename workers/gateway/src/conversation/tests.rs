use axum::http::StatusCode;
use millrace_schemas::env_step::TurnLimits;

use super::*;
use crate::call::assistant;
use crate::testing::{codec, tokens, words};

fn call(messages: Value) -> Call {
    let Value::Array(messages) = messages else { unreachable!() };
    Call {
        messages,
        tools: vec![],
        kinds: std::collections::BTreeMap::new(),
        limits: TurnLimits::default(),
        choices: 1,
        stream: false,
        stream_usage: false,
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn conversation(forks: Forks, context_tokens: u32) -> Conversation {
    side_by_side(forks, context_tokens, 1)
}

fn side_by_side(forks: Forks, context_tokens: u32, parallel_calls: u32) -> Conversation {
    let spec = json!({ "command": ["a"], "reward": ["true"], "rows": { "path": "none" },
                       "context_tokens": context_tokens, "parallel_calls": parallel_calls });
    let spec: AgentSpec = serde_json::from_value(spec).unwrap();
    Conversation::new(codec(), &AgentSpec { forks, ..spec })
}

/// Reads the turn of the last call, for its client.
fn take(talk: &mut Conversation, sampled: &[u32]) -> Reply {
    talk.read(|_| Some(sampled.into()));
    talk.deliver(talk.made).unwrap()
}

/// The observation of a call that asks for a turn, as text.
fn observed(conversation: &mut Conversation, call: &Call) -> String {
    match conversation.ask(&Wanted::new(call, 0)).unwrap() {
        Asked::Turn(_, observation) => words(&observation.tokens),
        other => panic!("{other:?}"),
    }
}

/// Claude Code fills in what a tool has by default; an agent in JavaScript writes 1 for 1.0.
#[test]
fn a_call_of_a_tool_that_an_agent_completed_is_the_one_that_was_sampled() {
    let mut talk = conversation(Forks::Refuse, 1_000);
    let tools = vec![json!({ "type": "function", "function": { "name": "edit" } })];
    let call = |messages| Call { tools: tools.clone(), ..call(messages) };
    observed(&mut talk, &call(json!([user("go")])));
    let sampled =
        "<tool_call>{\"name\": \"edit\", \"arguments\": {\"old\": \"a\", \"at\": 1.0}}</tool_call>$";
    let reply = take(&mut talk, &tokens(sampled));
    let result = json!({ "role": "tool", "content": "done", "tool_call_id": reply.tool_calls[0].id });
    let sent = |arguments: Value| {
        let mut said = reply.message();
        said["tool_calls"][0]["function"]["arguments"] = arguments;
        let mut call = call(json!([user("go"), said, result]));
        talk.restore(&mut call);
        (talk.known_messages(&Wanted::new(&call, 0).links, talk.tools).is_ok(), call)
    };
    let (is_same, completed) = sent(json!({ "old": "a", "at": 1, "all": false }));
    assert!(is_same);
    for changed in
        [json!({ "old": "b", "at": 1 }), json!({ "old": "a" }), json!({ "old": "a", "at": 2 }), json!("a")]
    {
        assert!(!sent(changed.clone()).0, "{changed}");
    }
    assert_eq!(observed(&mut talk, &completed), "<tool>done$<assistant>");
}

#[test]
fn only_what_is_new_is_tokenised_and_turns_stay_as_they_were_sampled() {
    let mut talk = conversation(Forks::Refuse, 1_000);
    let (system, hello) = (json!({ "role": "system", "content": "Be." }), user("hello"));
    let first = observed(&mut talk, &call(json!([system, hello])));
    assert_eq!(first, "<system>Be.$<user>hello$<assistant>");
    // White space at the ends, which the agent trims, and an end token.
    let sampled = tokens(" hi  there \n$");
    let reply = take(&mut talk, &sampled);
    assert_eq!((reply.text.as_str(), reply.finish), (" hi  there \n", Finish::Stop));
    assert_eq!((reply.prompt_tokens, reply.completion_tokens), (first.len(), sampled.len()));
    let answer = json!({ "role": "assistant", "content": "hi  there" });
    let second = observed(&mut talk, &call(json!([system, hello, answer, user("go")])));
    assert_eq!(second, "<user>go$<assistant>");
    // A turn that was cut off gets its end from the template.
    let reply = take(&mut talk, &tokens("cut"));
    assert_eq!(reply.finish, Finish::Length);
    assert_eq!(reply.prompt_tokens, first.len() + sampled.len() + second.len());
    let cut = json!({ "role": "assistant", "content": "cut" });
    let third = observed(&mut talk, &call(json!([system, hello, answer, user("go"), cut, user("on")])));
    assert_eq!(third, "$<user>on$<assistant>");
}

#[test]
fn what_does_not_continue_the_conversation_is_refused_and_changes_nothing() {
    let mut talk = conversation(Forks::Refuse, 1_000);
    observed(&mut talk, &call(json!([user("a")])));
    take(&mut talk, &tokens("b$"));
    let said = json!({ "role": "assistant", "content": "b" });
    for (messages, at) in [
        (json!([user("a"), json!({ "role": "assistant", "content": "other" }), user("c")]), "messages[1]"),
        (json!([user("A"), said, user("c")]), "messages[0]"),
        (json!([user("summary")]), "messages[0]"),
        (json!([user("a"), user("c")]), "messages[1]"),
    ] {
        let refusal = talk.ask(&Wanted::new(&call(messages), 0)).unwrap_err();
        assert_eq!(refusal.status, StatusCode::CONFLICT);
        assert!(refusal.message.starts_with(at), "{refusal}");
    }
    let other_tools =
        Call { tools: vec![json!({ "type": "function" })], ..call(json!([user("a"), said, user("c")])) };
    assert_eq!(talk.ask(&Wanted::new(&other_tools, 0)).unwrap_err().status, StatusCode::CONFLICT);
    let prefilled = talk.ask(&Wanted::new(&call(json!([user("a"), said])), 0)).unwrap_err();
    assert_eq!(prefilled.status, StatusCode::BAD_REQUEST);
    assert_eq!(observed(&mut talk, &call(json!([user("a"), said, user("c")]))), "<user>c$<assistant>");
}

#[test]
fn a_fork_is_appended_where_the_run_says_so() {
    let mut talk = conversation(Forks::Append, 1_000);
    observed(&mut talk, &call(json!([user("a")])));
    take(&mut talk, &tokens("b"));
    assert_eq!(observed(&mut talk, &call(json!([user("sub")]))), "$<user>sub$<assistant>");
    take(&mut talk, &tokens("c$"));
    let next = call(json!([user("sub"), json!({ "role": "assistant", "content": "c" }), user("d")]));
    assert_eq!(observed(&mut talk, &next), "<user>d$<assistant>");
    take(&mut talk, &tokens("e$"));
    assert_eq!(observed(&mut talk, &call(json!([user("third")]))), "<user>third$<assistant>");
}

#[test]
fn forks_are_conversations_of_their_own_where_the_run_says_so() {
    // Room for three messages and their turns, not for all that is said.
    let mut talk = conversation(Forks::Separate, 70);
    let asked = |talk: &mut Conversation, messages| match talk.ask(&Wanted::new(&call(messages), 0)).unwrap()
    {
        Asked::Turn(_, Observation { tokens, follows, .. }) => (words(&tokens), follows),
        other => panic!("{other:?}"),
    };
    let said = |text: &str| json!({ "role": "assistant", "content": text });
    let first = asked(&mut talk, json!([user("a")]));
    assert_eq!(first, ("<user>a$<assistant>".to_owned(), None));
    take(&mut talk, &tokens("b"));
    // A sub-agent has its own beginning, and goes on.
    assert_eq!(asked(&mut talk, json!([user("sub")])), ("<user>sub$<assistant>".to_owned(), Some(0)));
    take(&mut talk, &tokens("c$"));
    let on = json!([user("sub"), said("c"), user("d")]);
    assert_eq!(asked(&mut talk, on), ("<user>d$<assistant>".to_owned(), None));
    take(&mut talk, &tokens("e$"));
    // The first conversation goes on where it was: its turn was cut off and gets its end.
    let main = json!([user("a"), said("b"), user("f")]);
    let again = asked(&mut talk, main.clone());
    assert_eq!(again, ("$<user>f$<assistant>".to_owned(), Some(1)));
    let reply = take(&mut talk, &tokens("g$"));
    assert_eq!(reply.prompt_tokens, "<user>a$<assistant>b$<user>f$<assistant>".len(), "what it follows");
    // Other words after the same turn, which the agent took back; then what it had.
    let edited = json!([user("a"), said("b"), user("F")]);
    assert_eq!(asked(&mut talk, edited), ("$<user>F$<assistant>".to_owned(), Some(1)));
    take(&mut talk, &tokens("h$"));
    let last = json!([user("a"), said("b"), user("f"), said("g"), user("i")]);
    assert_eq!(asked(&mut talk, last).1, Some(4));
    take(&mut talk, &tokens("j$"));
    // The same with other tools follows nothing, for tools come first.
    let tools = vec![json!({ "type": "function" })];
    let Asked::Turn(_, with_tools) = talk.ask(&Wanted::new(&Call { tools, ..call(main) }, 0)).unwrap() else {
        panic!()
    };
    assert_eq!(with_tools.follows, Some(0));
    take(&mut talk, &tokens("k$"));
    // Each conversation is bounded by itself.
    let long = talk.ask(&Wanted::new(&call(json!([user(&"x".repeat(70))])), 0)).unwrap_err();
    assert_eq!(long.code, "context_length_exceeded");
}

#[test]
fn a_repeated_call_gets_the_same_turn_a_few_times() {
    let mut talk = conversation(Forks::Refuse, 1_000);
    let asked = call(json!([user("a")]));
    observed(&mut talk, &asked);
    assert_eq!(talk.known(&Wanted::new(&asked, 0)), Some(1), "its turn is outstanding");
    let reply = take(&mut talk, &tokens("b$"));
    for _ in 0..REPEATS {
        assert_eq!(talk.known(&Wanted::new(&asked, 0)), Some(1));
        assert_eq!(talk.deliver(1).unwrap(), reply);
    }
    assert_eq!(talk.known(&Wanted::new(&asked, 0)), None);
    assert_eq!(talk.ask(&Wanted::new(&asked, 0)).unwrap_err().status, StatusCode::CONFLICT);
}

#[test]
fn an_overflow_is_refused_with_the_numbers() {
    let first = "<user>a$<assistant>".len();
    let mut talk = conversation(Forks::Refuse, first as u32 + 2);
    observed(&mut talk, &call(json!([user("a")])));
    take(&mut talk, &tokens("b$"));
    let next = call(json!([user("a"), json!({ "role": "assistant", "content": "b" }), user("c")]));
    for _ in 0..2 {
        let refusal = talk.ask(&Wanted::new(&next, 0)).unwrap_err();
        assert_eq!((refusal.status, refusal.code), (StatusCode::BAD_REQUEST, "context_length_exceeded"));
        for number in [first + 2, first, 2 * first + 2] {
            assert!(refusal.message.contains(&number.to_string()), "{refusal} lacks {number}");
        }
    }
}

#[test]
fn calls_of_tools_are_matched_when_they_come_back() {
    let mut talk = conversation(Forks::Refuse, 10_000);
    let tool = json!({ "type": "function", "function": { "name": "ls", "parameters": {} } });
    let with_tools = |messages| Call { tools: vec![tool.clone()], ..call(messages) };
    assert!(observed(&mut talk, &with_tools(json!([user("a")]))).starts_with("<tools>[{"));
    let reply =
        take(&mut talk, &tokens("<tool_call>{\"name\": \"ls\", \"arguments\": {\"b\": 1}}</tool_call>$"));
    assert_eq!((reply.finish, reply.text.as_str()), (Finish::ToolCalls, ""));
    let back = assistant("", vec![reply.tool_calls[0].object()]);
    let result = json!({ "role": "tool", "content": "x.py", "tool_call_id": "t00001000" });
    let next = with_tools(json!([user("a"), back, result]));
    assert_eq!(observed(&mut talk, &next), "<tool>x.py$<assistant>");
}

#[test]
fn a_stop_text_ends_the_answer_before_it() {
    let mut talk = conversation(Forks::Refuse, 1_000);
    let limits = TurnLimits { max_new_tokens: None, stop: vec!["STOP".into(), "!".into()] };
    observed(&mut talk, &Call { limits, ..call(json!([user("a")])) });
    let reply = take(&mut talk, &tokens("so far STOP"));
    assert_eq!((reply.text.as_str(), reply.finish), ("so far ", Finish::StopText));
    assert_eq!(reply.stop.as_deref(), Some("STOP"));
}

#[test]
fn answers_side_by_side_are_samples_after_the_same_turn() {
    let mut talk = conversation(Forks::Separate, 1_000);
    let said = |text: &str| json!({ "role": "assistant", "content": text });
    observed(&mut talk, &call(json!([user("a")])));
    take(&mut talk, &tokens("b$"));
    let both = Call { choices: 2, ..call(json!([user("a"), said("b"), user("c")])) };
    let mut asked = |choice| match talk.ask(&Wanted::new(&both, choice)).unwrap() {
        Asked::Turn(_, Observation { tokens: asked, words: said, follows, .. }) => {
            let reply = take(&mut talk, &tokens(["d$", "e$"][choice as usize]));
            (words(&asked), said, follows, reply.prompt_tokens)
        }
        other => panic!("{other:?}"),
    };
    let context = "<user>a$<assistant>b$<user>c$<assistant>".len();
    assert_eq!(asked(0), ("<user>c$<assistant>".to_owned(), "c".to_owned(), None, context));
    assert_eq!(asked(1), ("<user>c$<assistant>".to_owned(), String::new(), Some(1), context));
    // A lost answer is given again, each of them.
    for (choice, text) in [(0, "d"), (1, "e")] {
        assert_eq!(talk.known(&Wanted::new(&both, choice)), Some(choice + 2));
        assert_eq!(talk.deliver(choice + 2).unwrap().text, text);
    }
    // The agent goes on after the one that it likes.
    let first = call(json!([user("a"), said("b"), user("c"), said("d"), user("f")]));
    let Asked::Turn(_, on) = talk.ask(&Wanted::new(&first, 0)).unwrap() else { panic!() };
    assert_eq!((words(&on.tokens), on.follows), ("<user>f$<assistant>".to_owned(), Some(2)));
    // Where forks are no samples, neither are these.
    let refused = conversation(Forks::Refuse, 1_000)
        .ask(&Wanted::new(&Call { choices: 2, ..call(json!([user("a")])) }, 0));
    assert!(refused.unwrap_err().message.contains("forks"));
}

#[test]
fn calls_side_by_side_are_samples_of_their_own() {
    let mut talk = side_by_side(Forks::Separate, 1_000, 2);
    let said = |text: &str| json!({ "role": "assistant", "content": text });
    let asked = |talk: &mut Conversation, messages| match talk.ask(&Wanted::new(&call(messages), 0)).unwrap()
    {
        Asked::Turn(number, observation) => (number, words(&observation.tokens), observation.follows),
        Asked::Full => panic!("there is room"),
    };
    let text = |text: &str| format!("<user>{text}$<assistant>");
    assert_eq!(asked(&mut talk, json!([user("a")])), (1, text("a"), None));
    take(&mut talk, &tokens("b$"));
    // Two sub-agents. The second is answered first, and goes on while the first still waits.
    assert_eq!(asked(&mut talk, json!([user("one")])), (2, text("one"), Some(0)));
    assert_eq!(asked(&mut talk, json!([user("two")])), (3, text("two"), Some(0)));
    assert_eq!(talk.ask(&Wanted::new(&call(json!([user("three")])), 0)).unwrap(), Asked::Full);
    talk.read(|number| (number == 3).then(|| tokens("y$").into()));
    assert_eq!(talk.deliver(3).unwrap().text, "y");
    assert_eq!(asked(&mut talk, json!([user("two"), said("y"), user("on")])), (4, text("on"), None));
    // The main agent goes on after its own turn, whatever was read since; what it follows is a call's number.
    talk.read(|number| (number == 2).then(|| tokens("x$").into()));
    assert_eq!(asked(&mut talk, json!([user("a"), said("b"), user("go")])), (5, text("go"), Some(1)));
    talk.read(|number| (number == 4).then(|| tokens("z$").into()));
    let one = talk.ask(&Wanted::new(&call(json!([user("one"), said("x"), user("more")])), 0)).unwrap();
    let Asked::Turn(6, one) = one else { panic!("{one:?}") };
    assert_eq!((words(&one.tokens), one.follows), (text("more"), Some(2)));
}

#[test]
fn a_call_that_looks_like_another_is_its_own_while_the_other_has_its_client() {
    let mut talk = side_by_side(Forks::Separate, 1_000, 3);
    let same = call(json!([user("a")]));
    assert_eq!((talk.known(&Wanted::new(&same, 0)), observed(&mut talk, &same).is_empty()), (None, false));
    assert_eq!(talk.known(&Wanted::new(&same, 0)), None, "the first client waits for its own turn");
    observed(&mut talk, &same);
    talk.leave(1);
    assert_eq!(talk.known(&Wanted::new(&same, 0)), Some(1), "its client lost its connection and asks again");
    assert_eq!(talk.known(&Wanted::new(&same, 0)), None);
    talk.read(|number| Some(tokens(&format!("{number}$")).into()));
    assert_eq!(talk.deliver(1).unwrap().text, "1");
    // The second's client went away; its answer waits for it, and the first's is had.
    talk.leave(1);
    talk.leave(2);
    assert_eq!(talk.known(&Wanted::new(&same, 0)), Some(2));
    assert_eq!(talk.deliver(2).unwrap().text, "2");
    assert_eq!(talk.known(&Wanted::new(&same, 0)), None);
}

#[test]
fn what_the_policy_said_is_told_once_with_the_next_call() {
    let mut talk = side_by_side(Forks::Separate, 1_000, 2);
    let before = |talk: &mut Conversation, text: &str| match talk
        .ask(&Wanted::new(&call(json!([user(text)])), 0))
        .unwrap()
    {
        Asked::Turn(_, observation) => observation.before,
        Asked::Full => panic!("there is room"),
    };
    assert_eq!((before(&mut talk, "a"), before(&mut talk, "b")), (None, None));
    talk.read(|number| Some(tokens(&format!("{number}$")).into()));
    assert_eq!((before(&mut talk, "c"), before(&mut talk, "d")), (Some("1\n\n2".to_owned()), None));
}
