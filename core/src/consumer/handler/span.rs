//! The span around an attempt, and the trace that its message belongs to.

use tracing::{Span, field::Empty, info_span};

use crate::{Message, retry::headers};

/// The span in which a handler runs: `attempt`, level INFO, a root, or with the feature `opentelemetry` a child of the trace in its
/// message's headers.
///
/// Its fields are `queue`, `attempt` (1 is the first) and `message_id`. If the message's headers `traceparent` and `tracestate` are valid
/// W3C Trace Context, they are fields too; anybody may have written them.
pub(super) fn of(message: &Message) -> Span {
    let span = info_span!(
        parent: None,
        "attempt",
        queue = message.queue(),
        attempt = message.attempt(),
        message_id = message.message_id(),
        traceparent = Empty,
        tracestate = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    if let Some((parent, state)) = trace(message) {
        span.record("traceparent", parent.as_str());
        if let Some(state) = state.as_deref() {
            span.record("tracestate", state);
        }
        #[cfg(feature = "opentelemetry")]
        parent::set(&span, &parent, state.as_deref());
    }
    span
}

/// The span in which a handler of a batch runs: `batch`, level INFO, a root, with the feature `opentelemetry` linked to the trace of each
/// message that has one.
///
/// Its fields are `queue`, `messages` (how many) and `message_ids` (the first ones).
pub(super) fn of_batch(messages: &[Message]) -> Span {
    const MOST_IDS: usize = 10;
    let span = info_span!(
        parent: None,
        "batch",
        queue = messages.first().map(Message::queue),
        messages = messages.len(),
        message_ids = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    let ids = messages.iter().filter_map(Message::message_id);
    let ids: Vec<_> = ids.take(MOST_IDS).collect();
    if !ids.is_empty() {
        span.record("message_ids", ids.join(", "));
    }
    #[cfg(feature = "opentelemetry")]
    for (parent, state) in messages.iter().filter_map(trace) {
        parent::link(&span, &parent, state.as_deref());
    }
    span
}

/// The message's `traceparent` and `tracestate`, as far as they are valid.
fn trace(message: &Message) -> Option<(String, Option<String>)> {
    let table = message.headers()?;
    // A state means nothing without its trace.
    let parent = headers::string(table, "traceparent").filter(|text| is_traceparent(text))?;
    let state = headers::string(table, "tracestate").filter(|text| is_tracestate(text));
    Some((parent, state))
}

/// A span of another process as the parent of one of ours.
#[cfg(feature = "opentelemetry")]
mod parent {
    use opentelemetry::{
        Context,
        trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
    };
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    /// Both are valid. Without a layer of `tracing-opentelemetry` there is nobody to tell, so nothing happens.
    pub(super) fn set(span: &Span, traceparent: &str, tracestate: Option<&str>) {
        let Some(context) = of(traceparent, tracestate) else {
            return;
        };
        let _ = span.set_parent(Context::new().with_remote_span_context(context));
    }

    /// The same for a span that has several.
    pub(super) fn link(span: &Span, traceparent: &str, tracestate: Option<&str>) {
        if let Some(context) = of(traceparent, tracestate) {
            span.add_link(context);
        }
    }

    fn of(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
        let mut parts = traceparent.split('-').skip(1);
        let trace = TraceId::from_hex(parts.next()?).ok()?;
        let parent = SpanId::from_hex(parts.next()?).ok()?;
        let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
        // Of a later version's flags, only the one that is known here.
        let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
        let state = tracestate.and_then(|text| text.parse::<TraceState>().ok());
        let state = state.unwrap_or_default();
        Some(SpanContext::new(trace, parent, flags, true, state))
    }
}

/// `version-trace-parent-flags` in hexadecimal digits; a later version may have more behind.
fn is_traceparent(text: &str) -> bool {
    const LONGEST: usize = 256;
    let mut parts = text.split('-');
    let mut hex = |digits: usize| {
        parts.next().filter(|part| {
            part.len() == digits
                && part
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let is_some = |id: &str| id.bytes().any(|byte| byte != b'0');
    let (Some(version), Some(trace), Some(parent), Some(_)) = (hex(2), hex(32), hex(16), hex(2))
    else {
        return false;
    };
    let more = parts.next().is_some();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    version != "ff"
        && is_some(trace)
        && is_some(parent)
        && (version != "00" || !more)
        && is_plain
        && text.len() <= LONGEST
}

/// At most what every implementation must pass on, and no characters that a terminal obeys.
fn is_tracestate(text: &str) -> bool {
    const LONGEST: usize = 512;
    !text.is_empty()
        && text.len() <= LONGEST
        && text
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;
    use crate::{
        consumer::Received,
        types::{AMQPValue, FieldTable},
    };

    fn received(headers: &[(&str, &str)]) -> Message {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), AMQPValue::LongString((*value).into()));
        }
        let mut received = Received::for_tests("orders", "7");
        received.properties = received.properties.with_headers(table);
        Message(Arc::new(received))
    }

    /// The log lines within the span of a message with these headers.
    fn logged(headers: &[(&str, &str)]) -> String {
        #[derive(Clone, Default)]
        struct Log(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Log {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let message = received(headers);
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            of(&message).in_scope(|| tracing::info!("handled"));
        });
        let text = log.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_span_says_which_attempt_it_is_and_of_which_trace() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let line = logged(&[("traceparent", trace), ("tracestate", "a=b")]);
        for part in [
            "attempt{",
            "queue=\"orders\"",
            "attempt=1",
            trace,
            "tracestate=\"a=b\"",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        let line = logged(&[("traceparent", "forged\nline"), ("tracestate", "a=b")]);
        assert!(
            line.contains("queue=\"orders\"") && !line.contains("trace"),
            "{line}"
        );
    }

    /// The spans that are exported while `work` runs.
    #[cfg(feature = "opentelemetry")]
    fn exported(work: impl FnOnce()) -> Vec<opentelemetry_sdk::trace::SpanData> {
        use opentelemetry::trace::TracerProvider as _;
        use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
        use tracing_subscriber::layer::SubscriberExt as _;

        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        exporter.get_finished_spans().unwrap()
    }

    #[cfg(feature = "opentelemetry")]
    #[test]
    fn the_trace_of_the_message_is_the_parent_of_the_span() {
        let spans = exported(|| {
            let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            for headers in [
                &[("traceparent", trace), ("tracestate", "a=b")][..],
                &[("traceparent", "forged")],
            ] {
                of(&received(headers)).in_scope(|| tracing::info!("handled"));
            }
        });
        let [child, root] = &spans[..] else {
            panic!("{spans:?}")
        };
        let context = &child.span_context;
        assert_eq!(
            context.trace_id().to_string(),
            "0af7651916cd43dd8448eb211c80319c"
        );
        assert_eq!(child.parent_span_id.to_string(), "b7ad6b7169203331");
        assert!(child.parent_span_is_remote && context.is_sampled());
        assert_eq!(context.trace_state().header(), "a=b");
        assert_eq!(root.parent_span_id.to_string(), "0000000000000000");
        assert_ne!(root.span_context.trace_id(), context.trace_id());
    }

    #[cfg(feature = "opentelemetry")]
    #[test]
    fn the_span_of_a_batch_is_linked_to_the_traces_of_its_messages() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let other = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203332-00";
        let messages = [trace, "forged", other].map(|trace| received(&[("traceparent", trace)]));
        let spans = exported(|| of_batch(&messages).in_scope(|| tracing::info!("handled")));
        let [span] = &spans[..] else {
            panic!("{spans:?}")
        };
        assert_eq!((&*span.name, span.links.len()), ("batch", 2));
        let linked = span.links.iter().map(|link| &link.span_context);
        let linked: Vec<_> = linked
            .map(|context| context.trace_id().to_string())
            .collect();
        assert_eq!(
            linked,
            [
                "0af7651916cd43dd8448eb211c80319c",
                "1af7651916cd43dd8448eb211c80319c"
            ]
        );
        assert_eq!(span.parent_span_id.to_string(), "0000000000000000");
    }

    #[test]
    fn only_what_the_standard_says_is_a_trace() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(is_traceparent(trace));
        assert!(is_traceparent(&format!("cc{}-what-comes", &trace[2..])));
        for bad in [
            "",
            "00",
            &trace.to_uppercase(),
            &trace.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &trace.replace("b7ad6b7169203331", &"0".repeat(16)),
            &trace.replacen("00", "ff", 1),
            &format!("{trace}-more"),
            &format!("{trace}\n"),
            &format!("cc{}-{}", &trace[2..], "x".repeat(300)),
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
        assert!(is_tracestate("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"));
        for bad in ["", "a=\u{1b}[2J", &"a".repeat(513)] {
            assert!(!is_tracestate(bad), "{bad}");
        }
    }
}
