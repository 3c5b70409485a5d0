//! Just enough AMQP 0-9-1 to publish any bytes.

use super::{FRAME_MAX, Hostile, long, short, size};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use url::Url;

const DEADLINE: Duration = Duration::from_secs(120);
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const FRAME_END: u8 = 0xCE;

/// A connection with one channel that confirms what it publishes, byte for byte. It panics where the broker refuses.
pub struct RawPublisher {
    stream: TcpStream,
}

impl RawPublisher {
    /// Connects to an `amqp://` URL.
    pub fn connect(url: &str) -> Self {
        let url = Url::parse(url).expect("an amqp:// URL");
        let host = url.host_str().expect("the URL has a host").to_owned();
        let stream =
            TcpStream::connect((host, url.port().unwrap_or(5672))).expect("the broker answers");
        stream
            .set_read_timeout(Some(DEADLINE))
            .expect("a time-out can be set");
        stream
            .set_nodelay(true)
            .expect("sockets can be told not to wait");
        let mut publisher = RawPublisher { stream };
        publisher.open(&url);
        publisher
    }

    fn open(&mut self, url: &Url) {
        let [user, password, vhost] = [
            url.username(),
            url.password().unwrap_or_default(),
            url.path().trim_start_matches('/'),
        ]
        .map(|text| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>());
        let response = [&[0], &user[..], &[0], &password].concat();
        self.send(b"AMQP\0\0\x09\x01");
        self.expect(10, 10);
        let arguments = [long(b""), short(b"PLAIN"), long(&response), short(b"en_US")];
        self.method(0, 10, 11, &arguments.concat());
        let tune = self.expect(10, 30);
        let channel_max = &tune[..2];
        self.method(
            0,
            10,
            31,
            &[channel_max, &FRAME_MAX.to_be_bytes(), &[0, 0]].concat(),
        );
        self.method(0, 10, 40, &[&short(&vhost)[..], &[0, 0]].concat());
        self.expect(10, 41);
        self.method(1, 20, 10, &[0]);
        self.expect(20, 11);
        self.method(1, 85, 10, &[0]);
        self.expect(85, 11);
    }

    /// Publishes one of the ready-made messages into a queue and waits until the broker has it.
    pub fn publish(&mut self, message: &Hostile, queue: &str, body: &[u8]) {
        match &message.routing_key {
            None => self.publish_raw("", queue.as_bytes(), &message.properties, body),
            Some(routing_key) => {
                let names = [short(queue.as_bytes()), short(b"amq.fanout"), short(b"")].concat();
                self.method(1, 50, 20, &[&[0, 0], &names[..], &[0], &long(b"")].concat());
                self.expect(50, 21);
                self.publish_raw("amq.fanout", routing_key, &message.properties, body);
                self.method(1, 50, 50, &[&[0, 0], &names[..], &long(b"")].concat());
                self.expect(50, 51);
            }
        }
    }

    /// Publishes a message with this routing key and these property flags and properties, taken as they are, and
    /// waits until the broker has it.
    pub fn publish_raw(
        &mut self,
        exchange: &str,
        routing_key: &[u8],
        properties: &[u8],
        body: &[u8],
    ) {
        let names = [short(exchange.as_bytes()), short(routing_key)].concat();
        self.method(1, 60, 40, &[&[0, 0], &names[..], &[0]].concat());
        let body_size = (body.len() as u64).to_be_bytes();
        let class_and_weight = [0, 60, 0, 0];
        self.frame(
            HEADER,
            1,
            &[&class_and_weight, &body_size[..], properties].concat(),
        );
        for part in body.chunks(FRAME_MAX as usize - 8) {
            self.frame(BODY, 1, part);
        }
        self.expect(60, 80);
    }

    fn method(&mut self, channel: u16, class: u16, method: u16, arguments: &[u8]) {
        let id = [class.to_be_bytes(), method.to_be_bytes()].concat();
        self.frame(METHOD, channel, &[&id[..], arguments].concat());
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let channel = channel.to_be_bytes();
        self.send(&[&[kind][..], &channel, &size(payload), payload, &[FRAME_END]].concat());
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream
            .write_all(bytes)
            .expect("the broker takes what we send");
    }

    /// The arguments of the method that must come next.
    fn expect(&mut self, class: u16, method: u16) -> Vec<u8> {
        let wanted = [class.to_be_bytes(), method.to_be_bytes()].concat();
        loop {
            let mut head = [0; 7];
            self.stream
                .read_exact(&mut head)
                .expect("the broker answers");
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
            let mut payload = vec![0; size as usize + 1];
            self.stream
                .read_exact(&mut payload)
                .expect("the broker answers in whole frames");
            payload.pop();
            if head[0] == HEARTBEAT {
                continue;
            }
            assert!(
                payload.starts_with(&wanted),
                "the broker refuses: {}",
                String::from_utf8_lossy(&payload)
            );
            return payload.split_off(wanted.len());
        }
    }
}
