//! States whose bytes are still being written.
//!
//! An engine copies states on the device, after the host has decided. Until it reports a copy done, the state is in
//! the tree but nobody may go on from it, its slot may not be given to somebody else, and the KV of its path stays. No
//! receipt is needed for that: a pending state counts as one lock on the KV of its path.

use super::{Evicted, Tree};
use crate::error::{Error, Result};
use crate::id::NodeId;

impl Tree {
    /// The state at the end of this node was written: it can be matched, locked and evicted from now on.
    ///
    /// # Errors
    /// [`Error::StaleNode`]: the node is gone. [`Error::NotPending`]: it has no state that waits.
    pub fn publish_state(&mut self, node: NodeId) -> Result<()> {
        let index = self.pending_node(node)?;
        self.settle_state(index);
        self.announce_state(index);
        Ok(())
    }

    /// The state at the end of this node is not worth keeping: takes it out, and the node, too, if nothing needs it.
    ///
    /// # Errors
    /// As for [`Tree::publish_state`].
    pub fn discard_state(&mut self, node: NodeId) -> Result<Evicted> {
        let index = self.pending_node(node)?;
        self.settle_state(index);
        self.counters.discarded_states += 1;
        Ok(self.drop_state(index))
    }

    fn pending_node(&self, node: NodeId) -> Result<u32> {
        let index = self.nodes.resolve(node).ok_or(Error::StaleNode(node))?;
        self.nodes[index].pending.then_some(index).ok_or(Error::NotPending(node))
    }
}
