//! A dense store of nodes: an index is four bytes, and a freed place is used again under a new generation.
//!
//! Invariant: the vacant places form one chain that starts at `free`; `len` counts the others.

use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::id::NodeId;
use crate::node::Node;

/// "No node", where an index is expected.
pub(crate) const NONE: u32 = u32::MAX;

/// Generations begin somewhere else in each arena, so a handle of another index is refused, too.
static NEXT_SALT: AtomicU32 = AtomicU32::new(1);

/// A number that no other arena (nor receipt table) of this process began with.
pub(crate) fn fresh_salt() -> u32 {
    NEXT_SALT.fetch_add(0x9E37_79B9, Ordering::Relaxed)
}

enum Place {
    Occupied(Node),
    Vacant { generation: u32, next: u32 },
}

pub(crate) struct Arena {
    places: Vec<Place>,
    free: u32,
    len: usize,
    salt: u32,
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), free: NONE, len: 0, salt: fresh_salt() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts a node in, gives it its generation, and returns its index.
    pub(crate) fn insert(&mut self, mut node: Node) -> u32 {
        self.len += 1;
        if self.free == NONE {
            node.generation = self.salt;
            self.places.push(Place::Occupied(node));
            return self.places.len() as u32 - 1;
        }
        let index = self.free;
        let place = &mut self.places[index as usize];
        if let Place::Vacant { generation, next } = *place {
            node.generation = generation;
            self.free = next;
        }
        *place = Place::Occupied(node);
        index
    }

    /// Takes a node out; every handle to it is stale from now on.
    pub(crate) fn remove(&mut self, index: u32) -> Node {
        let vacant = Place::Vacant { generation: self[index].generation.wrapping_add(1), next: self.free };
        self.free = index;
        self.len -= 1;
        match std::mem::replace(&mut self.places[index as usize], vacant) {
            Place::Occupied(node) => node,
            Place::Vacant { .. } => unreachable!("the line above read it"),
        }
    }

    /// Takes every node out.
    pub(crate) fn clear(&mut self) {
        for index in 0..self.places.len() as u32 {
            if let Place::Occupied(_) = self.places[index as usize] {
                self.remove(index);
            }
        }
    }

    pub(crate) fn handle(&self, index: u32) -> NodeId {
        NodeId { index, generation: self[index].generation }
    }

    /// The index behind a handle, unless the node is gone.
    pub(crate) fn resolve(&self, handle: NodeId) -> Option<u32> {
        match self.places.get(handle.index as usize)? {
            Place::Occupied(node) if node.generation == handle.generation => Some(handle.index),
            _ => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.places.iter().zip(0_u32..).filter_map(|(place, index)| match place {
            Place::Occupied(node) => Some((index, node)),
            Place::Vacant { .. } => None,
        })
    }
}

impl Index<u32> for Arena {
    type Output = Node;

    fn index(&self, index: u32) -> &Node {
        match &self.places[index as usize] {
            Place::Occupied(node) => node,
            Place::Vacant { .. } => panic!("node {index} was freed"),
        }
    }
}

impl IndexMut<u32> for Arena {
    fn index_mut(&mut self, index: u32) -> &mut Node {
        match &mut self.places[index as usize] {
            Place::Occupied(node) => node,
            Place::Vacant { .. } => panic!("node {index} was freed"),
        }
    }
}
