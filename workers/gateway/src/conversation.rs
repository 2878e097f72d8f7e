//! The conversation of a rollout, token in and token out; with forks as samples of their own, a tree of
//! them. A call is compared with what was said by a hash chain over its messages. What was sampled is
//! never tokenised again: only messages that are new since the turn before are rendered.

use std::collections::HashMap;
use std::sync::Arc;

use millrace_policy::text_codec::{Codec, TextError};
use millrace_schemas::env_step::{AgentSpec, Forks};
use serde_json::{Value, json};

use crate::call::{Call, Finish, Link, Reply, hash, link, only_adds};
use crate::refusal::Refusal;
use crate::tool_calls;

/// How often the last call may be repeated and is answered the same: its answer may have been lost on
/// the way.
const REPEATS: u32 = 3;

/// A conversation.
pub(crate) struct Conversation {
    codec: Arc<Codec>,
    forks: Forks,
    context_tokens: u32,
    /// Calls whose turns are sampled at once.
    at_once: usize,
    tools: Link,
    /// The link after each message of the call that was read last, and its answer. `[M]`
    links: Vec<Link>,
    /// Calls so far.
    made: u32,
    /// The turns that were read, in the order in which they were. `[turns]`
    turns: Vec<PastTurn>,
    /// Texts of turns that were read since the last call.
    unsaid: Vec<String>,
    /// The calls whose turns are outstanding.
    open: Vec<OpenCall>,
    /// The answers to the last call, and those that no client has. `[choices]` and more
    answered: Vec<Answered>,
    /// The arguments of each call of a tool so far, by its id.
    arguments: HashMap<String, Value>,
}

/// A call whose turn is outstanding.
struct OpenCall {
    number: u32,
    /// Tells it from other calls.
    fingerprint: Link,
    /// Which of the call's answers it is, from 0.
    choice: u32,
    /// Clients that wait for it.
    attended: u32,
    prompt_tokens: usize,
    /// The link after each of its messages. `[M]`
    links: Vec<Link>,
    /// What the policy may call, and its link. `[T]`
    tools: (Vec<Value>, Link),
    stop: Vec<String>,
}

/// A turn that was read, with all that is before it.
struct PastTurn {
    /// The number of the call that it answers.
    call: u32,
    /// The link after it, of so many messages.
    link: Link,
    messages: usize,
    tools: Link,
    /// Tokens of its context, and its own.
    used: usize,
    /// Its last token.
    end: Option<u32>,
}

/// Where a call continues.
#[derive(Clone, Copy)]
struct Place {
    /// After the turn of this number; 0 for the beginning.
    turn: usize,
    /// Messages that were said until then.
    known: usize,
}

/// What the tokens of a call are made from, beside its own messages.
pub(crate) struct Plan {
    codec: Arc<Codec>,
    place: Place,
    /// The call's tools.
    tools: Link,
    /// All of it stands after what was before.
    is_appended: bool,
    /// The last token of the turn before; `None` where there is no turn.
    after: Option<Option<u32>>,
}

impl Plan {
    /// The tokens of a call's messages from its place on. Takes long where the messages are long.
    pub(crate) fn tokens(&self, messages: &[Value], tools: &[Value]) -> Result<Vec<u32>, Refusal> {
        match self.after {
            Some(last) if self.is_appended => {
                let end = self.codec.end_tokens();
                let is_open = last.is_some_and(|last| !end.contains(&last));
                let close = end.first().copied().filter(|_| is_open);
                let opened = self.codec.open_with_tools(messages, tools).map_err(refused)?;
                Ok(close.into_iter().chain(opened).collect())
            }
            Some(last) => {
                let new = &messages[self.place.known..];
                self.codec.continue_with_tools(last.as_slice(), new, tools).map_err(refused)
            }
            None => self.codec.open_with_tools(messages, tools).map_err(refused),
        }
    }
}

struct Answered {
    number: u32,
    fingerprint: Link,
    /// Or why the turn cannot be read.
    reply: Result<Reply, String>,
    /// Clients that wait for it.
    attended: u32,
    /// A client has it.
    is_delivered: bool,
    repeats: u32,
}

