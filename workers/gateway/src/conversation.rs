//! The conversation of a rollout, token in and token out; with forks as samples of their own, a tree of
//! them. A call is compared with what was said by a hash chain over its messages. What was sampled is
//! never tokenised again: only messages that are new since the turn before are rendered.

use std::sync::Arc;

use millrace_policy::text_codec::{Codec, TextError};
use millrace_schemas::env_step::Forks;
use serde_json::{Value, json};

use crate::call::{Call, Finish, Link, Reply, hash, link};
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
    tools: Link,
    /// The link after each message of the last call and its answer. `[M]`
    links: Vec<Link>,
    /// Tokens of the context of the last call, and its turn.
    used: usize,
    /// The turns that were read. `[turns]`
    turns: Vec<PastTurn>,
    /// The call whose turn is outstanding.
    pub(crate) open: Option<OpenCall>,
    /// The answers to the last call. `[choices]`
    answered: Vec<Answered>,
}

/// A call whose turn is outstanding.
pub(crate) struct OpenCall {
    /// Tells it from other calls.
    pub(crate) fingerprint: Link,
    /// Which of the call's answers it is, from 0.
    choice: u32,
    prompt_tokens: usize,
    /// What the policy may call. `[T]`
    tools: Vec<Value>,
    stop: Vec<String>,
}

/// A turn that was read, with all that is before it.
struct PastTurn {
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
struct Place {
    /// After the turn of this number; 0 for the beginning.
    turn: usize,
    /// Messages that were said until then.
    known: usize,
}

struct Answered {
    fingerprint: Link,
    reply: Reply,
    repeats: u32,
}

/// What a call asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// A turn after these tokens.
    Turn(Observation),
    /// The turn that is outstanding: the client lost its connection and asks again.
    Outstanding,
    /// The last turn again.
    Again(Box<Reply>),
}

/// What a turn is asked for.
#[derive(Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) tokens: Vec<u32>,
    /// The new messages' text.
    pub(crate) words: String,
    /// The turn that it follows; `None` for the last one.
    pub(crate) follows: Option<u32>,
}

impl Conversation {
    pub(crate) fn new(codec: Arc<Codec>, forks: Forks, context_tokens: u32) -> Self {
        Self {
            codec,
            forks,
            context_tokens,
            tools: Link::default(),
            links: Vec::new(),
            used: 0,
            turns: Vec::new(),
            open: None,
            answered: Vec::new(),
        }
    }

    /// Tells calls apart, and the answers to one: the messages, the tools, the limits, and which answer.
    pub(crate) fn fingerprint(call: &Call, choice: u32) -> Link {
        let messages = call.messages.iter().fold(Link::default(), |before, message| link(&before, message));
        hash(&messages, &json!([call.tools, call.limits, choice]))
    }

    /// Whether an answer is neither outstanding nor given.
    pub(crate) fn is_new(&self, fingerprint: &Link) -> bool {
        let open = self.open.iter().map(|open| &open.fingerprint);
        let answered = self.answered.iter().map(|answered| &answered.fingerprint);
        !open.chain(answered).any(|known| known == fingerprint)
    }

