//! Keeps the password out of lapin's log lines. At TRACE lapin logs every frame that it sends, and one of them contains the password
//! (`connection.start-ok`), as a list of bytes.
//!
//! lapin works in a thread of its own, and in tasks on our runtime. Both get a subscriber that passes everything on to the program's
//! subscriber, except those lines. A program that does not listen at TRACE pays nothing: then there is no such subscriber.

use std::cell::RefCell;

use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber, dispatcher, instrument::WithSubscriber,
    level_filters::LevelFilter, span, subscriber::Interest,
};

thread_local! {
    /// Ends with lapin's thread, which serves one connection.
    static OF_THIS_THREAD: RefCell<Option<dispatcher::DefaultGuard>> = const { RefCell::new(None) };
}

/// The program's subscriber, for one connection.
#[derive(Clone, Debug)]
pub(super) struct Discretion(Option<Dispatch>);

impl Discretion {
    /// For a connection that is about to begin.
    pub(super) fn now() -> Self {
        let listened = LevelFilter::current() >= LevelFilter::TRACE;
        Self(listened.then(|| Dispatch::new(Discreet(dispatcher::get_default(Dispatch::clone)))))
    }

    /// Applies to this thread from now on, until it ends.
    pub(super) fn keep(&self) {
        if let Some(discreet) = &self.0 {
            OF_THIS_THREAD.with_borrow_mut(|kept| {
                kept.get_or_insert_with(|| dispatcher::set_default(discreet));
            });
        }
    }

    /// Applies to a task.
    pub(super) async fn of<F: Future>(self, task: F) -> F::Output {
        match self.0 {
            Some(discreet) => task.with_subscriber(discreet).await,
            None => task.await,
        }
    }
}

struct Discreet(Dispatch);

/// Whether a line of this kind may contain a whole frame.
fn tells_frames(metadata: &Metadata<'_>) -> bool {
    *metadata.level() == Level::TRACE && metadata.target().starts_with("lapin")
}

impl Subscriber for Discreet {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if tells_frames(metadata) {
            Interest::never()
        } else {
            self.0.register_callsite(metadata)
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !tells_frames(metadata) && self.0.enabled(metadata)
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        self.0.new_span(attributes)
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        self.0.record(span, values);
    }

    fn record_follows_from(&self, span: &span::Id, follows: &span::Id) {
        self.0.record_follows_from(span, follows);
    }

    fn event(&self, event: &Event<'_>) {
        if !tells_frames(event.metadata()) {
            self.0.event(event);
        }
    }

    fn enter(&self, span: &span::Id) {
        self.0.enter(span);
    }

    fn exit(&self, span: &span::Id) {
        self.0.exit(span);
    }

    fn clone_span(&self, id: &span::Id) -> span::Id {
        self.0.clone_span(id)
    }

    fn try_close(&self, id: span::Id) -> bool {
        self.0.try_close(id)
    }
}
