//! What `retryrmq help consume` says beyond the options: the contracts with a command and with an endpoint.

/// All of it.
pub(super) fn text() -> String {
    format!("{COMMAND}\n{HTTP}\n{BATCHES}\n{EXAMPLES}")
}

const COMMAND: &str = "\
The contract with COMMAND

  Each message is one run of COMMAND. The body is its standard input; what it
  prints goes where our own output goes. (With --json its standard output goes
  to standard error, so that each line on ours is JSON.) In its environment:

    RETRYRMQ_QUEUE         the queue
    RETRYRMQ_ATTEMPT       1 on first delivery
    RETRYRMQ_RETRIES       attempts that failed so far
    RETRYRMQ_LAST_ERROR    why the last attempt failed, if one did
    RETRYRMQ_MESSAGE_ID    the publisher's id, if there is one
    RETRYRMQ_EXCHANGE      where it was first published to,
    RETRYRMQ_ROUTING_KEY   and with which routing key
    RETRYRMQ_HEADERS       all headers, as JSON

  Headers above 100 KiB do not fit an environment: the largest are left out,
  and RETRYRMQ_HEADERS_CUT says how many. In other values a NUL byte becomes
  U+FFFD, and they end after 8 KiB.

  How it ends decides:

    exit 0               done: the message is acknowledged
    exit 65              hopeless: parked, as `requested` (EX_DATAERR)
    exit 75              not now: retry (EX_TEMPFAIL)
    any other, a signal  failed: retry

  A command may also say so itself, in a line on the file descriptor whose
  number is RETRYRMQ_OUTCOME_FD; in a shell: echo 'defer: 5s' >&3

    RETRYRMQ_OUTCOME_FD    3: write to it before the end

    retry-after: 30s     failed: come back in 30 s, whatever the policy says
    defer: 5s            come back in 5 s, no attempt is spent
    park: why            hopeless: parked, as `requested`, with this as the
                         error

  The last line there that is not empty decides, however the command ends; one
  that is not understood is a failed attempt. Nothing but the command itself
  writes there, so no message can choose its own delay.

  As long as nothing was written there, not even an empty line, the last line
  on standard error may choose when:

    retry-after: 30s     after a failure: come back in 30 s, whatever the
                         policy says
    defer: 5s            with exit 75: come back in 5 s, no attempt is spent

  Such a line is never the error. A handler whose errors repeat what is in a
  message lets its publisher write that line, so it should write to the
  descriptor: an empty line at its start is enough. No delay is longer
  than --max-retry-after, wherever it comes from.

  The last line on standard error (before such a line) is what `parked ls`
  shows; its last 8 KiB are kept as the stack. The error's type, for rules,
  is `exit status N`, `signal N`, or `HandlerTimeout` after --timeout; after
  exit 0 there is none.

  After --timeout the whole process group is asked to end (SIGTERM), and what
  is left of it is killed when --grace is over. What a command that ended by
  itself leaves behind in the background may go on; nobody waits for it.

  Ctrl-C, SIGTERM or SIGHUP (unless started with SIGHUP ignored, as nohup
  does) drains: running commands may finish (--drain). A second one stops at
  once: what runs is killed, and its message goes back to the queue. Nothing
  is lost either way. A command that dies of the same signal while we drain
  (service managers signal whole groups), or says so by status 129, 130 or
  143, has not failed: its message goes back to the queue.

  A reader of the output that stops reading does not stop the messages: lines
  that find no room are dropped, and a line says how many.

  If retryrmq itself is killed, its commands are ended a moment later.
";

