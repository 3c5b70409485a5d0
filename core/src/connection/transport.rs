//! Our own socket below lapin: plain or TLS, guarded against hostile frames, and breakable from outside.
//!
//! ```text
//! socket ─► TLS ─► sanitiser ─► lapin's parser
//! ```

use std::{
    io,
    net::{Shutdown, SocketAddr},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use amq_protocol::{
    frame::{AMQPFrame, parse_frame},
    protocol::{AMQPClass, connection::AMQPMethod},
};
use async_rs::{
    Runtime, Tokio,
    traits::{Executor, Reactor, RuntimeKit},
    util::Task,
};
use futures_util::Stream;
use lapin::types::FieldTable;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, lookup_host},
    sync::watch,
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use super::{
    Address,
    limits::FRAME_MAX,
    log_redaction::LogRedaction,
    sanitiser::{RepairLog, Sanitiser},
    tls, wakeup_batch,
};
use crate::{Error, ErrorKind, Result};

/// A socket, with TLS if the URL says so.
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(socket) => Pin::new(socket).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Tls(socket) => Pin::new(socket).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            Self::Tls(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(socket) => socket.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}

/// The stream that lapin reads and writes.
pub(super) struct GuardedStream {
    socket: Socket,
    sanitiser: Sanitiser,
    greeting: Greeting,
    /// Dropped with the stream, when lapin's I/O loop ends for any reason.
    _alive: watch::Sender<()>,
}

/// What we keep while lapin owns the stream.
pub(super) struct SocketHandle {
    socket: std::net::TcpStream,
    /// Whether we have closed it.
    pub(super) is_cut: Arc<AtomicBool>,
    gone: watch::Receiver<()>,
    pub(super) mended: Arc<RepairLog>,
    server: Arc<OnceLock<FieldTable>>,
}

impl SocketHandle {
    /// Closes the socket. Unlike AMQP's close, this cannot hang on a stalled or blocked connection.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        // An error means that the socket is already closed.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Resolves when lapin has dropped the stream.
    pub(super) async fn gone(&self) {
        let mut gone = self.gone.clone();
        while gone.changed().await.is_ok() {}
    }

    /// Whether lapin has dropped the stream.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.has_changed().is_err()
    }

    /// What the server said about itself in `connection.start`.
    pub(super) fn server(&self) -> Option<&FieldTable> {
        self.server.get()
    }
}

/// Every IP address of the host's name, in random order.
///
/// # Errors
/// [`ErrorKind::Unreachable`] or [`ErrorKind::Timeout`].
pub(super) async fn resolve(address: &Address) -> Result<Vec<SocketAddr>> {
    let found = lookup_host((address.host.as_str(), address.port));
    let found = timeout(address.timeout, found)
        .await
        .map_err(|_| late(address, address.timeout))?;
    let mut resolver: Vec<_> = found.map_err(|why| unreachable(address, why))?.collect();
    fastrand::shuffle(&mut resolver);
    if resolver.is_empty() {
        return Err(unreachable(address, io::ErrorKind::NotFound.into()));
    }
    Ok(resolver)
}

fn unreachable(address: &Address, why: io::Error) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "no broker answers at {} ({why}); check host and port, and that RabbitMQ runs",
            address.authority()
        ),
    )
    .with_source(why)
}

fn late(address: &Address, time_limit: Duration) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!(
            "no answer from {} within {} ms while connecting",
            address.authority(),
            time_limit.as_millis()
        ),
    )
}

/// Opens a socket within this time. Also returns a handle to hang up with.
///
/// # Errors
/// [`ErrorKind::Unreachable`], [`ErrorKind::Timeout`] or [`ErrorKind::TlsFailed`].
pub(super) async fn dial(
    address: &Address,
    place: SocketAddr,
    time_limit: Duration,
) -> Result<(Socket, std::net::TcpStream)> {
    // First: a file that cannot be read does not mean that the host does not answer.
    let config = match address.tls {
        true => Some(tls::config(address).await?),
        false => None,
    };
    let opened = timeout(time_limit, async {
        let stream = TcpStream::connect(place)
            .await
            .map_err(|why| unreachable(address, why))?;
        let (stream, socket_handle) = duplicate(stream).map_err(|why| {
            Error::new(
                ErrorKind::Unreachable,
                format!("cannot use the socket to {}", address.authority()),
            )
            .with_source(why)
        })?;
        let socket = match config {
            Some(config) => Socket::Tls(Box::new(tls::handshake(address, config, stream).await?)),
            None => Socket::Plain(stream),
        };
        Ok((socket, socket_handle))
    });
    opened.await.map_err(|_| late(address, time_limit))?
}

