//! Keeps the password out of lapin's log lines. At TRACE lapin logs every frame that it sends, and one of them contains the password
//! (`connection.start-ok`), as a list of bytes.
//!
//! Also leaves out two kinds of lapin's errors that are none: a channel that the broker closed, which is how it answers whether a queue exists
//! and of which type it is, and the end of a socket that we closed. Both reach us as errors of the call that they concern, and we report them
//! where they matter. A program that listens at DEBUG or TRACE gets them.
//!
//! lapin works in a thread of its own, and in tasks on our runtime. Both get a subscriber that passes everything on to the program's
//! subscriber, except those lines. Without a subscriber there is no such subscriber either.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber, dispatcher,
    field::{Field, Visit},
    instrument::WithSubscriber,
    level_filters::LevelFilter,
    span,
    subscriber::Interest,
};

thread_local! {
    /// Ends with lapin's thread, which serves one connection.
    static OF_THIS_THREAD: RefCell<Option<dispatcher::DefaultGuard>> = const { RefCell::new(None) };
}

/// The program's subscriber, for one connection.
#[derive(Clone, Debug)]
pub(super) struct LogRedaction(Option<Dispatch>);

impl LogRedaction {
    /// For a connection that is about to begin. `is_cut` says whether we have closed its socket.
    pub(super) fn now(is_cut: Arc<AtomicBool>) -> Self {
        let level = LevelFilter::current();
        let hides = match level {
            LevelFilter::OFF | LevelFilter::DEBUG => None,
            LevelFilter::TRACE => Some(Redacted::Frames),
            _ => Some(Redacted::ExpectedErrors(is_cut)),
        };
        Self(hides.map(|hidden| {
            Dispatch::new(RedactingSubscriber {
                programs: dispatcher::get_default(Dispatch::clone),
                hidden,
                level,
            })
        }))
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

/// What is not passed on.
enum Redacted {
    Frames,
    ExpectedErrors(Arc<AtomicBool>),
}

struct RedactingSubscriber {
    programs: Dispatch,
    hidden: Redacted,
    /// The finest level that anybody listened at when the connection began.
    level: LevelFilter,
}

impl RedactingSubscriber {
    fn hides_all(&self, metadata: &Metadata<'_>) -> bool {
        matches!(self.hidden, Redacted::Frames) && may_hold_frame(metadata)
    }

    fn hides(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        match &self.hidden {
            Redacted::Frames => may_hold_frame(metadata),
            Redacted::ExpectedErrors(is_cut) => {
                *metadata.level() == Level::ERROR
                    && metadata.target().starts_with("lapin")
                    && (is_cut.load(Ordering::Relaxed) || is_of_a_closed_channel(event))
            }
        }
    }
}

/// Whether the line says that the broker closed a channel.
fn is_of_a_closed_channel(event: &Event<'_>) -> bool {
    struct Said(String);
    impl Visit for Said {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                let _ = write!(self.0, "{value:?}"); // a text takes everything
            }
        }
    }
    let mut said = Said(String::new());
    event.record(&mut said);
    said.0 == "Channel closed"
}

/// Whether a line of this kind may contain a whole frame.
fn may_hold_frame(metadata: &Metadata<'_>) -> bool {
    *metadata.level() == Level::TRACE && metadata.target().starts_with("lapin")
}

impl Subscriber for RedactingSubscriber {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.hides_all(metadata) {
            Interest::never()
        } else {
            self.programs.register_callsite(metadata)
        }
    }

    /// Without a hint, all levels would be turned on for the whole program.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !self.hides_all(metadata) && self.programs.enabled(metadata)
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        self.programs.new_span(attributes)
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        self.programs.record(span, values);
    }

    fn record_follows_from(&self, span: &span::Id, follows: &span::Id) {
        self.programs.record_follows_from(span, follows);
    }

    fn event(&self, event: &Event<'_>) {
        if !self.hides(event) {
            self.programs.event(event);
        }
    }

    fn enter(&self, span: &span::Id) {
        self.programs.enter(span);
    }

    fn exit(&self, span: &span::Id) {
        self.programs.exit(span);
    }

    fn clone_span(&self, id: &span::Id) -> span::Id {
        self.programs.clone_span(id)
    }

    fn try_close(&self, id: span::Id) -> bool {
        self.programs.try_close(id)
    }
}
