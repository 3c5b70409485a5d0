//! Messages on their way to a language.

use retryrmq::Token;

/// Messages that were taken and have not reached the language yet. If they never do, because memory runs out or something panics, they are
/// given back: nobody else knows them.
#[derive(Debug)]
pub struct BatchGuard<F: FnMut(Vec<Token>)> {
    tokens: Vec<Token>,
    give_back: F,
}

impl<F: FnMut(Vec<Token>)> BatchGuard<F> {
    /// The messages of these tokens; `give_back` requeues them.
    pub fn new(tokens: impl IntoIterator<Item = Token>, give_back: F) -> Self {
        Self {
            tokens: tokens.into_iter().collect(),
            give_back,
        }
    }

    /// The language has them.
    pub fn disarm(mut self) {
        self.tokens.clear();
    }
}

impl<F: FnMut(Vec<Token>)> Drop for BatchGuard<F> {
    fn drop(&mut self) {
        if !self.tokens.is_empty() {
            (self.give_back)(std::mem::take(&mut self.tokens));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, panic};

    use super::*;

    #[test]
    fn what_does_not_arrive_is_given_back() {
        let tokens = [3, 4].map(Token::from_u64);
        let given_back = RefCell::new(Vec::new());
        let taken = || BatchGuard::new(tokens, |tokens| given_back.borrow_mut().extend(tokens));
        taken().disarm();
        assert!(given_back.borrow().is_empty());
        let broken = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            let _taken = taken();
            panic!("the batch cannot be written");
        }));
        assert!(broken.is_err());
        assert_eq!(*given_back.borrow(), tokens);
    }
}
