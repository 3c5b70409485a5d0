//! Ports of this machine at which nobody listens.

use tokio::net::TcpSocket;

/// A port of 127.0.0.1 that refuses connections until the test, or a program that it starts, listens there.
///
/// It stays bound for as long as this process lives, so that the system gives it to nobody else. Who listens there has to allow that, with
/// `SO_REUSEADDR`, as servers do.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("it may be shared");
    let any = ([127, 0, 0, 1], 0).into();
    socket.bind(any).expect("a port is free");
    let port = socket.local_addr().expect("it is bound").port();
    std::mem::forget(socket);
    port
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::free_port;

    #[test]
    fn it_refuses_until_somebody_listens_and_again_afterwards() {
        let port = free_port();
        for _ in 0..3 {
            let at = ("127.0.0.1", port);
            assert!(TcpStream::connect(at).is_err());
            let listener = TcpListener::bind(at).unwrap();
            TcpStream::connect(at).unwrap();
            drop(listener);
        }
    }

    #[test]
    fn it_is_given_to_nobody_else() {
        let ports: std::collections::BTreeSet<_> = (0..500).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 500);
        for _ in 0..500 {
            let other = TcpListener::bind("127.0.0.1:0").unwrap();
            assert!(!ports.contains(&other.local_addr().unwrap().port()));
        }
    }
}
