//! A ledger of every message: where it is in the end.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use retryrmq::{Client, ErrorKind, UnreadableMessage, parking_queue, unreadable_queue};
use retryrmq_harness::{Amqp, Vhost, eventually_with_progress, random_messages::token_of};

use crate::{fixture::DEADLINE, publishers::Protocol};

/// What a handler makes of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlerScript {
    Handled,
    Failed,
    Parked,
}

/// What is in the queues where messages stay.
#[derive(Default)]
pub(crate) struct StayedMessages {
    /// The numbers of those that are parked.
    parked: HashSet<u32>,
    /// The numbers of those that no client of AMQP 0-9-1 can be given.
    unreadable: HashSet<u32>,
}

impl StayedMessages {
    pub(crate) fn has_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }
}

#[derive(Clone, Default)]
pub(crate) struct Ledger {
    sent: Arc<Mutex<BTreeSet<u32>>>,
    attempts: Arc<Mutex<HashMap<u32, u32>>>,
    handled: Arc<Mutex<HashMap<u32, u32>>>,
    /// What came without a number.
    strange: Arc<Mutex<Vec<String>>>,
    /// Whether everything succeeds from now on.
    mended: Arc<AtomicBool>,
}

impl Ledger {
    /// A delivery. A quarter of all messages succeed, a quarter fail once, and the others until all is [mended](Self::mend).
    pub(crate) fn delivered(&self, body: &[u8]) -> HandlerScript {
        let Some(number) = token_of(body) else {
            let body = String::from_utf8_lossy(body).into_owned();
            self.strange.lock().unwrap().push(body);
            return HandlerScript::Handled;
        };
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            let attempts = attempts.entry(number).or_default();
            *attempts += 1;
            *attempts
        };
        let verdict = match number % 4 {
            _ if self.mended.load(Ordering::Relaxed) => HandlerScript::Handled,
            0 => HandlerScript::Handled,
            1 if attempt > 1 => HandlerScript::Handled,
            3 => HandlerScript::Parked,
            _ => HandlerScript::Failed,
        };
        if verdict == HandlerScript::Handled {
            *self.handled.lock().unwrap().entry(number).or_default() += 1;
        }
        verdict
    }

    pub(crate) fn mend(&self) {
        self.mended.store(true, Ordering::Relaxed);
    }

    /// What was sent, and what the broker refused of it.
    pub(crate) fn sent(&self, count: u32, refused: &HashSet<u32>) {
        let sent = (0..count).filter(|one| !refused.contains(one));
        *self.sent.lock().unwrap() = sent.collect();
    }

    /// Waits until each message is handled, or kept in a queue beside one of these.
    pub(crate) async fn settle(
        &self,
        vhost: &Vhost,
        client: &Client,
        queues: &[&str],
    ) -> StayedMessages {
        eventually_with_progress(DEADLINE, "each message is somewhere", || async {
            // Each look at a queue that is missing costs this connection the number of a channel.
            let amqp = vhost.connect().await;
            let mut kept = StayedMessages::default();
            let mut depth = 0;
            for queue in queues {
                depth += depth_of(&amqp, &unreadable_queue(queue)).await;
                depth += depth_of(&amqp, &parking_queue(queue)).await;
            }
            amqp.close().await;
            // Browsing costs too much to be done before they can be all there.
            let open = self.open(&kept).len();
            if open > depth {
                let examples = self.examples(&kept);
                return Err(format!("{open} are open, {depth} kept; {examples}"));
            }
            for queue in queues {
                kept.parked.extend(parked(client, queue).await);
                kept.unreadable.extend(unreadable(client, queue).await);
            }
            let open = self.open(&kept).len();
            if open == 0 {
                return Ok(kept);
            }
            let examples = self.examples(&kept);
            Err(format!("{open} are neither handled nor kept; {examples}"))
        })
        .await
    }

    /// Those that are neither handled nor kept.
    fn open(&self, kept: &StayedMessages) -> Vec<u32> {
        let (sent, handled) = (self.sent.lock().unwrap(), self.handled.lock().unwrap());
        let is_kept = |one: &u32| kept.parked.contains(one) || kept.unreadable.contains(one);
        let is_open = |one: &u32| !handled.contains_key(one) && !is_kept(one);
        sent.iter().copied().filter(is_open).collect()
    }

    /// Some that are open, with their protocol and the attempts that they had.
    fn examples(&self, kept: &StayedMessages) -> String {
        let attempts = self.attempts.lock().unwrap();
        let examples = self.open(kept).into_iter().take(20).map(|one| {
            let attempts = attempts.get(&one).copied().unwrap_or_default();
            format!("{one} ({:?}, {attempts} attempts)", Protocol::of(one))
        });
        examples.collect::<Vec<_>>().join(", ")
    }

    /// Prints where each message is, and fails if one is nowhere.
    pub(crate) fn balance(&self, way: &str, kept: &StayedMessages, replayed: &HashSet<u32>) {
        let open = self.open(kept);
        let (sent, handled) = (self.sent.lock().unwrap(), self.handled.lock().unwrap());
        println!("{way}: sent, handled, of these replayed, parked for good, unreadable");
        for protocol in Protocol::ALL {
            let of = |holds: &dyn Fn(&u32) -> bool| {
                let own = sent.iter().filter(|one| Protocol::of(**one) == protocol);
                own.filter(|one| holds(one)).count()
            };
            let is_handled = |one: &u32| handled.contains_key(one);
            println!(
                "  {:9} {:7} {:7} {:7} {:7} {:7}",
                format!("{protocol:?}"),
                of(&|_| true),
                of(&is_handled),
                of(&|one| is_handled(one) && replayed.contains(one)),
                of(&|one| !is_handled(one) && kept.parked.contains(one)),
                of(&|one| kept.unreadable.contains(one)),
            );
        }
        let twice = handled.values().filter(|times| **times > 1).count();
        let (unreadable, lost) = (kept.unreadable.len(), open.len());
        println!("  unreadable: {unreadable}, lost: {lost}, handled more than once: {twice}");
        drop((sent, handled));
        let strange = self.strange.lock().unwrap();
        assert!(strange.is_empty(), "{way}: without a number: {strange:?}");
        assert!(open.is_empty(), "{way}: {}", self.examples(kept));
        let odd = kept.unreadable.iter().find(|one| !can_be_unreadable(**one));
        assert_eq!(odd, None, "{way}: what every client can be given was moved");
    }
}

