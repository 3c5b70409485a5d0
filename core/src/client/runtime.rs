//! The library's own tokio runtime, for callers that have none: plain threads, and other languages.

use once_cell::race::OnceBox;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{Error, ErrorKind, Result};

/// One thread decides for all connections. lapin reads and writes in threads of its own, and handlers run elsewhere. A second thread would
/// only be woken for nothing at every message.
const THREADS: usize = 1;

/// The runtime of one process, linked to those of the processes forked from it. The parent's runtime is never dropped in a child: that
/// would wait for threads that the child does not have.
struct ProcessRuntime {
    pid: u32,
    runtime: Runtime,
    forked: OnceBox<ProcessRuntime>,
}

/// No lock: a fork could copy it locked, forever.
static OWN: OnceBox<ProcessRuntime> = OnceBox::new();

/// The library's own tokio runtime. It is made at the first call, with one worker thread. A forked process inherits no threads, so its
/// first call makes a new one. It is never shut down. Programs that have a tokio runtime do not need it.
///
/// ```no_run
/// let rmq = retryrmq::runtime()?.block_on(retryrmq::Client::connect("amqp://localhost"))?;
/// # Ok::<(), retryrmq::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Broker`] if the operating system cannot start a thread.
pub fn runtime() -> Result<Handle> {
    let pid = std::process::id();
    let mut own = OWN.get_or_try_init(|| make(pid))?;
    while own.pid != pid {
        own = own.forked.get_or_try_init(|| make(pid))?;
    }
    Ok(own.runtime.handle().clone())
}

fn make(pid: u32) -> Result<Box<ProcessRuntime>> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("retryrmq")
        .enable_all()
        .build()
        .map_err(|error| {
            Error::new(
                ErrorKind::Broker,
                "the system cannot start a thread; raise its limit of threads",
            )
            .with_source(error)
        })?;
    Ok(Box::new(ProcessRuntime {
        pid,
        runtime,
        forked: OnceBox::new(),
    }))
}

/// An error if this process was forked from the one with this `pid`.
pub(super) fn same_process(pid: u32) -> Result<()> {
    let own = std::process::id();
    if own == pid {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Forked,
        format!(
            "this client was connected by process {pid}, and process {own} was forked from it; connect after the fork, \
             in each process"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_for_everybody() {
        let ids: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| runtime().unwrap().id()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
    }

    #[test]
    fn another_process_is_refused_with_what_to_do() {
        assert!(same_process(std::process::id()).is_ok());
        let error = same_process(0).unwrap_err();
        assert_eq!(error.code(), "forked");
        assert!(error.to_string().contains("after the fork"), "{error}");
    }
}
