//! One channel more than a broker allows, on the model and on a real broker. Clients such as lapin keep to `channel_max`, so the one for that
//! limit is as simple as can be.

use crate::version;
use retryrmq_harness::lapin::{Connection, ConnectionProperties, ErrorKind};
use retryrmq_harness::{Permissions, Vhost, eventually, on_every_broker};
use retryrmq_model::{Broker, ConnectionId, Frame, Method, Profile, Prompt, Refusal};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DEADLINE: Duration = Duration::from_secs(30);
const MOST: u16 = 3;

/// Opens a channel of the model, and says how that was refused.
fn open(model: &mut Broker, connection: ConnectionId, channel: u16) -> Option<Refusal> {
    model.send(connection, channel, Method::OpenChannel);
    let frames = std::iter::from_fn(|| model.receive(connection));
    frames
        .filter_map(|(_, frame)| match frame {
            Frame::CloseConnection(refusal) => Some(refusal),
            _ => None,
        })
        .last()
}

#[tokio::test]
async fn a_connection_that_opens_a_channel_too_many_is_closed_as_the_model_says() {
    on_every_broker(|broker| async move {
        let profile = Profile {
            channel_max: Some(MOST),
            ..Profile::new(version(&broker))
        };
        let mut model = Broker::new(profile, Prompt);
        let connection = model.connect().expect("it runs");
        let vhost = broker.vhost().await;
        let mut raw = Raw::connect(&vhost).await;
        for channel in 1..=MOST + 1 {
            let expected = open(&mut model, connection, channel);
            assert_eq!(expected.is_some(), channel > MOST);
            assert_eq!(raw.open(channel).await, expected, "channel {channel}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_user_with_a_channel_too_many_loses_the_connection_that_opened_it_as_the_model_says() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let user = format!("few-{}", vhost.name());
        let management = broker.management();
        management
            .create_user(&user, "few", "")
            .await
            .expect("a user");
        let all = Permissions {
            configure: ".*",
            write: ".*",
            read: ".*",
        };
        let may = management.set_permissions(vhost.name(), &user, all);
        may.await.expect("permissions");
        let limit = management.put(
            format!("user-limits/{user}/max-channels"),
            json!({ "value": MOST }),
        );
        limit.await.expect("a limit");
        let profile = Profile {
            max_channels: Some(MOST.into()),
            user: user.clone(),
            ..Profile::new(version(&broker))
        };
        let mut model = Broker::new(profile, Prompt);
        let [first, second] = [model.connect(), model.connect()].map(|id| id.expect("it runs"));
        let refused = (1..=MOST).find_map(|channel| open(&mut model, first, channel));
        assert_eq!(refused, None);
        let expected = open(&mut model, second, 1).expect("it is one too many");
        assert!(model.is_open(first) && !model.is_open(second));

        let url = vhost.url_as(&user, "few");
        let connect = || Connection::connect(&url, ConnectionProperties::default());
        let first = connect().await.expect("the broker lets us in");
        let mut channels = Vec::new();
        for _ in 0..MOST {
            channels.push(first.create_channel().await.expect("it may"));
        }
        // A broker counts a moment later.
        let seen = eventually(DEADLINE, "one is too many", || async {
            let second = connect().await.map_err(|error| error.to_string())?;
            match second.create_channel().await {
                Ok(_) => Err("it was opened".to_owned()),
                Err(error) => match error.kind() {
                    ErrorKind::ProtocolError(said) => Ok(Refusal {
                        code: said.get_id(),
                        text: said.get_message().to_string(),
                    }),
                    _ => Err(error.to_string()),
                },
            }
        });
        // Behind that 4.x names its node instead of the user.
        let begin = |refusal: &Refusal| {
            let text = refusal.text.split('\'').next().map(str::to_owned);
            (refusal.code, text)
        };
        assert_eq!(begin(&seen.await), begin(&expected));
        assert!(first.status().connected());
        management.delete_user(&user).await.expect("it goes");
    })
    .await;
}

/// A client that opens channels, whatever was agreed on.
struct Raw(TcpStream);

impl Raw {
    async fn connect(vhost: &Vhost) -> Self {
        let url = vhost.broker().url();
        let (_, place) = url.rsplit_once('@').expect("a user");
        let (place, _) = place.split_once('/').expect("a vhost");
        let stream = TcpStream::connect(place).await.expect("it listens");
        let mut raw = Raw(stream);
        raw.0
            .write_all(b"AMQP\x00\x00\x09\x01")
            .await
            .expect("it reads");
        raw.hears(10, 10).await;
        let response = long("\0guest\0guest");
        let start = [vec![0; 4], short("PLAIN"), response, short("en_US")].concat();
        raw.says(0, 10, 11, &start).await;
        raw.hears(10, 30).await;
        let limits = [&MOST.to_be_bytes()[..], &131_072u32.to_be_bytes(), &[0, 0]].concat();
        raw.says(0, 10, 31, &limits).await;
        let open = [short(vhost.name()), short(""), vec![0]].concat();
        raw.says(0, 10, 40, &open).await;
        raw.hears(10, 41).await;
        raw
    }

    /// Opens a channel, and says how that was refused.
    async fn open(&mut self, channel: u16) -> Option<Refusal> {
        self.says(channel, 20, 10, &short("")).await;
        let (class, method, arguments) = self.next().await;
        match (class, method) {
            (20, 11) => None,
            (10, 50) => {
                let code = u16::from_be_bytes([arguments[0], arguments[1]]);
                let text = &arguments[3..][..usize::from(arguments[2])];
                let text = String::from_utf8_lossy(text).into_owned();
                Some(Refusal { code, text })
            }
            other => panic!("the broker says {other:?}"),
        }
    }

    async fn says(&mut self, channel: u16, class: u16, method: u16, arguments: &[u8]) {
        let size = u32::try_from(4 + arguments.len()).expect("it is short");
        let mut frame = vec![1];
        frame.extend(channel.to_be_bytes());
        frame.extend(size.to_be_bytes());
        frame.extend(class.to_be_bytes());
        frame.extend(method.to_be_bytes());
        frame.extend(arguments);
        frame.push(0xce);
        self.0.write_all(&frame).await.expect("it reads");
    }

    async fn hears(&mut self, class: u16, method: u16) {
        let (heard_class, heard_method, _) = self.next().await;
        assert_eq!((heard_class, heard_method), (class, method));
    }

    /// The class and the method of the next frame, with the arguments.
    async fn next(&mut self) -> (u16, u16, Vec<u8>) {
        let mut start = [0; 7];
        self.0.read_exact(&mut start).await.expect("a frame");
        let size = u32::from_be_bytes([start[3], start[4], start[5], start[6]]);
        let mut rest = vec![0; size as usize + 1];
        self.0.read_exact(&mut rest).await.expect("a frame");
        let number = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
        (number(0), number(2), rest[4..].to_vec())
    }
}

fn short(text: &str) -> Vec<u8> {
    let size = u8::try_from(text.len()).expect("it is short");
    [&[size], text.as_bytes()].concat()
}

fn long(text: &str) -> Vec<u8> {
    let size = u32::try_from(text.len()).expect("it is short");
    [&size.to_be_bytes(), text.as_bytes()].concat()
}