/// An answer to a call.
pub(crate) struct Wanted<'a> {
    pub(crate) call: &'a Call,
    /// Its number, from 0.
    pub(crate) choice: u32,
    /// The link after each of the call's messages. `[M]`
    links: Vec<Link>,
    /// Tells it from other calls and answers: the messages, the tools, the limits, and which answer.
    fingerprint: Link,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(call: &'a Call, choice: u32) -> Self {
        let links = chain(&call.messages);
        let messages = links.last().copied().unwrap_or_default();
        let fingerprint = hash(&messages, json!([call.tools, call.limits, choice]));
        Self { call, choice, links, fingerprint }
    }
}

/// What a call asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// A turn after these tokens. It is the call of this number.
    Turn(u32, Observation),
    /// Nothing yet: as many turns are outstanding as may be at once.
    Full,
}

/// What a turn is asked for.
#[derive(Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) tokens: Vec<u32>,
    /// What the policy said since the call before, perhaps nothing; `None` if it had no turn.
    pub(crate) before: Option<String>,
    /// The new messages' text.
    pub(crate) words: String,
    /// The call whose turn it follows; `None` for the last one.
    pub(crate) follows: Option<u32>,
}

impl Conversation {
    pub(crate) fn new(codec: Arc<Codec>, spec: &AgentSpec) -> Self {
        Self {
            codec,
            forks: spec.forks,
            context_tokens: spec.context_tokens,
            at_once: spec.parallel_calls.max(1) as usize,
            tools: Link::default(),
            links: Vec::new(),
            made: 0,
            turns: Vec::new(),
            unsaid: Vec::new(),
            open: Vec::new(),
            answered: Vec::new(),
            arguments: HashMap::new(),
        }
    }

    /// Takes away what the agent added to calls of tools: some fill in the arguments that a tool has by default, and send
    /// the call back so. The id tells which call it was.
    pub(crate) fn restore(&self, call: &mut Call) {
        let answers = call.messages.iter_mut().filter(|message| message["role"] == "assistant");
        let calls = answers.filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten();
        for sent in calls {
            if let Some(sampled) = sent["id"].as_str().and_then(|id| self.arguments.get(id))
                && only_adds(sampled, &sent["function"]["arguments"])
            {
                sent["function"]["arguments"] = sampled.clone();
            }
        }
    }

    /// The number of a call that was asked before, whose client lost its connection and asks again: its turn is outstanding,
    /// or was read. Side by side, a call that looks the same is another one while the first has its client, or its answer.
    pub(crate) fn known(&mut self, wanted: &Wanted<'_>) -> Option<u32> {
        let (fingerprint, is_alone) = (wanted.fingerprint, self.at_once == 1);
        let is_open =
            |open: &&mut OpenCall| open.fingerprint == fingerprint && (is_alone || open.attended == 0);
        if let Some(open) = self.open.iter_mut().find(is_open) {
            open.attended += 1;
            return Some(open.number);
        }
        let given = self.answered.iter_mut().find(|given| {
            given.fingerprint == fingerprint && given.repeats < REPEATS && (is_alone || !given.is_delivered)
        })?;
        given.repeats += 1;
        given.attended += 1;
        Some(given.number)
    }

    /// A client of the call does not wait any more.
    pub(crate) fn leave(&mut self, number: u32) {
        let open = self.open.iter_mut().map(|open| (open.number, &mut open.attended));
        let answered = self.answered.iter_mut().map(|given| (given.number, &mut given.attended));
        if let Some((_, attended)) = open.chain(answered).find(|(call, _)| *call == number) {
            *attended = attended.saturating_sub(1);
        }
    }

    /// Asks for an answer to a new call. A refused one changes nothing.
    pub(crate) fn ask(&mut self, wanted: &Wanted<'_>) -> Result<Asked, Refusal> {
        let Some(plan) = self.plan(wanted)? else { return Ok(Asked::Full) };
        let tokens = plan.tokens(&wanted.call.messages, &wanted.call.tools)?;
        self.ask_after(wanted, &plan, tokens).map(|(number, observation)| Asked::Turn(number, observation))
    }

