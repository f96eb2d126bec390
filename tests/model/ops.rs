//! One operation on a tree, and its text: what a generator makes, a shrinker cuts and a script holds.
//!
//! ```text
//! find /tenant a3b limit=3 lock     a key from a namespace's root ("/" alone: no namespace, /"": the empty one)
//! peek @0 b2                        from the end of the first node that an answer named (@0/tenant: and say where)
//! insert / a4 owned=2 state=4       slots are taken from those that are free; kv=twice: plant a mistake in them
//! advance #1 b2                     from the second receipt
//! insert / a4 pending               a state that is still to be written; publish @0, discard @0
//! lock @0                           unlock_state #0, unlock #0
//! evict tokens=3 states=1           drop /tenant, reset
//! ```
//! Tokens are letters with counts: `a3b` is 1 1 1 2. `X` is a followed by a bit that does not fit u32, `Y` is -1, `Z` the
//! largest id; `.` is no token at all. For bigram keys a key that goes on from a node is given without the
//! boundary token: the driver repeats it.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use stemcache::{Config, EventMode};

use crate::oracle::Namespace;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum At {
    Root(Namespace),
    After(usize),
    AfterIn(usize, Namespace),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tokens(pub(crate) Vec<i64>);

/// A mistake to plant in the slots of an insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Short,
    Zero,
    Negative,
    Huge,
    Twice,
    Taken,
}

const FAULTS: [(&str, Fault); 6] = [
    ("short", Fault::Short),
    ("zero", Fault::Zero),
    ("negative", Fault::Negative),
    ("huge", Fault::Huge),
    ("twice", Fault::Twice),
    ("taken", Fault::Taken),
];

/// What an insert or an advance gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Gift {
    pub(crate) tokens: Tokens,
    pub(crate) owned: usize,
    pub(crate) state_length: Option<usize>,
    pub(crate) kv_fault: Option<Fault>,
    pub(crate) state_fault: Option<Fault>,
    /// The state's bytes are still to be written.
    pub(crate) pending: bool,
}

/// Nodes and receipts go by the order in which answers first named them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Find { at: At, tokens: Tokens, limit: Option<usize>, lock: bool },
    Peek { at: At, tokens: Tokens, limit: Option<usize> },
    Insert { at: At, gift: Gift },
    Advance { receipt: usize, gift: Gift },
    Publish(usize),
    Discard(usize),
    Lock(usize),
    UnlockState(usize),
    Unlock(usize),
    Evict { tokens: usize, states: usize },
    Drop(Namespace),
    Reset,
}

impl Op {
    /// The tokens of its key, for a shrinker to shorten.
    pub(crate) fn tokens_mut(&mut self) -> Option<&mut Vec<i64>> {
        match self {
            Self::Find { tokens, .. } | Self::Peek { tokens, .. } => Some(&mut tokens.0),
            Self::Insert { gift, .. } | Self::Advance { gift, .. } => Some(&mut gift.tokens.0),
            _ => None,
        }
    }
}

// ---- To text ----

struct Slash<'a>(&'a Namespace);

impl Display for Slash<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            None => write!(out, "/"),
            Some("") => write!(out, "/\"\""),
            Some(name) => write!(out, "/{name}"),
        }
    }
}

impl Display for At {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(namespace) => write!(out, "{}", Slash(namespace)),
            Self::After(node) => write!(out, "@{node}"),
            Self::AfterIn(node, namespace) => write!(out, "@{node}{}", Slash(namespace)),
        }
    }
}

const ODD_TOKENS: [(char, i64); 3] = [('X', (1 << 32) + 1), ('Y', -1), ('Z', i64::MAX)];

fn letter(token: i64) -> char {
    let odd = ODD_TOKENS.iter().find(|(_, odd)| *odd == token).map(|(letter, _)| *letter);
    odd.or_else(|| char::from_u32(u32::try_from(token).ok()? + 96)).expect("a token that has a letter")
}

impl Display for Tokens {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(out, ".");
        }
        for run in self.0.chunk_by(|a, b| a == b) {
            write!(out, "{}", letter(run[0]))?;
            if run.len() > 1 {
                write!(out, "{}", run.len())?;
            }
        }
        Ok(())
    }
}

impl Display for Fault {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let name = FAULTS.iter().find(|(_, fault)| fault == self).map_or("", |(name, _)| name);
        write!(out, "{name}")
    }
}

fn word(out: &mut Formatter<'_>, name: &str, value: Option<impl Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(out, " {name}={value}"))
}

impl Display for Gift {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.tokens)?;
        word(out, "owned", Some(self.owned).filter(|owned| *owned > 0))?;
        word(out, "state", self.state_length)?;
        word(out, "kv", self.kv_fault)?;
        word(out, "slot", self.state_fault)?;
        if self.pending { write!(out, " pending") } else { Ok(()) }
    }
}

impl Display for Op {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Find { at, tokens, limit, lock } => {
                write!(out, "find {at} {tokens}")?;
                word(out, "limit", *limit)?;
                if *lock { write!(out, " lock") } else { Ok(()) }
            }
            Self::Peek { at, tokens, limit } => {
                write!(out, "peek {at} {tokens}")?;
                word(out, "limit", *limit)
            }
            Self::Insert { at, gift } => write!(out, "insert {at} {gift}"),
            Self::Advance { receipt, gift } => write!(out, "advance #{receipt} {gift}"),
            Self::Publish(node) => write!(out, "publish @{node}"),
            Self::Discard(node) => write!(out, "discard @{node}"),
            Self::Lock(node) => write!(out, "lock @{node}"),
            Self::UnlockState(receipt) => write!(out, "unlock_state #{receipt}"),
            Self::Unlock(receipt) => write!(out, "unlock #{receipt}"),
            Self::Evict { tokens, states } => write!(out, "evict tokens={tokens} states={states}"),
            Self::Drop(namespace) => write!(out, "drop {}", Slash(namespace)),
            Self::Reset => write!(out, "reset"),
        }
    }
}

