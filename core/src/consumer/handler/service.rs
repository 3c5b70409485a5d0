//! Handlers that are services of `tower`.

use tower::{Service, util::Oneshot};

/// Makes a handler of a [`tower::Service`], so that layers can surround it. Needs the cargo feature `tower`.
///
/// Each attempt calls a clone of the service as soon as it is ready. What the service returns is the handler's answer: `Result<(), E>`. The
/// boxed error of tower's own layers is judged by what is inside: a [`Signal`](crate::Signal) passes through them, and the error of
/// `tower::timeout` has the names `Elapsed` and `TimeoutError` for rules. A service of `Vec<Message>` handles batches
/// ([`start_batches`](crate::Consumer::start_batches)).
///
/// A message whose service is not ready waits like one whose handler runs: limits such as `tower::limit::ConcurrencyLimit` hold it, and
/// [`handler_timeout`](crate::Consumer::handler_timeout) includes that.
///
/// ```no_run
/// use std::time::Duration;
///
/// use retryrmq::{Message, service};
/// use tower::{BoxError, ServiceBuilder};
///
/// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
/// let orders = ServiceBuilder::new()
///     .timeout(Duration::from_secs(10))
///     .service_fn(|order: Message| async move {
///         println!("{}", String::from_utf8_lossy(order.body()));
///         Ok::<(), BoxError>(())
///     });
/// rmq.consumer("orders").dlx(true).start(service(orders)).await?;
/// # Ok(())
/// # }
/// ```
pub fn service<S, M>(service: S) -> impl Fn(M) -> Oneshot<S, M> + Send + Sync + use<S, M>
where
    S: Service<M> + Clone + Send + Sync,
{
    move |given| Oneshot::new(service.clone(), given)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use tower::{BoxError, Layer, ServiceBuilder, service_fn};

    use super::*;
    use crate::{
        Consumer, Message, Publish, Simulation, Step, Trial,
        consumer::handler::{park, retry_after},
        retry::{ParkReason, headers},
    };

    async fn tried<S>(consumer: Consumer, of: S) -> Vec<Trial>
    where
        S: Service<Message, Response = (), Error = BoxError> + Clone + Send + Sync,
    {
        let mut simulation = Simulation::new(consumer.dlx(true)).unwrap();
        let order = Publish::to_queue("orders", "7");
        simulation.publish(order).unwrap();
        simulation.run(service(of)).await
    }

    /// A layer that counts.
    #[derive(Clone, Default)]
    struct Count(Arc<AtomicUsize>);

    impl<S> Layer<S> for Count {
        type Service = Counting<S>;

        fn layer(&self, inner: S) -> Counting<S> {
            let calls = Arc::clone(&self.0);
            Counting { inner, calls }
        }
    }

    #[derive(Clone)]
    struct Counting<S> {
        inner: S,
        calls: Arc<AtomicUsize>,
    }

    impl<S: Service<Message>> Service<Message> for Counting<S> {
        type Response = S::Response;
        type Error = S::Error;
        type Future = S::Future;

        fn poll_ready(
            &mut self,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), S::Error>> {
            self.inner.poll_ready(context)
        }

        fn call(&mut self, message: Message) -> S::Future {
            self.calls.fetch_add(1, Ordering::SeqCst);
            self.inner.call(message)
        }
    }

    #[tokio::test]
    async fn signals_and_errors_pass_through_layers() {
        let count = Count::default();
        let handler = ServiceBuilder::new()
            .layer(count.clone())
            .concurrency_limit(1)
            .timeout(Duration::from_secs(3_600))
            .service_fn(|message: Message| async move {
                match message.attempt() {
                    1 => Err(BoxError::from("no answer")),
                    2 => Err(retry_after(Duration::from_secs(77), "busy").into()),
                    _ => Err(park("junk").into()),
                }
            });
        let trials = tried(Consumer::new("orders"), handler).await;
        assert_eq!(count.0.load(Ordering::SeqCst), 3);
        assert!(matches!(trials[0].step, Step::Retried { .. }));
        assert!(matches!(trials[1].step, Step::Retried { delay, .. } if delay.as_secs() == 77));
        assert!(
            matches!(&trials[2].step, Step::Parked { reason, .. } if *reason == ParkReason::Requested)
        );
    }

    #[tokio::test]
    async fn a_timeout_of_a_layer_is_a_timeout_for_rules() {
        let rule = "error=TimeoutError => fixed(7s, retries=1)"
            .parse()
            .unwrap();
        let handler = ServiceBuilder::new()
            .timeout(Duration::from_millis(1))
            .service(service_fn(|_: Message| {
                std::future::pending::<Result<(), BoxError>>()
            }));
        let trials = tried(Consumer::new("orders").rules([rule]), handler).await;
        assert!(
            matches!(trials[0].step, Step::Retried { delay, .. } if delay.as_secs() == 7),
            "{:?}",
            trials[0].step
        );
        let Step::Parked { message, .. } = &trials[1].step else {
            panic!("{:?}", trials[1].step)
        };
        let error_type = headers::string(message.headers().unwrap(), "x-retry-error-type");
        assert_eq!(error_type.as_deref(), Some("Elapsed"));
    }
}