    /// How the tokens of a new call are made; `None` where there is no room for a turn.
    pub(crate) fn plan(&self, wanted: &Wanted<'_>) -> Result<Option<Plan>, Refusal> {
        let Wanted { call, ref links, .. } = *wanted;
        if call.choices > 1 && self.forks != Forks::Separate {
            return Err(Refusal::bad(format!(
                "n={}: answers side by side are samples of their own, which environment.forks = \"separate\" allows",
                call.choices
            )));
        }
        if call.messages.last().is_none_or(|last| last["role"] == "assistant") {
            return Err(Refusal::bad(
                "messages must end with a message that is not the assistant's: an answer is sampled whole, never continued",
            ));
        }
        if self.open.len() >= self.at_once {
            return Ok(None);
        }
        let tools = hash(&Link::default(), json!(call.tools));
        let last = self.turns.len();
        let (place, is_appended) = match self.known_messages(links, tools) {
            Ok(known) => (Place { turn: last, known }, false),
            Err(refusal) if self.forks == Forks::Refuse => return Err(refusal),
            Err(_) if self.forks == Forks::Append => (Place { turn: last, known: 0 }, true),
            Err(_) => (self.fork_place(links, tools), false),
        };
        let after = place.turn.checked_sub(1).map(|at| self.turns[at].end);
        Ok(Some(Plan { codec: self.codec.clone(), place, tools, is_appended, after }))
    }

    /// Asks for an answer to a call with these tokens of its plan. Other calls may have been answered since, and none asked.
    pub(crate) fn ask_after(
        &mut self,
        wanted: &Wanted<'_>,
        plan: &Plan,
        tokens: Vec<u32>,
    ) -> Result<(u32, Observation), Refusal> {
        let Wanted { call, choice, fingerprint, ref links } = *wanted;
        let Plan { place, tools, .. } = *plan;
        let (before, new) =
            (place.turn.checked_sub(1).map(|at| &self.turns[at]), &call.messages[place.known..]);
        let used = before.map_or(0, |before| before.used);
        if used + tokens.len() > self.context_tokens as usize {
            return Err(Refusal::overflow(used, tokens.len(), self.context_tokens));
        }
        let words = new.iter().filter_map(|message| message["content"].as_str());
        // All answers are to the same words.
        let words = if choice == 0 { words.collect::<Vec<_>>().join("\n\n") } else { String::new() };
        let followed = before.map_or(0, |before| before.call);
        let follows = (followed < self.made).then_some(followed);
        self.made += 1;
        self.open.push(OpenCall {
            number: self.made,
            fingerprint,
            choice,
            attended: 1,
            prompt_tokens: used + tokens.len(),
            links: links.clone(),
            tools: (call.tools.clone(), tools),
            stop: call.limits.stop.clone(),
        });
        let before = (!self.unsaid.is_empty()).then(|| std::mem::take(&mut self.unsaid).join("\n\n"));
        Ok((self.made, Observation { tokens, before, words, follows }))
    }

    /// Where a fork continues: after the turn that has most of its messages.
    fn fork_place(&self, links: &[Link], tools: Link) -> Place {
        let begins = |turn: &&PastTurn| {
            turn.tools == tools && links.len() > turn.messages && links[turn.messages - 1] == turn.link
        };
        let turns = (1..).zip(&self.turns).filter(|(_, turn)| begins(turn));
        let longest = turns.max_by_key(|(_, turn)| turn.messages);
        longest.map_or(Place { turn: 0, known: 0 }, |(turn, of)| Place { turn, known: of.messages })
    }

    /// How many of the call's messages were said already, up to the last turn.
    fn known_messages(&self, links: &[Link], tools: Link) -> Result<usize, Refusal> {
        let known = self.links.len();
        if known == 0 {
            return Ok(0);
        }
        let same = self.links.iter().zip(links).take_while(|(a, b)| a == b).count();
        if same < known {
            return Err(Refusal::fork(same, "is not what was said there before"));
        }
        if links.len() == known {
            return Err(Refusal::fork(known - 1, "is the last answer: nothing follows it"));
        }
        if tools != self.tools {
            return Err(Refusal::fork(0, "comes with other tools than the call before"));
        }
        Ok(known)
    }

