//! What a router knows that follows the events: it must always know exactly the pages and states of the tree.

use std::collections::{BTreeSet, HashMap, HashSet};

use sha2::{Digest as _, Sha256};
use stemcache::{Config, Event, EventMode};

use crate::oracle::{Namespace, Oracle, Spelled};

struct Page {
    parent: Option<i64>,
    units: Vec<(i64, i64)>,
    namespace: Namespace,
    /// The whole hash; known where no namespace is, since that chain is public.
    digest: Option<[u8; 32]>,
}

pub(crate) struct Mirror {
    page_size: usize,
    bigram: bool,
    follows_states: bool,
    pages: HashMap<i64, Page>,
    states: HashSet<i64>,
}

impl Mirror {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            page_size: config.page_size,
            bigram: config.bigram,
            follows_states: config.events == EventMode::BlocksAndStates,
            pages: HashMap::new(),
            states: HashSet::new(),
        }
    }

    /// Follows the events; says which one makes no sense.
    pub(crate) fn replay(&mut self, events: Vec<Event>) -> Result<(), String> {
        for event in events {
            let text = format!("{event:?}");
            if !self.follow(event)? {
                return Err(format!("out of place among the events: {text}"));
            }
        }
        Ok(())
    }

    fn follow(&mut self, event: Event) -> Result<bool, String> {
        Ok(match event {
            Event::BlockStored { hash, parent, tokens, namespace } => {
                let page = self.page(parent, &tokens, namespace.map(|name| name.to_string()))?;
                let right = page.digest.is_none_or(|digest| first_eight(&digest) == hash);
                right && self.pages.insert(hash, page).is_none()
            }
            Event::BlockRemoved { hash } => self.pages.remove(&hash).is_some(),
            Event::StateStored { hash } => {
                self.follows_states && self.pages.contains_key(&hash) && self.states.insert(hash)
            }
            Event::StateRemoved { hash } => self.states.remove(&hash),
            Event::AllCleared => {
                self.pages.clear();
                self.states.clear();
                true
            }
        })
    }

    fn page(&self, parent: Option<i64>, tokens: &[i64], namespace: Namespace) -> Result<Page, String> {
        let units: Vec<(i64, i64)> = if self.bigram {
            tokens.windows(2).map(|pair| (pair[0], pair[1])).collect()
        } else {
            tokens.iter().map(|token| (*token, 0)).collect()
        };
        if units.len() != self.page_size {
            return Err(format!("a stored page of {} tokens", units.len()));
        }
        let above = match parent.map(|parent| self.pages.get(&parent)) {
            None => None,
            Some(Some(above)) if above.namespace == namespace => Some(above),
            Some(_) => return Err(format!("a page with the parent {parent:?}, which is not there")),
        };
        let digest = namespace.is_none().then(|| self.chain(above, &units));
        Ok(Page { parent, units, namespace, digest })
    }

    fn chain(&self, above: Option<&Page>, units: &[(i64, i64)]) -> [u8; 32] {
        let mut sha = Sha256::new();
        sha.update(above.and_then(|page| page.digest).map(Vec::from).unwrap_or_default());
        for (first, second) in units {
            let pair = [*first, *second];
            for token in &pair[..=usize::from(self.bigram)] {
                sha.update(u32::try_from(*token).expect("ids that do not fit are refused").to_le_bytes());
            }
        }
        sha.finalize().into()
    }

    /// Whether the events told of exactly the oracle's pages and states.
    pub(crate) fn compare(&self, oracle: &Oracle) -> Result<(), String> {
        if self.ends(self.pages.keys())? != oracle.page_ends() {
            return Err("the events tell of other pages than are in the tree".to_owned());
        }
        if self.follows_states && self.ends(self.states.iter())? != oracle.state_ends() {
            return Err("the events tell of other states than are in the tree".to_owned());
        }
        Ok(())
    }

    fn ends<'a>(&self, hashes: impl Iterator<Item = &'a i64>) -> Result<BTreeSet<Spelled>, String> {
        hashes.map(|hash| self.spell(*hash)).collect()
    }

    fn spell(&self, hash: i64) -> Result<Spelled, String> {
        let (mut pages, mut next) = (Vec::new(), Some(hash));
        while let Some(hash) = next {
            let page = self.pages.get(&hash).ok_or("a page or state without its parent page")?;
            pages.push(page);
            next = page.parent;
        }
        let namespace = pages[0].namespace.clone();
        Ok((namespace, pages.iter().rev().flat_map(|page| page.units.iter().copied()).collect()))
    }
}

fn first_eight(digest: &[u8; 32]) -> i64 {
    i64::from_be_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
}
