//! Tokens: names of deliveries that stay valid across channels.
//!
//! Delivery tags start at 1 again on the next channel, so an old tag could settle another message. A token has a generation: once it is
//! settled, or its connection is lost, it names nothing.

/// Names one delivery of one consumer. It is below 2⁵³, so a JavaScript number holds it exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 33;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

impl Token {
    /// The token as an integer, to pass to another language.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// The token for an integer from [`to_u64`](Self::to_u64). Any other integer is safe: it settles nothing.
    #[must_use]
    pub const fn from_u64(value: u64) -> Self {
        Self(value)
    }

    fn new(index: usize, generation: u64) -> Self {
        Self((generation & GENERATION_MASK) << INDEX_BITS | index as u64)
    }

    pub(super) fn index(self) -> usize {
        usize::try_from(self.0 & INDEX_MASK).unwrap_or(usize::MAX)
    }

    fn generation(self) -> u64 {
        self.0 >> INDEX_BITS
    }
}

/// Values, keyed by token.
#[derive(Debug)]
pub(super) struct Tokens<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    generation: u64,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u64,
    value: Option<T>,
}

impl<T> Tokens<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            generation: 0,
            len: 0,
        }
    }

    pub(super) fn insert(&mut self, value: T) -> Token {
        // One generation for the whole slab: a token is reused only after 2³³ others.
        self.generation += 1;
        let slot = Slot {
            generation: self.generation & GENERATION_MASK,
            value: Some(value),
        };
        self.len += 1;
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        Token::new(index, self.generation)
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let slot = self.slots.get_mut(token.index())?;
        if slot.generation == token.generation() {
            slot.value.as_mut()
        } else {
            None
        }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<T> {
        let slot = self.slots.get_mut(token.index())?;
        if slot.generation != token.generation() {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push(token.index());
        self.len -= 1;
        Some(value)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Token, &mut T)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(index, slot)| {
                let token = Token::new(index, slot.generation);
                slot.value.as_mut().map(|value| (token, value))
            })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            slot.value
                .as_ref()
                .map(|value| (Token::new(index, slot.generation), value))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with a map of the same history: live tokens find their value, old and invented ones find nothing.
        #[test]
        fn a_token_names_one_value_or_nothing(steps in prop::collection::vec((any::<bool>(), any::<u16>()), 0..200)) {
            let mut slab = Tokens::new();
            let mut live: HashMap<Token, u16> = HashMap::new();
            let mut dead: Vec<Token> = Vec::new();
            for (add, value) in steps {
                if add || live.is_empty() {
                    let token = slab.insert(value);
                    prop_assert!(token.to_u64() < 1 << 53);
                    prop_assert!(!dead.contains(&token));
                    prop_assert!(live.insert(token, value).is_none());
                } else {
                    let token = *live.keys().nth(usize::from(value) % live.len()).unwrap();
                    prop_assert_eq!(slab.remove(token), live.remove(&token));
                    dead.push(token);
                }
                prop_assert_eq!(slab.len(), live.len());
                prop_assert_eq!(slab.iter().count(), live.len());
            }
            for token in dead {
                prop_assert!(slab.get_mut(token).is_none() && slab.remove(token).is_none());
            }
            for (token, mut value) in live {
                prop_assert_eq!(slab.get_mut(token), Some(&mut value));
            }
        }

        #[test]
        fn invented_tokens_are_safe(values: Vec<u64>) {
            let mut slab = Tokens::new();
            let token = slab.insert(());
            for value in values {
                let invented = Token::from_u64(value);
                prop_assert!(invented == token || slab.remove(invented).is_none());
            }
        }
    }
}