/// Whether publishers of its protocol can send what is moved. One of MQTT with a long content type is, if it is looked at (fact 94).
fn can_be_unreadable(number: u32) -> bool {
    matches!(Protocol::of(number), Protocol::Amqp10 | Protocol::Mqtt)
}

async fn depth_of(amqp: &Amqp, queue: &str) -> usize {
    amqp.depth(queue).await.unwrap_or_default() as usize
}

/// The numbers of the messages in a parking queue, all of which stay there.
pub(crate) async fn parked(client: &Client, queue: &str) -> HashSet<u32> {
    let mut all = HashSet::new();
    let Ok(mut walk) = client.parked(queue).browse().await else {
        return all;
    };
    while let Some(record) = walk.next().await.expect("it can be browsed") {
        all.extend(token_of(record.message().body()));
    }
    walk.close().await.expect("it can be closed");
    all
}

/// The numbers of the messages that were moved out of the way of a queue.
async fn unreadable(client: &Client, queue: &str) -> HashSet<u32> {
    match client.unreadable(queue).list(u32::MAX).await {
        Ok(all) => {
            let number = |one: &UnreadableMessage| token_of(&one.body).expect("it has a number");
            all.iter().map(number).collect()
        }
        Err(error) if error.kind() == ErrorKind::QueueNotFound => HashSet::new(),
        Err(error) => panic!("{queue}: {error}"),
    }
}

/// Replays what is in a parking queue. What is not text where it has to be can stay there.
pub(crate) async fn replay(client: &Client, queue: &str) -> HashSet<u32> {
    let mut all = HashSet::new();
    let mut walk = client
        .parked(queue)
        .browse()
        .await
        .expect("it can be browsed");
    while let Some(record) = walk.next().await.expect("it can be browsed") {
        let number = token_of(record.message().body());
        match walk.replay(&record).await {
            Ok(()) => all.extend(number),
            // A copy would be another message.
            Err(_) if record.message().mended().is_some() => {}
            Err(error) => panic!("{number:?} of {queue} cannot be replayed: {error}"),
        }
    }
    walk.close().await.expect("it can be closed");
    all
}

#[test]
fn books_with_a_message_missing_do_not_balance() {
    let ledger = Ledger::default();
    ledger.sent(4, &HashSet::from([2]));
    assert_eq!(token_of(b"<message 00000000>"), Some(0));
    assert!(ledger.delivered(b"<message 00000000>") == HandlerScript::Handled);
    assert!(ledger.delivered(b"<message 00000003>") == HandlerScript::Parked);
    let mut kept = StayedMessages {
        parked: HashSet::from([3]),
        unreadable: HashSet::from([2]),
    };
    assert_eq!(ledger.open(&kept), [1]);
    kept.unreadable.insert(1);
    assert!(ledger.open(&kept).is_empty());
    kept.unreadable.clear();
    assert!(ledger.delivered(b"<message 00000001>") == HandlerScript::Failed);
    assert!(ledger.delivered(b"<message 00000001>") == HandlerScript::Handled);
    kept.parked.clear();
    assert!(ledger.delivered(b"<message 00000003>") == HandlerScript::Parked);
    assert_eq!(ledger.open(&kept), [3]);
}