/// Opens the socket of a connection of lapin within this time.
///
/// # Errors
/// Those of [`dial`].
pub(super) async fn open(
    address: &Address,
    place: SocketAddr,
    time_limit: Duration,
) -> Result<(GuardedStream, SocketHandle)> {
    let (socket, socket_handle) = dial(address, place, time_limit).await?;
    let (alive, gone) = watch::channel(());
    let sanitiser = Sanitiser::new(FRAME_MAX);
    let greeting = Greeting::default();
    let socket_handle = SocketHandle {
        socket: socket_handle,
        is_cut: Arc::default(),
        gone,
        mended: Arc::clone(sanitiser.log()),
        server: Arc::clone(&greeting.server),
    };
    Ok((
        GuardedStream {
            socket,
            sanitiser,
            greeting,
            _alive: alive,
        },
        socket_handle,
    ))
}

fn duplicate(stream: TcpStream) -> io::Result<(TcpStream, std::net::TcpStream)> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let socket_handle = stream.try_clone()?;
    Ok((TcpStream::from_std(stream)?, socket_handle))
}

/// Reads the server's properties from the first frame; lapin does not keep them.
#[derive(Default)]
struct Greeting {
    bytes: Vec<u8>,
    server: Arc<OnceLock<FieldTable>>,
    done: bool,
}

impl Greeting {
    fn see(&mut self, bytes: &[u8]) {
        if self.done {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        match parse_frame(self.bytes.as_slice()) {
            Ok((_, AMQPFrame::Method(_, AMQPClass::Connection(AMQPMethod::Start(start))))) => {
                let _ = self.server.set(start.server_properties);
                self.done = true;
            }
            Err(why) if why.is_incomplete() && self.bytes.len() < FRAME_MAX as usize => return,
            _ => self.done = true,
        }
        self.bytes = Vec::new();
    }
}

impl Drop for GuardedStream {
    fn drop(&mut self) {
        wakeup_batch::end();
    }
}

impl futures_io::AsyncRead for GuardedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Self {
            socket,
            sanitiser,
            greeting,
            ..
        } = self.get_mut();
        let read = sanitiser.read(buf, |room| {
            let mut read = ReadBuf::new(room);
            ready!(Pin::new(&mut *socket).poll_read(cx, &mut read))?;
            Poll::Ready(Ok(read.filled().len()))
        });
        match &read {
            Poll::Ready(Ok(size)) if *size > 0 => {
                greeting.see(&buf[..*size]);
                wakeup_batch::begin();
            }
            // lapin is still handling what it has read. It must come here once more before it sleeps, see `poll_flush`.
            Poll::Pending if wakeup_batch::is_under_way() => cx.waker().wake_by_ref(),
            _ => {}
        }
        read
    }
}

impl futures_io::AsyncWrite for GuardedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, bufs)
    }

    /// lapin calls this first in every round of its loop, when everything that it had read is handled.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        wakeup_batch::end();
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    /// lapin's thread waits for this after it has given up a silent peer. It must not wait: TLS sends a last record, and a peer that has
    /// stopped reading never takes it. Then the connection would be neither used nor re-made.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        wakeup_batch::end();
        match &mut self.get_mut().socket {
            Socket::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Socket::Tls(socket) => match Pin::new(socket).poll_shutdown(cx) {
                // The stream is dropped without it, which closes the connection as well.
                Poll::Pending => Poll::Ready(Ok(())),
                ended => ended,
            },
        }
    }
}

/// lapin's runtime, with our stream instead of its own. It is bound to a handle: lapin's default takes the current runtime, and panics if
/// there is none.
#[derive(Clone, Debug)]
pub(super) struct LapinRuntime {
    tokio: Tokio,
    log_redaction: LogRedaction,
}

impl LapinRuntime {
    pub(super) fn runtime(
        handle: tokio::runtime::Handle,
        log_redaction: LogRedaction,
    ) -> Runtime<Self> {
        Runtime::new(Self {
            tokio: Tokio::default().with_handle(handle),
            log_redaction,
        })
    }
}

impl RuntimeKit for LapinRuntime {}

impl Executor for LapinRuntime {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, f: F) -> T {
        self.tokio.block_on(f)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        f: F,
    ) -> Task<Self::Task<T>> {
        self.tokio.spawn(self.log_redaction.clone().of(f))
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        f: F,
    ) -> Task<Self::Task<T>> {
        self.tokio.spawn_blocking(f)
    }
}

/// [`open`] opens sockets, before lapin is asked for anything.
fn not_here() -> io::Error {
    io::Error::from(io::ErrorKind::Unsupported)
}

impl Reactor for LapinRuntime {
    type TcpStream = GuardedStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _socket: H,
    ) -> io::Result<impl futures_io::AsyncRead + futures_io::AsyncWrite + Send + Unpin + 'static>
    {
        Err::<GuardedStream, _>(not_here())
    }

    fn sleep(&self, dur: Duration) -> Self::Sleep {
        self.tokio.sleep(dur)
    }

    fn interval(&self, dur: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(dur)
    }

    fn tcp_connect_addr(
        &self,
        _addr: SocketAddr,
    ) -> impl Future<Output = io::Result<GuardedStream>> + Send + 'static {
        std::future::ready(Err(not_here()))
    }
}
