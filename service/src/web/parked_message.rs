//! One parked message, read from its parking queue and masked, for the page and for the API.

use retryrmq::Record;

use super::{
    Page, WebConfig,
    body::{QueueMasks, ShownBody},
    jobs::marks,
    refusal::{Refusal, RefusalKind},
};
use crate::intake::is_packed;

/// A message as people may see it.
pub(super) struct ParkedMessage {
    pub(super) record: Record,
    pub(super) body: ShownBody,
    /// The publisher's headers: name and value.
    pub(super) headers: Vec<(String, String)>,
}

/// Looks for it in its queue, which may spend deliveries, and holds the messages up meanwhile.
pub(super) async fn parked_message(
    page: &Page,
    web_config: &WebConfig,
    queue: &str,
    mark: &str,
) -> Result<ParkedMessage, Refusal> {
    let marks = marks(mark);
    let [mark] = marks.as_slice() else {
        return Err(Refusal::not_found(
            "The mark of a message has 16 hexadecimal digits.",
        ));
    };
    let client = page.client()?;
    let record = page.jobs.find_parked(&client, queue, mark).await?;
    let masks = QueueMasks::of(&web_config.page, queue, &record.home);
    let message = record.message();
    let is_packed = is_packed(message.properties());
    let Some(reserved) = page.memory.to_decode(message.body(), is_packed).await else {
        return Err(Refusal::unavailable(
            "The memory for decoding bodies is in use. Reload the page in a moment.",
        ));
    };
    // Decoding a large body takes its time.
    let shown = tokio::task::spawn_blocking(move || {
        let headers = masks.headers(message.headers());
        let body = masks.body(message.body(), message.properties());
        drop(reserved);
        (body, headers)
    });
    let (body, headers) = shown
        .await
        .map_err(|_| Refusal::new(RefusalKind::Internal, "Its body cannot be decoded."))?;
    Ok(ParkedMessage {
        record,
        body,
        headers,
    })
}