const HTTP: &str = "\
The contract with URL (--http)

  Each message is one POST. The body is the message's body as it is;
  Content-Type is the message's own, else application/octet-stream; so is
  Content-Encoding where HTTP knows it, such as gzip. Headers of the request:

    Retryrmq-Queue             the queue
    Retryrmq-Attempt           1 on first delivery
    Retryrmq-Retries           attempts that failed so far
    Retryrmq-Last-Error        why the last attempt failed, if one did
    Retryrmq-First-Failed-At   when the first attempt failed (RFC 3339)
    Retryrmq-Message-Id        the publisher's id, if there is one
    Retryrmq-Exchange          where it was first published to,
    Retryrmq-Routing-Key       and with which routing key
    Retryrmq-Headers           the message's headers, as JSON in ASCII
    Retryrmq-Properties        its other properties, as JSON in ASCII

  In values that are not JSON, all but printable ASCII is percent-encoded
  as UTF-8, and so is %: decode them as a URL's path. They end after 1 KiB.
  JSON above 4 KiB leaves the largest headers out, and Retryrmq-Headers-Cut
  says how many; above 2 KiB of properties, Retryrmq-Properties-Cut.

  With --cloudevents each request is a CloudEvent 1.0 in binary mode, with
  these headers as well. With --batch it is one in batch mode
  (application/cloudevents-batch+json), with its data as JSON, as a text, or
  as Base64. The attributes, in binary mode with `ce-` before their names:

    id        the message's id; without one another at each attempt
    source    SOURCE of --cloudevents=SOURCE, else /queues/QUEUE
    type      the property `type`, else rabbitmq.message
    time      the property `timestamp`, if there is one
    subject   the routing key
    traceparent, tracestate        the message's headers of these names
    retryrmqattempt, retryrmqretries, retryrmqlasterror, retryrmqfirstfailed

  A message that is a CloudEvent already (headers `cloudEvents:NAME`, or a
  body of type application/cloudevents+json) stays it. A body with several
  events, or in another format, is sent as it is, and in a batch as the data
  of an event. Without a content type, the data is application/json or
  text/plain if it is JSON or a text. In a batch, the attribute
  contentencoding says how the data is compressed, and the other headers and
  properties of the messages are left out. An event whose attributes exceed
  3 KiB or 40 headers is sent in structured mode.

  The answer decides:

    2xx                  done: the message is acknowledged
    422 (--park-status)  hopeless: parked, as `requested`
    429, 503             not now: retry; after `Retry-After` (seconds or an
                         HTTP date), if the answer has it
    any other            failed: retry

  The endpoint may also say so itself, whatever the status, in the header
  Retryrmq-Outcome of its answer, with the words of a command:

    Retryrmq-Outcome: retry-after: 30s
    Retryrmq-Outcome: defer: 5s
    Retryrmq-Outcome: park: why

  No delay is longer than --max-retry-after, wherever it comes from.

  What `parked ls` shows is the status and the beginning of the answer's body;
  its first 8 KiB are kept as the stack. The error's type, for rules, is
  `HTTP N`, `ConnectionFailed`, `TlsFailed`, `NoAnswer` (the connection ended
  before there was an answer), or `HandlerTimeout` after --timeout.

  307 and 308 are followed, with the body, within the same scheme, host and
  port, five times at most. A redirect to anywhere else is a failure, and so
  is any other: 301, 302 and 303 may turn a POST into a GET. The body of an
  answer is read for 2 s at most, and never decides. No proxy is used.

  With --sign-secret-file each request is signed as Standard Webhooks says:
  webhook-id is the message id (percent-encoded, also its full stops),
  webhook-timestamp the time of the attempt, webhook-signature `v1,…` for each
  secret in the file. A message without an id has another one each time: give
  your messages ids.

  Ctrl-C, SIGTERM or SIGHUP drains: requests that run have --drain to be
  answered. Then, or at a second one, they are aborted, and their messages go
  back to the queue: the endpoint may see them twice.
";

const BATCHES: &str = "\
Batches (--batch)

  With --batch N a run gets up to N messages. An incomplete batch waits for
  more, for --batch-wait from its first message on. Each message keeps its
  own attempts, retries and end.

  COMMAND reads one line of JSON for each message on its standard input:

    message_id, last_error, first_failed_at    if there are any
    attempt, retries, exchange, routing_key, headers, properties
    body                 its text; body_base64 if it is not UTF-8

  In its environment are RETRYRMQ_QUEUE, RETRYRMQ_BATCH (how many messages)
  and RETRYRMQ_OUTCOME_FD. On that descriptor it may write one line for each
  message, in their order:

    ok                   done: the message is acknowledged
    fail: why            failed: retry
    retry-after: 30s, defer: 5s, park: why     as for a single message

  An empty line is a failed attempt. Exit 0 without any line acknowledges all
  messages that COMMAND could read. Exit 0 with lines, but more or fewer than
  messages, is a failed attempt of all, of the type BatchAnswerError. After
  a failure, a crash or --timeout the lines that were written count, and the
  other messages end as COMMAND does.

  A URL gets a JSON array of the same objects, as application/json, with the
  headers Retryrmq-Queue and Retryrmq-Batch. A 2xx whose Content-Type is
  application/json answers with an array of strings, one for each message, in
  their order, with the words above. Any other answer is for all messages, but
  after 413 and the statuses of --park-status each is sent once more by itself.
";

const EXAMPLES: &str = "\
Examples:
  retryrmq consume orders --dlx -- ./handle-order
  retryrmq consume orders --dlx --retry 'list(1s, 10s, 1m)' --timeout 30s \\
      --concurrency 8 -- python3 handle.py
  retryrmq consume orders --dlx \\
      --rule 'error=exit status 3 => fixed(1h, retries=24)' -- ./handle-order
  retryrmq consume orders --dlx --pause --concurrency 16 \\
      --http https://orders.example/handle --bearer-file /run/secrets/token
  retryrmq consume orders --dlx --batch 500 --batch-wait 1s -- ./insert-all
  retryrmq consume orders --dlx --idle 10s -- sh -c 'jq -e .id || exit 65'

With --json: one object a line, each with `event`: consuming, handled, retried,
deferred, parked, handed_over, rejected, detoured, already_handled, replayed,
publish_failed, requeued, disconnected, reconnected, login_refused,
unreadable_moved, consuming_stopped, paused, resumed, draining, lines_dropped,
and at the end `done` with counts. Names in them: queue, message_id, attempt,
delay_ms, error, error_type, reason, crashes, to, count, cause, pause_ms, ms
(how long it took), running, lines.";
