//! Starts a consumer: checks its options, prepares the broker, and waits until the broker serves it.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::{sync::mpsc, time::Instant};

use super::{
    super::{
        Consumer,
        delivery_queue::DeliveryQueue,
        engine::{Commands, Engine, Input, Setup},
    },
    Shell, ShellEvent,
    broker_requirements::BrokerRequirements,
    channel::{Channel, ChannelEvent},
    copies::Copies,
    reopen::{kind, mode, report_old_queues},
    startup_warnings::{
        log_created_queue, warn_of_an_untested_broker, warn_of_no_choice, warn_of_no_service,
    },
};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::is_internal_error,
    retry::Origin,
    telemetry::{Counters, HOST},
    topology::{self, DelayQueues, QueueType},
    unreadable::InternalErrors,
};

/// Reports a refusal of the publishing connection alone. If there is no consuming connection, that one reports it.
async fn report_refused_copies(client: Client, mail: mpsc::UnboundedSender<ShellEvent>) {
    let refusals = async {
        loop {
            let error = client.publishing().refused().await;
            // A broker that leaves a connection open after its secret has expired sends nothing on it.
            if client.consuming().standing().is_ok()
                && mail.send(ShellEvent::Refused(error)).is_err()
            {
                return;
            }
            if client.publishing().connection().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = refusals => {}
        () = mail.closed() => {}
    }
}

impl Shell {
    /// Checks the options, prepares the broker, and consumes.
    pub(in crate::consumer) async fn subscribe(
        options: Consumer,
        client: Client,
        delivery_queue: Arc<DeliveryQueue>,
        counters: Counters,
    ) -> Result<Self> {
        options.validate()?;
        let plan = options.plan()?;
        let wire_queue = topology::name(&options.queue)?;
        let queue_type = client.options().queue_type;
        let requirements = BrokerRequirements::of(&options, queue_type);
        // Does not wait: if there is no connection, the look at the queues says why.
        let open = client.consuming().connection().now_or_never().transpose()?;
        let first = open
            .as_ref()
            .map_or_else(|| client.server(), |open| open.server());
        requirements.check(first)?;
        if options.has_dlx() {
            warn_of_an_untested_broker(first);
        }
        let declare = options.declare && options.has_dlx();
        let (may_set_aside, window) = (
            declare || options.create_unreadable_queue,
            options.configured_prefetch(),
        );
        let findings = client.examine(&plan, mode(declare)).await?;
        let waits = DelayQueues::new(
            Arc::clone(client.addresses()),
            options.queue.clone(),
            queue_type,
            options.declare,
            client.losses(),
            client.dead_letter_probes(),
        );
        waits.note(&findings);
        log_created_queue(&findings);
        warn_of_no_service(&findings);
        let plan = plan.again(&findings);
        let connection = client.consuming().connection().await?;
        let server = connection.server().clone();
        requirements.check(&server)?;
        let capabilities = server.capabilities();
        let priority = options.priority;
        waits.mark_when_old(&connection);
        let channel = Channel::open(connection, wire_queue.clone(), priority, 1).await?;
        let (mail, mailbox) = mpsc::unbounded_channel();
        let listener = options.listener.clone();
        let has_chosen = options.dlx.is_some();
        let engine = Engine::new(Setup {
            counting: requirements.counting(&server),
            origin: Origin {
                host: HOST.clone(),
                app_version: client.options().app_version.clone(),
            },
            counters: counters.clone(),
            nack_is_uncounted: capabilities.nack_is_uncounted,
            is_classic: kind(&findings) == Some(QueueType::Classic),
            queues_sleep: capabilities.queues_sleep,
            header_room: client.header_room(),
            seed: fastrand::u64(..),
            options,
        });
        let waits = Arc::new(waits);
        let mut shell = Self {
            engine,
            wanted: Commands::default(),
            copies: Copies::new(client.clone(), Arc::clone(&waits), mail.clone()),
            client,
            declare,
            may_set_aside,
            window,
            kind: kind(&findings),
            requirements: Arc::new(requirements),
            plan,
            wire_queue,
            priority,
            listener,
            counters,
            waits,
            delivery_queue,
            channel: Some(Box::new(channel)),
            mail,
            mailbox,
            outcomes: Vec::new(),
            internal_errors: InternalErrors::default(),
            last_lost: None,
            is_stopped: false,
            opened: Instant::now(),
            began: Instant::now(),
            told_to_close: false,
            told_to_abandon: false,
        };
        shell.keep_to_one_consumer();
        shell.begin().await?;
        tokio::spawn(report_old_queues(
            1,
            shell.plan.clone(),
            Arc::clone(&shell.waits),
            shell.mail.clone(),
        ));
        tokio::spawn(report_refused_copies(
            shell.client.clone(),
            shell.mail.clone(),
        ));
        if !has_chosen {
            warn_of_no_choice(shell.engine.name());
        }
        Ok(shell)
    }

    /// Waits until the broker serves us, so that the caller gets a refusal.
    async fn begin(&mut self) -> Result<()> {
        self.feed(Input::Opened { session: 1 });
        self.turn();
        let Some(channel) = &mut self.channel else {
            return Ok(());
        };
        match channel.next().await {
            // It may have been the first message: the next session looks for it.
            ChannelEvent::Lost(Some(why)) if is_internal_error(&why) => {
                self.happened(ChannelEvent::Lost(Some(why)));
                Ok(())
            }
            ChannelEvent::Lost(why) => Err(why.unwrap_or_else(|| {
                let why = "the connection was lost while the consumer subscribed; try again";
                Error::new(ErrorKind::ConnectionLost, why)
            })),
            channel_event => {
                self.happened(channel_event);
                Ok(())
            }
        }
    }
}