    /// Reads the outstanding turns that there are.
    pub(crate) fn read(&mut self, turn: impl Fn(u32) -> Option<Arc<[u32]>>) {
        let mut at = 0;
        while let Some(open) = self.open.get(at) {
            match turn(open.number) {
                Some(tokens) => {
                    let open = self.open.remove(at);
                    self.take(open, &tokens);
                }
                None => at += 1,
            }
        }
    }

    /// The answer to a call whose turn was read, for a client that waits for it.
    ///
    /// # Errors
    /// The tokenizer does not take the turn's tokens.
    pub(crate) fn deliver(&mut self, number: u32) -> Result<Reply, Refusal> {
        let given = self.answered.iter_mut().find(|given| given.number == number);
        let given = given.expect("an answer is kept while a client waits for it");
        given.is_delivered = true;
        given.reply.clone().map_err(Refusal::bad)
    }

    fn take(&mut self, open: OpenCall, tokens: &[u32]) {
        let reply = self.reply(&open, tokens).map_err(|error| error.to_string());
        if open.choice == 0 || self.at_once > 1 {
            self.answered.retain(|given| !given.is_delivered || given.attended > 0);
        }
        let OpenCall { number, fingerprint, attended, .. } = open;
        if let Ok(reply) = &reply {
            self.links = open.links;
            self.tools = open.tools.1;
            let before = self.links.last().copied().unwrap_or_default();
            let after = link(&before, &reply.message());
            self.links.push(after);
            self.turns.push(PastTurn {
                call: number,
                link: after,
                messages: self.links.len(),
                tools: self.tools,
                used: open.prompt_tokens + tokens.len(),
                end: tokens.last().copied(),
            });
            self.unsaid.push(reply.text.clone());
            self.arguments
                .extend(reply.tool_calls.iter().map(|call| (call.id.clone(), call.arguments.clone())));
        }
        self.answered.push(Answered {
            number,
            fingerprint,
            reply,
            attended,
            is_delivered: false,
            repeats: 0,
        });
    }

    /// What the agent gets of a turn.
    fn reply(&self, open: &OpenCall, tokens: &[u32]) -> Result<Reply, TextError> {
        let (tools, turn) = (&open.tools.0, open.number);
        let whole = match tools.is_empty() {
            false => self.codec.decode_with_calls(tokens)?,
            true => self.codec.decode(tokens, false)?,
        };
        let stopped =
            open.stop.iter().filter_map(|stop| Some((whole.find(stop)?, stop))).min_by_key(|at| at.0);
        let text = stopped.map_or(whole.as_str(), |(at, _)| &whole[..at]);
        let (text, calls) = match tools.is_empty() {
            false => tool_calls::with_ids(self.codec.calls_in(text, tools), turn),
            true => (text.to_owned(), Vec::new()),
        };
        let ended = tokens.last().is_some_and(|last| self.codec.end_tokens().contains(last));
        let finish = match (calls.is_empty(), &stopped, ended) {
            (false, _, _) => Finish::ToolCalls,
            (true, Some(_), _) => Finish::StopText,
            (true, None, true) => Finish::Stop,
            (true, None, false) => Finish::Length,
        };
        Ok(Reply {
            turn,
            text,
            tool_calls: calls,
            finish,
            stop: stopped.map(|(_, stop)| stop.clone()),
            prompt_tokens: open.prompt_tokens,
            completion_tokens: tokens.len(),
        })
    }
}

fn chain(messages: &[Value]) -> Vec<Link> {
    let mut before = Link::default();
    let next = |message| {
        before = link(&before, message);
        before
    };
    messages.iter().map(next).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes an error so")]
fn refused(error: TextError) -> Refusal {
    Refusal::bad(format!("messages: {error}"))
}

#[cfg(test)]
mod tests;
