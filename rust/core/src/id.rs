//! Handles: opaque numbers with a generation inside, so that a stale one is refused, never misread.

/// A handle to one node of one tree.
///
/// The generation changes whenever the place in the arena is freed, so a handle to a deleted node never
/// names its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl NodeId {
    /// The handle as one number, for callers outside Rust.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        ((self.generation as u64) << 32) | self.index as u64
    }

    /// The handle that [`NodeId::to_u64`] gave. Any other number gives a handle that is refused as stale.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// The receipt of one lock: it releases exactly what the lock took, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Receipt {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    /// Which life of the tree it belongs to; a reset begins a new one.
    pub(crate) epoch: u32,
}
