//! The orders of the demo, one for each thing that can happen to a message.

/// The bug that is mended in the second half of the demo.
pub(crate) const BUG: &str = "cannot read the field currency";

/// An order and what is to become of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) id: &'static str,
    pub(crate) body: &'static str,
    /// What it is here to show.
    pub(crate) shows: &'static str,
    /// The reason it is to be parked for; `None` if it is to succeed.
    pub(crate) parked: Option<&'static str>,
}

const fn order(
    id: &'static str,
    body: &'static str,
    shows: &'static str,
    parked: Option<&'static str>,
) -> Order {
    Order {
        id,
        body,
        shows,
        parked,
    }
}

pub(crate) const ALL: [Order; 9] = [
    order("order-1", "fine", "succeeds at once", None),
    order("order-2", "flaky", "fails twice, then succeeds", None),
    order("order-3", "busy", "the handler chooses the delay", None),
    order("order-4", "early", "put off, no attempt spent", None),
    order("order-5", "crash", "the handler panics once", None),
    order("order-6", "slow", "the handler takes too long once", None),
    order("order-7", "junk", "the handler parks it", Some("requested")),
    order(
        "order-8",
        "broken",
        "an error no retry can mend",
        Some("fatal"),
    ),
    order(
        "order-9",
        "euro",
        "fails until its retries are spent",
        Some("exhausted"),
    ),
];
