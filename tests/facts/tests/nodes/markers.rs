//! What is left of a marker that is bound and deleted at the same moment.

use retryrmq_facts::*;
use retryrmq_harness::{Broker, QueueType, Version, on_brokers_where};

/// Fact 96. One client sets a marker while another looks for it: the broker finds the exchange, the other deletes it, and the broker binds.
#[tokio::test]
async fn a_marker_that_is_deleted_while_it_is_bound_costs_no_virtual_host() {
    let newest = |broker: &Broker| broker.is_controllable() && broker.version() >= Version::V4_3;
    on_brokers_where(newest, |broker| async move {
        let node = broker.own_node(&[]).await;
        let vhost = node.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("marked", QueueType::Quorum).await;
        declare_marker(&amqp, "marked").await.unwrap();
        let bind = format!(
            "[X, Q] = [rabbit_misc:r(<<\"{}\">>, Kind, <<\"marked\">>) || Kind <- [exchange, queue]], \
             Between = fun(_, _) -> ok = rabbit_exchange:delete(X, true, <<\"test\">>) end, \
             rabbit_db_binding:create(rabbit_binding:new(X, <<>>, Q, []), Between).",
            vhost.name()
        );
        assert_eq!(node.ctl(&["eval", &bind]).await.trim(), "ok");
        // The exchange is gone, and the binding is not.
        assert_eq!(code(look_for_marker(&amqp, "marked").await), 404);
        declare_marker(&amqp, "marked").await.unwrap();
        assert_eq!(code(delete_unbound_marker(&amqp, "marked").await), 406);
        node.kill().await;
        node.start().await;
        let amqp = vhost.connect().await;
        assert_eq!(code(delete_unbound_marker(&amqp, "marked").await), 406);
        amqp.delete("marked").await;
        delete_unbound_marker(&amqp, "marked").await.unwrap();
    })
    .await;
}
