package io.github.retryrmq.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.awaitility.Awaitility.await;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Stream;

import com.rabbitmq.client.AMQP.BasicProperties;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.RabbitListenerEndpointRegistry;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;

/** A container with several consumers runs a message that crashes its consumers alone. */
class IsolationTest {

    private static final BasicProperties ORDINARY = new BasicProperties.Builder().deliveryMode(2).build();
    private static final BasicProperties SUSPECT = ORDINARY.builder().headers(Map.of("x-retry-protocol", 1, "x-retry-crashes", 3)).build();

    static Stream<Arguments> kinds() {
        return TestBroker.all().flatMap(broker -> Stream.of("simple", "direct").map(kind -> Arguments.of(broker, kind)));
    }

    @Configuration
    @EnableAutoConfiguration
    static class Orders {
        final List<String> seen = new CopyOnWriteArrayList<>();
        final CountDownLatch gate = new CountDownLatch(1);

        @RabbitListener(id = "both", queues = {"orders", "others"})
        void handle(String body) throws InterruptedException {
            seen.add(body);
            if (body.equals("waits")) {
                gate.await();
            }
        }
    }

    private static ConfigurableApplicationContext start(TestBroker.Vhost vhost, String kind) {
        vhost.declare("orders", "quorum");
        vhost.declare("others", "quorum");
        ConfigurableApplicationContext app = ListenerTest.start(vhost, Orders.class, "spring.rabbitmq.listener.type=" + kind,
                "spring.rabbitmq.listener.simple.concurrency=2", "spring.rabbitmq.listener.direct.consumers-per-queue=2");
        vhost.publish("orders", ORDINARY, "first");
        awaitConsumers(vhost, 2);
        return app;
    }

    private static AbstractMessageListenerContainer container(ConfigurableApplicationContext app) {
        return (AbstractMessageListenerContainer) app.getBean(RabbitListenerEndpointRegistry.class).getListenerContainer("both");
    }

    private static void awaitConsumers(TestBroker.Vhost vhost, long count) {
        await().atMost(ListenerTest.PATIENCE).until(() -> vhost.channel(channel -> channel.consumerCount("orders")) == count);
    }

    /** The other queue is empty, and the number of consumers is changed while the application runs. */
    @ParameterizedTest
    @MethodSource("kinds")
    void theConsumersOfAnEmptyQueueEndTooAndAllReturn(TestBroker broker, String kind) {
        try (TestBroker.Vhost vhost = broker.vhost(); ConfigurableApplicationContext app = start(vhost, kind)) {
            if (container(app) instanceof SimpleMessageListenerContainer simple) {
                simple.setConcurrentConsumers(3);
            } else if (container(app) instanceof DirectMessageListenerContainer direct) {
                direct.setConsumersPerQueue(3);
            }
            awaitConsumers(vhost, 3);
            vhost.publish("orders", SUSPECT, "suspect");
            List<String> seen = app.getBean(Orders.class).seen;
            await().atMost(ListenerTest.PATIENCE).until(() -> seen.contains("suspect"));
            awaitConsumers(vhost, 1);
            await().atMost(ListenerTest.PATIENCE).until(() -> {
                vhost.publish("orders", ORDINARY, "next");
                return vhost.channel(channel -> channel.consumerCount("orders")) == 3;
            });
        }
    }

    @ParameterizedTest
    @MethodSource("kinds")
    void whoStopsAContainerMeanwhileFindsItStopped(TestBroker broker, String kind) {
        try (TestBroker.Vhost vhost = broker.vhost(); ConfigurableApplicationContext app = start(vhost, kind)) {
            Orders orders = app.getBean(Orders.class);
            vhost.publish("others", ORDINARY, "waits");
            await().atMost(ListenerTest.PATIENCE).until(() -> orders.seen.contains("waits"));
            // The consumer that waits may have prefetched some of them.
            vhost.publish("orders", SUSPECT, "suspect", "suspect", "suspect", "suspect");
            await().atMost(ListenerTest.PATIENCE).until(() -> !container(app).isActive());
            container(app).stop();
            orders.gate.countDown();
            awaitConsumers(vhost, 0);
            await().atMost(ListenerTest.PATIENCE).during(Duration.ofSeconds(1)).until(() -> !container(app).isRunning());
            assertThat(orders.seen).doesNotContain("suspect");
        }
    }
}
