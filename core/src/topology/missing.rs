//! What a consumer needs and the broker lacks, said in one error.

use super::Item;
use crate::{Error, Result};

/// The items of a plan that are missing, each with its error.
#[derive(Default)]
pub(crate) struct MissingItems(Vec<(Item, Error)>);

impl MissingItems {
    pub(super) fn add(&mut self, item: &Item, error: Error) {
        self.0.push((item.clone(), error));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `found`, unless something is missing: then one error that names all of it, the work queue first. The service's queue has a sentence
    /// of its own, because something else helps there. What ended the search comes last: alone, a timeout would be waited for without end.
    pub(crate) fn or<T>(mut self, found: Result<T>) -> Result<T> {
        self.0
            .sort_by_key(|(item, _)| (item.is_handover_queue(), !item.is_work_queue()));
        let mut missing_items = self.0.into_iter();
        let Some((_, first)) = missing_items.next() else {
            return found;
        };
        let (services, others): (Vec<_>, Vec<_>) =
            missing_items.partition(|(item, _)| item.is_handover_queue());
        let mut said = first.to_string();
        if !others.is_empty() {
            let names: Vec<_> = others
                .iter()
                .map(|(item, _)| format!("`{}`", item.name()))
                .collect();
            said += &format!("; these are missing, too: {}", names.join(", "));
        }
        for (_, error) in services {
            said += &format!("; {error}");
        }
        if let Err(error) = found {
            said += &format!("; the search for the others ended: {error}");
        }
        Err(first.saying(said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ErrorKind,
        topology::{
            QueueType,
            plan::{handover, parking, work},
        },
    };

    fn said(items: &[Item], found: Result<()>) -> String {
        let mut missing_items = MissingItems::default();
        for item in items {
            let said = format!("no {}, so make it", item.name());
            missing_items.add(item, Error::new(ErrorKind::QueueNotFound, said));
        }
        let error = missing_items.or(found).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QueueNotFound);
        error.to_string()
    }

    #[test]
    fn all_is_named_with_each_advice_once() {
        assert_eq!(MissingItems::default().or(Ok(7)).unwrap(), 7);
        let (work, parked) = (work("orders"), parking("orders", QueueType::Quorum));
        assert_eq!(
            said(&[handover(), parked.clone(), work], Ok(())),
            "no orders, so make it; these are missing, too: `orders.parked`; no retryrmq.handover, so make it"
        );
        assert_eq!(
            said(&[handover(), parked], Ok(())),
            "no orders.parked, so make it; no retryrmq.handover, so make it"
        );
        assert_eq!(
            said(&[handover()], Ok(())),
            "no retryrmq.handover, so make it"
        );
    }

    #[test]
    fn what_ends_the_search_does_not_hide_what_is_missing() {
        let parked = parking("orders", QueueType::Quorum);
        assert_eq!(
            said(&[parked], Err(Error::new(ErrorKind::Timeout, "no answer"))),
            "no orders.parked, so make it; the search for the others ended: no answer"
        );
    }
}
