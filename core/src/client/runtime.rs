//! The process's own runtime, for callers that have none: threads, and other languages.

use once_cell::race::OnceBox;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{Error, ErrorKind, Result};

/// Threads that decide for all connections: lapin reads and writes in threads of its own, and handlers run elsewhere. With a
/// second one, every message wakes it up for nothing.
const THREADS: usize = 1;

/// A process's runtime, and those of the processes that were forked from it. What a parent made stays where it is: to
/// drop it would wait for threads that the child does not have.
struct Own {
    pid: u32,
    runtime: Runtime,
    forked: OnceBox<Own>,
}

/// Without a lock, which a fork could leave locked for ever.
static OWN: OnceBox<Own> = OnceBox::new();

/// The process's own runtime: made at the first call, and again at the first call after a fork, whose child inherits none
/// of its threads. Never shut down. Callers that have a tokio runtime do not need it.
///
/// ```no_run
/// let rmq = retryrmq::runtime()?.block_on(retryrmq::Client::connect("amqp://localhost"))?;
/// # Ok::<(), retryrmq::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Broker`] when the operating system gives no threads.
pub fn runtime() -> Result<Handle> {
    let pid = std::process::id();
    let mut own = OWN.get_or_try_init(|| make(pid))?;
    while own.pid != pid {
        own = own.forked.get_or_try_init(|| make(pid))?;
    }
    Ok(own.runtime.handle().clone())
}

fn make(pid: u32) -> Result<Box<Own>> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("retryrmq")
        .enable_all()
        .build()
        .map_err(|error| {
            Error::new(
                ErrorKind::Broker,
                "the operating system gives no threads for the connections",
            )
            .with_source(error)
        })?;
    Ok(Box::new(Own {
        pid,
        runtime,
        forked: OnceBox::new(),
    }))
}

/// Refuses what belongs to a process that this one was forked from.
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