    /// What the call asks for as its answer number `choice`, from 0. A refused one changes nothing.
    pub(crate) fn ask(&mut self, call: &Call, choice: u32) -> Result<Asked, Refusal> {
        let fingerprint = Self::fingerprint(call, choice);
        if self.open.as_ref().is_some_and(|open| open.fingerprint == fingerprint) {
            return Ok(Asked::Outstanding);
        }
        if let Some(given) = self.answered.iter_mut().find(|given| given.fingerprint == fingerprint)
            && given.repeats < REPEATS
        {
            given.repeats += 1;
            return Ok(Asked::Again(Box::new(given.reply.clone())));
        }
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
        let (links, tools) = (chain(&call.messages), hash(&Link::default(), &json!(call.tools)));
        let last = self.turns.len();
        let (place, is_appended) = match self.known_messages(&links, tools) {
            Ok(known) => (Place { turn: last, known }, false),
            Err(refusal) if self.forks == Forks::Refuse => return Err(refusal),
            Err(_) if self.forks == Forks::Append => (Place { turn: last, known: 0 }, true),
            Err(_) => (self.fork_place(&links, tools), false),
        };
        let (before, new) =
            (place.turn.checked_sub(1).map(|at| &self.turns[at]), &call.messages[place.known..]);
        let tokens = match before {
            Some(_) if is_appended => self.reopen(call)?,
            Some(before) => {
                self.codec.continue_with_tools(before.end.as_slice(), new, &call.tools).map_err(refused)?
            }
            None => self.codec.open_with_tools(&call.messages, &call.tools).map_err(refused)?,
        };
        let used = before.map_or(0, |before| before.used);
        if used + tokens.len() > self.context_tokens as usize {
            return Err(Refusal::overflow(used, tokens.len(), self.context_tokens));
        }
        let words = new.iter().filter_map(|message| message["content"].as_str());
        // All answers are to the same words.
        let words = if choice == 0 { words.collect::<Vec<_>>().join("\n\n") } else { String::new() };
        (self.links, self.tools) = (links, tools);
        self.used = used + tokens.len();
        self.open = Some(OpenCall {
            fingerprint,
            choice,
            prompt_tokens: self.used,
            tools: call.tools.clone(),
            stop: call.limits.stop.clone(),
        });
        let follows = (place.turn < last).then_some(place.turn as u32);
        Ok(Asked::Turn(Observation { tokens, words, follows }))
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

    /// The tokens of a whole conversation after what was before it.
    fn reopen(&self, call: &Call) -> Result<Vec<u32>, Refusal> {
        let end = self.codec.end_tokens();
        let last = self.turns.last().and_then(|turn| turn.end);
        let is_open = last.is_some_and(|last| !end.contains(&last));
        let close = end.first().copied().filter(|_| is_open);
        let opened = self.codec.open_with_tools(&call.messages, &call.tools).map_err(refused)?;
        Ok(close.into_iter().chain(opened).collect())
    }

    /// Turns that were read.
    pub(crate) const fn turns(&self) -> u32 {
        self.turns.len() as u32
    }

    /// The text of the last one; empty before the first.
    pub(crate) fn last_text(&self) -> String {
        self.answered.last().map(|last| last.reply.text.clone()).unwrap_or_default()
    }

    /// Reads the outstanding turn.
    ///
    /// # Errors
    /// The tokenizer does not take the tokens.
    pub(crate) fn take(&mut self, tokens: &[u32]) -> Result<Reply, TextError> {
        let has_tools = self.open.as_ref().is_some_and(|open| !open.tools.is_empty());
        let whole = match has_tools {
            true => self.codec.decode_with_calls(tokens)?,
            false => self.codec.decode(tokens, false)?,
        };
        let Some(open) = self.open.take() else { unreachable!("a turn is sampled for a call") };
        let turn = self.turns() + 1;
        let stopped =
            open.stop.iter().filter_map(|stop| Some((whole.find(stop)?, stop))).min_by_key(|at| at.0);
        let text = stopped.map_or(whole.as_str(), |(at, _)| &whole[..at]);
        let (text, calls) = match has_tools {
            true => tool_calls::with_ids(self.codec.calls_in(text, &open.tools), turn),
            false => (text.to_owned(), Vec::new()),
        };
        let ended = tokens.last().is_some_and(|last| self.codec.end_tokens().contains(last));
        let finish = match (calls.is_empty(), &stopped, ended) {
            (false, _, _) => Finish::ToolCalls,
            (true, Some(_), _) => Finish::StopText,
            (true, None, true) => Finish::Stop,
            (true, None, false) => Finish::Length,
        };
        let reply = Reply {
            turn,
            text,
            tool_calls: calls,
            finish,
            stop: stopped.map(|(_, stop)| stop.clone()),
            prompt_tokens: open.prompt_tokens,
            completion_tokens: tokens.len(),
        };
        let before = self.links.last().copied().unwrap_or_default();
        let after = link(&before, &reply.message());
        self.links.push(after);
        self.used += tokens.len();
        self.turns.push(PastTurn {
            link: after,
            messages: self.links.len(),
            tools: self.tools,
            used: self.used,
            end: tokens.last().copied(),
        });
        if open.choice == 0 {
            self.answered.clear();
        }
        self.answered.push(Answered { fingerprint: open.fingerprint, reply: reply.clone(), repeats: 0 });
        Ok(reply)
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
