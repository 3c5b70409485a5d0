//! A real mail server on loopback, as small as SMTP (RFC 5321) allows.

use std::sync::{Arc, Mutex};

use retryrmq_harness::eventually;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::DEADLINE;

#[derive(Clone)]
pub(crate) struct MailServer {
    pub(crate) port: u16,
    mails: Arc<Mutex<Vec<Mail>>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Mail {
    pub(crate) login: Option<String>,
    pub(crate) to: Vec<String>,
    pub(crate) text: String,
}

impl MailServer {
    /// Refuses the first so many recipients for a while (451).
    pub(crate) async fn start(busy: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mails = Arc::new(Mutex::default());
        let busy = Arc::new(Mutex::new(busy));
        let server = Self { port, mails };
        let taking = server.clone();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(taking.clone().serve(socket, Arc::clone(&busy)));
            }
        });
        server
    }

    async fn serve(self, socket: TcpStream, busy: Arc<Mutex<usize>>) {
        let mut socket = BufReader::new(socket);
        let _ = socket.write_all(b"220 here\r\n").await;
        let mut mail = Mail::default();
        let mut line = String::new();
        loop {
            line.clear();
            if !socket.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                return;
            }
            let word = line
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_uppercase();
            let answer = match word.as_str() {
                "EHLO" => "250-here\r\n250-8BITMIME\r\n250 AUTH PLAIN\r\n",
                "AUTH" => {
                    mail.login = line.split_whitespace().nth(2).map(str::to_owned);
                    "235 welcome\r\n"
                }
                "MAIL" | "NOOP" | "RSET" => "250 fine\r\n",
                "RCPT" => {
                    let is_busy = {
                        let mut busy = busy.lock().unwrap();
                        let is_busy = *busy > 0;
                        *busy = busy.saturating_sub(1);
                        is_busy
                    };
                    match is_busy {
                        true => "451 later\r\n",
                        false => {
                            mail.to.push(line.trim().to_owned());
                            "250 fine\r\n"
                        }
                    }
                }
                "DATA" => {
                    let _ = socket.write_all(b"354 go on\r\n").await;
                    loop {
                        line.clear();
                        socket.read_line(&mut line).await.unwrap();
                        if line == ".\r\n" {
                            break;
                        }
                        mail.text.push_str(line.strip_prefix('.').unwrap_or(&line));
                    }
                    self.mails.lock().unwrap().push(std::mem::take(&mut mail));
                    "250 taken\r\n"
                }
                "QUIT" => "221 bye\r\n",
                _ => "502 what?\r\n",
            };
            if socket.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// Waits until there are so many mails.
    pub(crate) async fn after(&self, count: usize) -> Vec<Mail> {
        eventually(DEADLINE, "the mails are there", || async {
            let mails = self.mails.lock().unwrap().clone();
            (mails.len() >= count).then_some(mails)
        })
        .await
    }
}