/// The first line of a script.
pub(crate) fn header(config: &Config) -> String {
    let chunk = config.chunk_size.map(|chunk| format!(" chunk={chunk}")).unwrap_or_default();
    let events = match config.events {
        EventMode::Off => "off",
        EventMode::Blocks => "blocks",
        EventMode::BlocksAndStates => "states",
    };
    format!("tree page={}{chunk} bigram={} events={events}", config.page_size, config.bigram)
}

// ---- From text ----

/// A line of a script, cut into words.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn at(&self, place: usize) -> Result<&'a str, String> {
        self.0.get(place).copied().ok_or_else(|| format!("a word is missing: {:?}", self.0))
    }

    fn value(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    fn number(&self, name: &str) -> Result<Option<usize>, String> {
        self.value(name).map(number).transpose()
    }

    fn fault(&self, name: &str) -> Result<Option<Fault>, String> {
        let find = |text: &str| FAULTS.iter().find(|(known, _)| *known == text).map(|(_, fault)| *fault);
        self.value(name).map(|text| find(text).ok_or_else(|| format!("no such fault: {text}"))).transpose()
    }

    fn reference(&self, mark: char) -> Result<usize, String> {
        let text = self.at(1)?;
        number(text.strip_prefix(mark).ok_or_else(|| format!("{text} should begin with {mark}"))?)
    }

    fn gift(&self) -> Result<Gift, String> {
        Ok(Gift {
            tokens: self.at(2)?.parse()?,
            owned: self.number("owned")?.unwrap_or(0),
            state_length: self.number("state")?,
            kv_fault: self.fault("kv")?,
            state_fault: self.fault("slot")?,
            pending: self.0.contains(&"pending"),
        })
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn namespace(text: &str) -> Namespace {
    match text {
        "" => None,
        "\"\"" => Some(String::new()),
        name => Some(name.to_owned()),
    }
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, name) = match text.split_once('/') {
            Some((node, name)) => (node, Some(namespace(name))),
            None => (text, None),
        };
        match (node.strip_prefix('@').map(number).transpose()?, name) {
            (None, Some(name)) => Ok(Self::Root(name)),
            (Some(node), None) => Ok(Self::After(node)),
            (Some(node), Some(name)) => Ok(Self::AfterIn(node, name)),
            (None, None) => Err(format!("{text} is no place to begin")),
        }
    }
}

impl FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut rest = if text == "." { "" } else { text };
        while let Some(letter) = rest.chars().next() {
            let odd = ODD_TOKENS.iter().find(|(odd, _)| *odd == letter).map(|(_, token)| *token);
            let plain = u32::from(letter).checked_sub(96).map(i64::from);
            let token = odd.or(plain).ok_or_else(|| format!("{text} holds {letter:?}, which is no token"))?;
            rest = &rest[letter.len_utf8()..];
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let count = if digits == 0 { 1 } else { number(&rest[..digits])? };
            tokens.extend(std::iter::repeat_n(token, count));
            rest = &rest[digits..];
        }
        Ok(Self(tokens))
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words = Words(line.split_whitespace().collect());
        Ok(match words.at(0)? {
            "find" => Self::Find {
                at: words.at(1)?.parse()?,
                tokens: words.at(2)?.parse()?,
                limit: words.number("limit")?,
                lock: words.0.contains(&"lock"),
            },
            "peek" => Self::Peek {
                at: words.at(1)?.parse()?,
                tokens: words.at(2)?.parse()?,
                limit: words.number("limit")?,
            },
            "insert" => Self::Insert { at: words.at(1)?.parse()?, gift: words.gift()? },
            "advance" => Self::Advance { receipt: words.reference('#')?, gift: words.gift()? },
            "publish" => Self::Publish(words.reference('@')?),
            "discard" => Self::Discard(words.reference('@')?),
            "lock" => Self::Lock(words.reference('@')?),
            "unlock_state" => Self::UnlockState(words.reference('#')?),
            "unlock" => Self::Unlock(words.reference('#')?),
            "evict" => Self::Evict {
                tokens: words.number("tokens")?.unwrap_or(0),
                states: words.number("states")?.unwrap_or(0),
            },
            "drop" => match words.at(1)?.parse()? {
                At::Root(namespace) => Self::Drop(namespace),
                other => return Err(format!("{other} is no namespace")),
            },
            "reset" => Self::Reset,
            other => return Err(format!("no such operation: {other}")),
        })
    }
}

/// Reads a script's first line.
pub(crate) fn parse_header(line: &str) -> Result<Config, String> {
    let words = Words(line.split_whitespace().collect());
    let events = match words.value("events").unwrap_or("off") {
        "off" => EventMode::Off,
        "blocks" => EventMode::Blocks,
        "states" => EventMode::BlocksAndStates,
        other => return Err(format!("events={other}")),
    };
    match words.at(0)? {
        "tree" => Ok(Config {
            page_size: words.number("page")?.unwrap_or(1),
            chunk_size: words.number("chunk")?,
            bigram: words.value("bigram") == Some("true"),
            events,
            ..Config::default()
        }),
        other => Err(format!("a script begins with `tree`, not with {other}")),
    }
}
