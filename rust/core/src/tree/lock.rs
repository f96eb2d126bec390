//! Locks: a receipt for exactly what was protected, and its release.

use super::Tree;
use crate::arena::NONE;
use crate::error::{Error, Result};
use crate::id::{NodeId, Receipt};
use crate::receipts::{Anchor, Held};

impl Tree {
    /// Protects a node's state, if it has one, and the KV of its whole path from eviction.
    ///
    /// # Errors
    /// [`Error::StaleNode`]: the node is gone.
    pub fn lock(&mut self, node: NodeId) -> Result<Receipt> {
        let index = self.nodes.resolve(node).ok_or(Error::StaleNode(node))?;
        Ok(self.lock_anchor(Anchor::Node(index)))
    }

    /// Releases the state part of a lock early: the state was copied, and only the KV is still read.
    ///
    /// # Errors
    /// [`Error::NotLocked`]: the receipt is used up, or holds no state. [`Error::StaleLock`]: it is from before a reset.
    pub fn unlock_state(&mut self, receipt: Receipt) -> Result<()> {
        match self.receipts.get(receipt)? {
            Held { anchor: Anchor::Node(node), state: true } => {
                let node = *node;
                self.receipts.release_state(receipt);
                self.release_state(node);
                self.requeue(node);
                Ok(())
            }
            _ => Err(Error::NotLocked("the lock holds no state (any more)")),
        }
    }

    /// Gives back exactly what the lock took.
    ///
    /// # Errors
    /// [`Error::NotLocked`]: the receipt is used up. [`Error::StaleLock`]: it is from before a reset.
    pub fn unlock(&mut self, receipt: Receipt) -> Result<()> {
        let Held { anchor, state } = self.receipts.remove(receipt)?;
        let Anchor::Node(node) = anchor else { return Ok(()) };
        if state {
            self.release_state(node);
        }
        self.release_path(node);
        self.requeue(node);
        Ok(())
    }

    /// Whether a receipt has not been used up; and the node it is on, if it is on one.
    ///
    /// # Errors
    /// As for [`Tree::unlock`].
    pub fn locked_node(&self, receipt: Receipt) -> Result<Option<NodeId>> {
        Ok(match self.receipts.get(receipt)?.anchor {
            Anchor::Node(node) => Some(self.nodes.handle(node)),
            Anchor::Root(_) => None,
        })
    }

    pub(super) fn lock_anchor(&mut self, anchor: Anchor) -> Receipt {
        let mut state = false;
        if let Anchor::Node(node) = anchor {
            state = self.protect_state(node);
            self.protect_path(node, NONE);
            self.requeue(node);
        }
        self.receipts.add(Held { anchor, state })
    }

    /// The same lock under a new receipt.
    pub(super) fn renew(&mut self, receipt: Receipt) -> Result<Receipt> {
        let held = self.receipts.remove(receipt)?;
        Ok(self.receipts.add(held))
    }

    /// Moves a lock down to `end`, at the cost of the nodes in between.
    pub(super) fn move_lock(&mut self, receipt: Receipt, end: u32) -> Result<Receipt> {
        let old = self.receipts.remove(receipt)?;
        let state = self.protect_state(end);
        let from = match old.anchor {
            Anchor::Node(node) => node,
            Anchor::Root(_) => NONE,
        };
        self.protect_path(end, from);
        if from != NONE {
            if old.state {
                self.release_state(from);
            }
            self.requeue(from);
        }
        self.requeue(end);
        Ok(self.receipts.add(Held { anchor: Anchor::Node(end), state }))
    }

    /// Locks the KV from `node` up to, not including, `above` (`NONE`: all of it) and the root.
    pub(super) fn protect_path(&mut self, mut node: u32, above: u32) {
        while node != above && !self.nodes[node].is_root() {
            let claim = &mut self.nodes[node];
            claim.kv.locks += 1;
            if claim.kv.locks == 1 {
                self.kv_account.protect(claim.slots.len());
            }
            node = self.nodes[node].parent;
        }
    }

    pub(super) fn release_path(&mut self, mut node: u32) {
        while !self.nodes[node].is_root() {
            let claim = &mut self.nodes[node];
            claim.kv.locks -= 1;
            if claim.kv.locks == 0 {
                self.kv_account.release(claim.slots.len());
            }
            node = self.nodes[node].parent;
        }
    }

    fn protect_state(&mut self, node: u32) -> bool {
        let node = &mut self.nodes[node];
        if !node.has_usable_state() {
            return false;
        }
        node.state.locks += 1;
        if node.state.locks == 1 {
            self.state_account.protect(1);
        }
        true
    }

    fn release_state(&mut self, node: u32) {
        let node = &mut self.nodes[node];
        node.state.locks -= 1;
        if node.state.locks == 0 {
            self.state_account.release(1);
        }
    }
}
