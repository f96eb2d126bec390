//! The roots: one for each namespace in which anything is cached.
//!
//! Invariant: a root is here exactly as long as it has children.

use std::collections::HashMap;

use crate::arena::NONE;

/// `None` is a namespace of its own, other than `""`.
pub(crate) struct Namespaces {
    unnamed: u32,
    named: HashMap<Box<str>, u32>,
    names: HashMap<u32, Box<str>>,
}

impl Namespaces {
    pub(crate) fn new() -> Self {
        Self { unnamed: NONE, named: HashMap::new(), names: HashMap::new() }
    }

    pub(crate) fn root(&self, name: Option<&str>) -> Option<u32> {
        match name {
            None => (self.unnamed != NONE).then_some(self.unnamed),
            Some(name) => self.named.get(name).copied(),
        }
    }

    /// The name of the namespace that has this root.
    pub(crate) fn name(&self, root: u32) -> Option<&str> {
        self.names.get(&root).map(AsRef::as_ref)
    }

    pub(crate) fn add(&mut self, name: Option<&str>, root: u32) {
        match name {
            None => self.unnamed = root,
            Some(name) => {
                self.named.insert(name.into(), root);
                self.names.insert(root, name.into());
            }
        }
    }

    pub(crate) fn remove(&mut self, root: u32) {
        match self.names.remove(&root) {
            Some(name) => drop(self.named.remove(&name)),
            None => self.unnamed = NONE,
        }
    }

    /// All of them, the unnamed first, then by name.
    pub(crate) fn sorted(&self) -> Vec<(Option<&str>, u32)> {
        let mut all: Vec<_> = self.named.iter().map(|(name, root)| (Some(name.as_ref()), *root)).collect();
        all.extend((self.unnamed != NONE).then_some((None, self.unnamed)));
        all.sort_unstable();
        all
    }
}
