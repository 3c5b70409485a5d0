//! Ways to a broker that a test can shut, cut or silence.

use std::sync::{Arc, Mutex};

use retryrmq_harness::Vhost;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::connecting::host_and_port;

/// A way to a broker that can be shut for those who come, while those who are there stay.
pub(crate) struct GatedProxy(tokio::task::JoinHandle<()>);

impl GatedProxy {
    pub(crate) async fn open(port: u16, at: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        Self(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let Ok(mut broker) = TcpStream::connect(&at).await else {
                    return;
                };
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut broker).await;
                });
            }
        }))
    }

    pub(crate) async fn shut(self) {
        self.0.abort();
        let _ = self.0.await;
    }
}

/// The URL of a virtual host behind a door.
pub(crate) fn behind(vhost: &Vhost, port: u16) -> String {
    vhost.url().replacen(
        &host_and_port(vhost.broker()),
        &format!("127.0.0.1:{port}"),
        1,
    )
}

/// One connection through a door.
struct CutConnection {
    carrying: tokio::task::JoinHandle<()>,
    silence: watch::Sender<bool>,
}

/// A way to a broker, each connection on which can be cut by itself, or left open and silent.
#[derive(Default)]
pub(crate) struct CutProxies(Arc<Mutex<Vec<CutConnection>>>);

impl CutProxies {
    /// Until the task is ended, after which nobody else comes.
    pub(crate) async fn lead(&self, port: u16, at: String) -> tokio::task::JoinHandle<()> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let proxies = Arc::clone(&self.0);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut broker = TcpStream::connect(&at).await.unwrap();
                let (silence, mut silent) = watch::channel(false);
                let silenced = async move {
                    let _ = silent.wait_for(|silent| *silent).await.is_ok();
                    std::future::pending().await
                };
                let carrying = tokio::spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut stream, &mut broker) => {}
                        () = silenced => {}
                    }
                });
                proxies
                    .lock()
                    .unwrap()
                    .push(CutConnection { carrying, silence });
            }
        })
    }

    /// How many connections there have been.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn cut(&self, number: usize) {
        self.0.lock().unwrap()[number].carrying.abort();
    }

    pub(crate) fn silence(&self, number: usize) {
        self.0.lock().unwrap()[number].silence.send_replace(true);
    }
}

/// The connections of a client, in the order in which it opens them.
pub(crate) const CONSUMING: usize = 0;
pub(crate) const PUBLISHING: usize = 1;
