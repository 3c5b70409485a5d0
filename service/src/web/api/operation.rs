//! What the API can do: the table from which both its addresses and its description are made, so that they cannot differ.

use axum::routing::{MethodRouter, get, post};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{
    super::{Page, configuration::Role, refusal::RefusalKind},
    handlers::{activity, jobs, messages, queues},
    new_job::NewJob,
    query::{ActionsQuery, MessagesQuery, QueueQuery, ResultsQuery, SearchQuery},
    resources::{
        Actions, DryRun, Failures, FoundMessages, Group, Groups, Incidents, Job, JobResults, Jobs,
        Message, MessageList, Queue, Queues, Session, WaitingMessages,
    },
};

/// A schema, with those that it refers to left in the generator.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A method of an address.
pub(super) struct Operation {
    pub(super) method: &'static str,
    /// Below `/api/v1`.
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    /// Whoever may ask.
    pub(super) role: Role,
    /// An object whose properties are the parameters of the query.
    pub(super) query: Option<SchemaOf>,
    pub(super) body: Option<SchemaOf>,
    pub(super) answers: Vec<Answer>,
    /// Other refusals than those of every request.
    pub(super) refusals: &'static [RefusalKind],
    pub(super) handler: MethodRouter<Page>,
}

/// An answer that is no refusal.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) description: &'static str,
    /// `None`: any object.
    pub(super) schema: Option<SchemaOf>,
    /// It says where what was made is.
    pub(super) has_location: bool,
}

fn reference<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Its own properties.
fn object<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

fn answer<T: JsonSchema>(status: u16, description: &'static str) -> Answer {
    Answer {
        status,
        description,
        schema: Some(reference::<T>),
        has_location: false,
    }
}

/// Something that anybody may read who may see the page.
fn read<T: JsonSchema>(
    path: &'static str,
    (id, summary): (&'static str, &'static str),
    description: &'static str,
    handler: MethodRouter<Page>,
) -> Operation {
    Operation {
        method: "get",
        path,
        id,
        summary,
        description,
        role: Role::Reader,
        query: None,
        body: None,
        answers: vec![answer::<T>(200, "It is in the body.")],
        // A query that it does not have, or a name that is none.
        refusals: &[RefusalKind::Invalid],
        handler,
    }
}

impl Operation {
    fn with_query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(object::<T>);
        self
    }

    fn with_refusals(mut self, refusals: &'static [RefusalKind]) -> Self {
        self.refusals = refusals;
        self
    }
}

/// All of them.
pub(super) fn operations() -> Vec<Operation> {
    use RefusalKind::{CountMismatch, Internal, Invalid, NotFound, TooLarge, UnsupportedMediaType};
    vec![
        read::<Session>(
            "/session",
            ("getSession", "Who asks"),
            "The name and role of whoever asks, and what a browser's session needs to change something.",
            get(activity::session),
        ),
        read::<Queues>(
            "/queues",
            ("listQueues", "Queues"),
            "Work queues with the numbers of their parked and waiting messages. The broker says how many are parked, two seconds ago at most.",
            get(queues::list),
        ),
        read::<Queue>(
            "/queues/{queue}",
            ("getQueue", "A queue"),
            "The numbers of one queue. A queue of which nothing is known has zeros.",
            get(queues::one),
        ),
        read::<Groups>(
            "/queues/{queue}/groups",
            ("listGroups", "Groups of failures"),
            "Groups of equal failures of the last 24 hours, and those with parked messages, from the history. Notes are read from `<queue>.notes.parked`.",
            get(queues::groups),
        ),
        read::<Group>(
            "/queues/{queue}/groups/{fingerprint}",
            ("getGroup", "A group"),
            "One group of equal failures.",
            get(queues::group),
        )
        .with_refusals(&[Invalid, NotFound]),
        read::<MessageList>(
            "/queues/{queue}/messages",
            ("listMessages", "Parked messages of a queue"),
            "Parked messages that the history knows by name, the latest first. The job `scan` finds those that it does not know.",
            get(messages::list),
        )
        .with_query::<MessagesQuery>(),
        read::<Message>(
            "/queues/{queue}/messages/{mark}",
            ("getMessage", "A parked message"),
            "Searches the parking queue for one message, and shows it as the page does: with its body and headers masked. It stays parked. \
             It may spend deliveries of the messages before it, and holds them up meanwhile. 404 says that it is not parked; 503 that nobody knows now.",
            get(messages::one),
        )
        .with_refusals(&[Invalid, NotFound, Internal]),
        read::<FoundMessages>(
            "/messages",
            ("searchMessages", "Search parked messages"),
            "Parked messages of all queues whose queue, id, error, routing key, fingerprint or trace has a text, from the history. For the text of bodies \
             there is the job `search`.",
            get(messages::search),
        )
        .with_query::<SearchQuery>(),
        read::<WaitingMessages>(
            "/waiting",
            ("listWaiting", "Waiting messages"),
            "Messages that wait for their next attempt, by due time.",
            get(messages::waiting),
        ),
        read::<Incidents>(
            "/incidents",
            ("listIncidents", "Open incidents"),
            "Incidents of the alerts that are open. Only the replica that sends the notices knows them; without `[alerts]` there are none.",
            get(activity::incidents),
        )
        .with_query::<QueueQuery>(),
        read::<Failures>(
            "/failures",
            ("listFailures", "Failed attempts by hour"),
            "Failed attempts of the last 24 hours, by hour, of one queue or of all.",
            get(activity::failures),
        )
        .with_query::<QueueQuery>(),
        read::<Actions>(
            "/actions",
            ("listActions", "Actions of users"),
            "What users did with messages and groups, from the history, the latest first.",
            get(activity::actions),
        )
        .with_query::<ActionsQuery>(),
        read::<Jobs>(
            "/jobs",
            ("listJobs", "Jobs"),
            "The latest jobs of this replica.",
            get(jobs::list),
        ),
        Operation {
            method: "post",
            path: "/jobs",
            id: "createJob",
            summary: "Do something",
            description: "Begins a job that replays, drops, restores, cancels, flushes, silences, closes, looks or searches, or says with `dry_run` what it \
                          would do. One job at a time walks through a queue, and 8 at a time through all queues. Each message has a result; one that is gone, or that somebody else holds, is left \
                          alone. A copy is confirmed, and the history has a record of who did it, before a message leaves its queue.",
            role: Role::Operator,
            query: None,
            body: Some(reference::<NewJob>),
            answers: vec![
                answer::<DryRun>(200, "With `dry_run`: what the job would do. Nothing was changed."),
                Answer {
                    has_location: true,
                    ..answer::<Job>(202, "The job has begun.")
                },
            ],
            refusals: &[Invalid, NotFound, CountMismatch, TooLarge, UnsupportedMediaType],
            handler: post(jobs::create),
        },
        read::<Job>(
            "/jobs/{id}",
            ("getJob", "A job"),
            "How far a job is. Of a job of another replica, or of before a restart, it is what the history has (`past`): it may still be running, and failures \
             are not known. The history has nothing of `scan` and `search`, so that other replicas do not know them (404).",
            get(jobs::one),
        )
        .with_refusals(&[Invalid, NotFound]),
        read::<JobResults>(
            "/jobs/{id}/results",
            ("listJobResults", "Results of a job"),
            "What became of each message.",
            get(jobs::results),
        )
        .with_query::<ResultsQuery>()
        .with_refusals(&[Invalid, NotFound]),
        Operation {
            answers: vec![Answer {
                status: 200,
                description: "This document.",
                schema: None,
                has_location: false,
            }],
            ..read::<Session>(
                "/openapi.json",
                ("getOpenApi", "This description"),
                "The description of the API, as OpenAPI 3.1.",
                get(super::document::show),
            )
        },
    ]
}
