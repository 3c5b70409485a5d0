package io.github.retryrmq.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.awaitility.Awaitility.await;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;
import java.util.stream.Stream;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.GetResponse;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.ConnectionFactory;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.support.AmqpHeaders;
import org.springframework.amqp.support.postprocessor.GUnzipPostProcessor;
import org.springframework.amqp.support.postprocessor.GZipPostProcessor;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.env.MapPropertySource;
import org.springframework.messaging.handler.annotation.Header;

/** Applications of Spring Boot with listeners, on real brokers. */
class ListenerTest {

    static final Duration PATIENCE = Duration.ofMinutes(2);
    /** Two messages, as Spring's batching strategy writes them. */
    private static final String BATCH = "\0\0\0\5seven\0\0\0\5eight";

    static Stream<TestBroker> brokers() {
        return TestBroker.all();
    }

    /** Every kind of container with every type of queue. */
    static Stream<Arguments> cells() {
        return TestBroker.all().flatMap(broker -> Stream.of("simple", "direct").flatMap(kind -> Stream.of("classic", "quorum")
                .map(type -> Arguments.of(broker, kind, type))));
    }

    static ConfigurableApplicationContext start(TestBroker.Vhost vhost, Class<?> listeners, String... properties) {
        List<String> all = new ArrayList<>(List.of("spring.rabbitmq.addresses=" + vhost.url(), "retryrmq.dlx=true", "spring.main.banner-mode=off",
                "spring.rabbitmq.listener.simple.prefetch=8", "spring.rabbitmq.listener.direct.prefetch=8"));
        all.addAll(List.of(properties));
        return new SpringApplicationBuilder(listeners).web(WebApplicationType.NONE).properties(all.toArray(String[]::new)).run();
    }

    private static BasicProperties id(String id) {
        return new BasicProperties.Builder().messageId(id).deliveryMode(2).build();
    }

    private static String header(GetResponse message, String name) {
        return String.valueOf(message.getProps().getHeaders().get(name));
    }

    private static GetResponse parked(TestBroker.Vhost vhost) {
        await().atMost(PATIENCE).until(() -> vhost.depth("orders.parked") > 0);
        return vhost.take("orders.parked");
    }

    /** Fails as its body says, and writes down what it saw. */
    @Configuration
    @EnableAutoConfiguration
    static class Orders {
        final List<String> seen = new CopyOnWriteArrayList<>();

        @RabbitListener(queues = "orders")
        void handle(String body, @Header(AmqpHeaders.RECEIVED_ROUTING_KEY) String key,
                @Header(name = AmqpHeaders.RETRY_COUNT, required = false) Long retries) {
            seen.add(body + " " + key + " " + retries);
            switch (body) {
                case "fails" -> throw new IllegalStateException("no answer from 10.0.0.7");
                case "parks" -> throw new Park("no such customer");
                case "fatal" -> throw new ClassCastException("it never was one");
                case "once" -> {
                    if (retries == null || retries == 0) {
                        throw new RetryAfter(Duration.ofMillis(150), "later");
                    }
                }
                case "defers" -> {
                    if (seen.stream().filter(line -> line.startsWith(body)).count() == 1) {
                        throw new Defer(Duration.ofMillis(150));
                    }
                }
                default -> { }
            }
        }
    }

    @ParameterizedTest
    @MethodSource("cells")
    void aMessageThatKeepsFailingIsRetriedAndParkedWithItsRecord(TestBroker broker, String kind, String type) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", type);
            try (ConfigurableApplicationContext app = start(vhost, Orders.class, "retryrmq.retry=fixed(100ms, retries=2)",
                    "retryrmq.app-version=7.1", "spring.rabbitmq.listener.type=" + kind)) {
                vhost.publish("orders", id("4711"), "fails");
                GetResponse parked = parked(vhost);
                assertThat(app.getBean(Orders.class).seen).containsExactly("fails orders 0", "fails orders 1", "fails orders 2");
                assertThat(header(parked, "x-retry-parked-reason")).isEqualTo("exhausted");
                assertThat(header(parked, "x-retry-count")).isEqualTo("2");
                assertThat(header(parked, "x-retry-error")).isEqualTo("no answer from 10.0.0.7");
                assertThat(header(parked, "x-retry-error-type")).isEqualTo("java.lang.IllegalStateException");
                assertThat(header(parked, "x-retry-fingerprint"))
                        .isEqualTo(Failure.fingerprint("java.lang.IllegalStateException", "no answer from 10.0.0.7"));
                assertThat(header(parked, "x-retry-error-stack")).contains("ListenerTest$Orders.handle");
                assertThat((List<?>) parked.getProps().getHeaders().get("x-retry-history")).hasSize(3);
                assertThat(header(parked, "x-retry-history")).contains("app-version=7.1");
                assertThat(parked.getProps().getMessageId()).isEqualTo("4711");
                assertThat(parked.getProps().getContentType()).isNull();
                assertThat(vhost.depth("orders")).isZero();
                assertThat(vhost.depth("orders.retry.100")).isZero();
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void signalsChooseWhatFollows(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (ConfigurableApplicationContext app = start(vhost, Orders.class, "retryrmq.retry=fixed(1h)")) {
                vhost.publish("orders", id("1"), "once", "defers");
                List<String> seen = app.getBean(Orders.class).seen;
                await().atMost(PATIENCE).until(() -> seen.containsAll(List.of("once orders 1")) && seen.size() == 4);
                assertThat(seen).containsExactlyInAnyOrder("once orders 0", "once orders 1", "defers orders 0", "defers orders 0");
                vhost.publish("orders", id("2"), "parks");
                GetResponse requested = parked(vhost);
                assertThat(List.of(header(requested, "x-retry-parked-reason"), header(requested, "x-retry-error")))
                        .containsExactly("requested", "no such customer");
                assertThat(requested.getProps().getHeaders()).doesNotContainKey("x-retry-error-type");
                vhost.publish("orders", id("3"), "fatal");
                assertThat(header(parked(vhost), "x-retry-parked-reason")).isEqualTo("fatal");
            }
        }
    }

    /** The body is JSON of another shape. */
    @Configuration
    @EnableAutoConfiguration
    static class Typed {
        record Order(int id) {
        }

        @Bean
        org.springframework.amqp.support.converter.JacksonJsonMessageConverter converter() {
            return new org.springframework.amqp.support.converter.JacksonJsonMessageConverter();
        }

        @RabbitListener(queues = "orders")
        String handle(Order order) {
            if (order.id == 1) {
                throw new IllegalStateException("the first one fails");
            }
            return "order " + order.id;
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void aBodyThatCannotBeReadIsParkedAndARequestIsAnswered(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (ConfigurableApplicationContext app = start(vhost, Typed.class, "retryrmq.retry=fixed(100ms, retries=1)")) {
                BasicProperties json = new BasicProperties.Builder().contentType("application/json").build();
                vhost.publish("orders", json, "{not json");
                assertThat(header(parked(vhost), "x-retry-parked-reason")).isEqualTo("undecodable");
                RabbitTemplate template = app.getBean(RabbitTemplate.class);
                template.setReplyTimeout(PATIENCE.toMillis());
                assertThat(template.convertSendAndReceive("", "orders", new Typed.Order(7))).isEqualTo("order 7");
                vhost.publish("orders", json, "{\"id\": 1}");
                assertThat(header(parked(vhost), "x-retry-parked-reason")).isEqualTo("exhausted");
            }
        }
    }

    /** Fails once, with a body that post-processors have unpacked. */
    @Configuration
    @EnableAutoConfiguration
    static class Zipped {
        final List<String> seen = new CopyOnWriteArrayList<>();

        @Bean
        org.springframework.amqp.rabbit.config.ContainerCustomizer<SimpleMessageListenerContainer> unzip() {
            return container -> container.setAfterReceivePostProcessors(new GUnzipPostProcessor());
        }

        @Bean
        org.springframework.amqp.rabbit.config.ContainerCustomizer<DirectMessageListenerContainer> unzipDirect() {
            return container -> container.setAfterReceivePostProcessors(new GUnzipPostProcessor());
        }

        @RabbitListener(queues = "orders")
        void handle(Message message) {
            seen.add(new String(message.getBody(), StandardCharsets.UTF_8));
            if (seen.size() == 1) {
                throw new IllegalStateException("once");
            }
            if (seen.get(seen.size() - 1).equals("overflows")) {
                overflow();
            }
        }

        private static int overflow() {
            return overflow() + 1;
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void theCopyIsWhatThePublisherSentAndTheUsersCustomizerIsKept(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (ConfigurableApplicationContext app = start(vhost, Zipped.class, "retryrmq.retry=fixed(100ms, retries=1)")) {
                RabbitTemplate template = app.getBean(RabbitTemplate.class);
                template.setBeforePublishPostProcessors(new GZipPostProcessor());
                template.convertAndSend("", "orders", "order 7");
                List<String> seen = app.getBean(Zipped.class).seen;
                await().atMost(PATIENCE).until(() -> seen.size() == 2);
                assertThat(seen).containsExactly("order 7", "order 7");
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void aPartOfACompressedBatchIsRetriedAsItWasUnpacked(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (ConfigurableApplicationContext app = start(vhost, Zipped.class, "retryrmq.retry=fixed(100ms, retries=1)")) {
                RabbitTemplate template = app.getBean(RabbitTemplate.class);
                template.setBeforePublishPostProcessors(new GZipPostProcessor());
                template.convertAndSend("", "orders", BATCH, message -> {
                    message.getMessageProperties().setHeader("springBatchFormat", "lengthHeader4");
                    return message;
                });
                List<String> seen = app.getBean(Zipped.class).seen;
                await().atMost(PATIENCE).until(() -> seen.size() == 3);
                assertThat(seen).containsExactly("seven", "eight", "seven");
                await().atMost(PATIENCE).until(() -> vhost.depth("orders.retry.100") == 0);
                assertThat(vhost.depth("orders.parked")).isZero();
            }
        }
    }

    /** Its copies are not stored, because their thread is interrupted. Its error handler rejects everything. */
    @Configuration
    @EnableAutoConfiguration
    static class Interrupted {
        final List<Boolean> redelivered = new CopyOnWriteArrayList<>();

        @Bean
        org.springframework.amqp.rabbit.config.ContainerCustomizer<DirectMessageListenerContainer> rejecting() {
            return container -> container.setErrorHandler(thrown -> {
                throw new AmqpRejectAndDontRequeueException("rejected by the error handler", thrown);
            });
        }

        @RabbitListener(queues = "orders")
        void handle(Message message) {
            redelivered.add(message.getMessageProperties().isRedelivered());
            if (!message.getMessageProperties().isRedelivered()) {
                Thread.currentThread().interrupt();
                throw new IllegalStateException("fails until it is redelivered");
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void noErrorHandlerHasAMessageRejectedThatWasNotCopied(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (ConfigurableApplicationContext app = start(vhost, Interrupted.class, "retryrmq.retry=fixed(10ms, retries=1000)",
                    "spring.rabbitmq.listener.type=direct")) {
                vhost.publish("orders", id("1"), "anything");
                await().atMost(PATIENCE).until(() -> app.getBean(Interrupted.class).redelivered.contains(true));
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void ofCachedConnectionsOneIsTakenForCopies(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (ConfigurableApplicationContext app = start(vhost, Orders.class, "retryrmq.retry=fixed(100ms, retries=20)",
                    "spring.rabbitmq.cache.connection.mode=connection", "spring.rabbitmq.cache.connection.size=5")) {
                vhost.publish("orders", id("1"), "fails");
                parked(vhost);
                var publishing = app.getBean(CachingConnectionFactory.class).getPublisherConnectionFactory();
                assertThat(((CachingConnectionFactory) publishing).getCacheProperties()).containsEntry("openConnections", "1");
            }
        }
    }

    /** What fails before the listener, with every kind of container. */
    @ParameterizedTest
    @MethodSource("cells")
    void whatCannotBeUnpackedIsParked(TestBroker broker, String kind, String type) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", type);
            try (ConfigurableApplicationContext app = start(vhost, Zipped.class, "retryrmq.retry=fixed(100ms, retries=1)",
                    "spring.rabbitmq.listener.type=" + kind)) {
                BasicProperties zipped = id("1").builder().contentEncoding("gzip").headers(Map.of("springAutoDecompress", true)).build();
                BasicProperties batch = id("2").builder().headers(Map.of("springBatchFormat", "lengthHeader4")).build();
                BasicProperties unknownMode = id("3").builder().deliveryMode(7).build();
                Map<String, BasicProperties> bodies = Map.of("not zipped", zipped, BATCH + "\0\0\1\0cut", batch, BATCH + "\0", batch, "seven", unknownMode);
                bodies.forEach((body, properties) -> {
                    vhost.publish("orders", properties, body);
                    GetResponse parked = parked(vhost);
                    assertThat(header(parked, "x-retry-parked-reason")).as(body).isEqualTo("undecodable");
                    assertThat(new String(parked.getBody(), StandardCharsets.UTF_8)).isEqualTo(body);
                    assertThat(parked.getProps().getContentEncoding()).isEqualTo(properties.getContentEncoding());
                });
                assertThat(app.getBean(Zipped.class).seen).isEmpty();
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void aStackThatOverflowsIsAnOrdinaryFailure(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (ConfigurableApplicationContext app = start(vhost, Zipped.class, "retryrmq.retry=fixed(100ms, retries=1)")) {
                vhost.publish("orders", id("1"), "overflows");
                GetResponse parked = parked(vhost);
                assertThat(header(parked, "x-retry-error-type")).isEqualTo("java.lang.StackOverflowError");
                assertThat(app.getBean(Zipped.class).seen).hasSize(2);
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void whatIsMadeForOneQueueDoesNotApplyToAnother(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (ConfigurableApplicationContext app = start(vhost, Orders.class, "retryrmq.dlx=false", "retryrmq.queues[orders].dlx=true",
                    "retryrmq.queues[orders].retry=list(100ms)", "retryrmq.queues[others].retry=nonsense")) {
                vhost.publish("orders", id("1"), "fails");
                assertThat(header(parked(vhost), "x-retry-count")).isEqualTo("1");
            }
            try (ConfigurableApplicationContext app = start(vhost, Orders.class, "retryrmq.dlx=false",
                    "spring.rabbitmq.listener.simple.default-requeue-rejected=false")) {
                vhost.publish("orders", id("2"), "fails");
                List<String> seen = app.getBean(Orders.class).seen;
                await().atMost(PATIENCE).until(() -> seen.size() == 1 && vhost.depth("orders") == 0);
                assertThat(vhost.depth("orders.parked")).isZero();
            }
        }
    }

    /** The one bean, without Spring Boot's properties, with a container that is a bean. */
    @Configuration
    static class WithoutBoot {
        final List<Long> seen = new CopyOnWriteArrayList<>();

        // ANCHOR: bean
        @Bean
        static Retryrmq retryrmq() {
            return new Retryrmq(new RetryOptions().retry("fixed(100ms, retries=1)"));
        }
        // ANCHOR_END: bean

        @Bean
        ConnectionFactory connections(@Value("${url}") String url) {
            return new org.springframework.amqp.rabbit.connection.CachingConnectionFactory(java.net.URI.create(url));
        }

        @Bean
        SimpleMessageListenerContainer container(ConnectionFactory connections) {
            SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(connections);
            container.setQueueNames("orders");
            container.setMessageListener(message -> {
                seen.add(message.getMessageProperties().getRetryCount());
                throw new IllegalStateException("always");
            });
            return container;
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void oneBeanIsEnoughWithoutBoot(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (var app = new org.springframework.context.annotation.AnnotationConfigApplicationContext()) {
                app.getEnvironment().getPropertySources().addFirst(new MapPropertySource("test", Map.of("url", vhost.url())));
                app.register(WithoutBoot.class);
                app.refresh();
                vhost.publish("orders", id("1"), "anything");
                assertThat(header(parked(vhost), "x-retry-parked-reason")).isEqualTo("exhausted");
                assertThat(app.getBean(WithoutBoot.class).seen).containsExactly(0L, 1L);
            }
        }
    }

    @Configuration
    @EnableAutoConfiguration
    static class Asynchronous {
        @RabbitListener(queues = "orders")
        CompletableFuture<String> handle(String body) {
            return CompletableFuture.completedFuture(body);
        }
    }

    @Configuration
    @EnableAutoConfiguration
    static class Batches {
        @RabbitListener(queues = "orders", batch = "true")
        void handle(List<String> bodies) {
        }
    }

    @Configuration
    @EnableAutoConfiguration
    static class OfAnotherWaitingQueue {
        @RabbitListener(queues = "orders.retry.1000")
        void handle(String body) {
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void whatCannotBeRetriedIsRefusedBeforeAnythingIsConsumed(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            Map<Consumer<String>, String> refused = Map.of(
                    it -> start(vhost, Asynchronous.class), "returns a future",
                    it -> start(vhost, Batches.class), "batches",
                    it -> start(vhost, Orders.class, "spring.rabbitmq.listener.simple.batch-size=5"), "batchSize",
                    it -> start(vhost, OfAnotherWaitingQueue.class), "named like a waiting or parking queue",
                    it -> start(vhost, Orders.class, "spring.rabbitmq.listener.simple.acknowledge-mode=manual"), "MANUAL",
                    it -> start(vhost, Orders.class, "spring.rabbitmq.listener.simple.acknowledge-mode=none"), "NONE",
                    it -> start(vhost, Orders.class, "retryrmq.retry=sometimes"), "cannot read the retry policy");
            refused.forEach((start, says) -> assertThatThrownBy(() -> start.accept("")).as(says)
                    .satisfies(it -> assertThat(Failure.chain(it)).anyMatch(each -> String.valueOf(each.getMessage()).contains(says))));
            assertThat(vhost.depth("orders.parked")).isEqualTo(-1);
        }
    }

    @Configuration
    @EnableAutoConfiguration
    static class Anonymous {
        @RabbitListener(queuesToDeclare = @org.springframework.amqp.rabbit.annotation.Queue)
        void handle(String body) {
        }
    }

    /** A container that gets its queues later. It is manual, which cannot be retried. */
    @Configuration
    @EnableAutoConfiguration
    static class Later {
        @Bean
        SimpleMessageListenerContainer container(ConnectionFactory connections) {
            SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(connections);
            container.setAcknowledgeMode(org.springframework.amqp.core.AcknowledgeMode.MANUAL);
            container.setMessageListener(message -> { });
            return container;
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void aContainerWithoutQueuesIsLeftAloneIfNothingIsRetried(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            assertThatThrownBy(() -> start(vhost, Later.class)).hasStackTraceContaining("MANUAL");
            try (ConfigurableApplicationContext app = start(vhost, Later.class, "retryrmq.dlx=false")) {
                assertThat(app.getBean(SimpleMessageListenerContainer.class).isRunning()).isTrue();
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void queuesThatLoseMessagesAreNotConsumed(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.channel(channel -> channel.queueDeclare("orders", true, false, true, Map.of()));
            assertNotConsumed(vhost, Orders.class, "`orders` is auto-delete");
            vhost.channel(channel -> channel.queueDelete("orders"));
            assertNotConsumed(vhost, Anonymous.class, "is exclusive");
            vhost.declare("orders", "classic");
            vhost.declare("orders.parked", "stream");
            assertNotConsumed(vhost, Orders.class, "`orders.parked` is a stream");
            vhost.channel(channel -> channel.queueDelete("orders.parked"));
            vhost.channel(channel -> channel.queueDeclare("orders.parked", true, false, true, Map.of()));
            assertNotConsumed(vhost, Orders.class, "`orders.parked` is auto-delete");
            assertThat(vhost.depth("orders.parked")).isZero();
        }
    }

    private static void assertNotConsumed(TestBroker.Vhost vhost, Class<?> listeners, String says) {
        assertThatThrownBy(() -> start(vhost, listeners, "spring.rabbitmq.listener.simple.missing-queues-fatal=true").close())
                .hasStackTraceContaining(says);
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void aStreamIsNotConsumed(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "stream");
            try (ConfigurableApplicationContext app = start(vhost, Orders.class, "spring.rabbitmq.listener.simple.missing-queues-fatal=true")) {
                assertThat(app).isNull();
            } catch (RuntimeException refused) {
                assertThat(Failure.chain(refused)).anyMatch(it -> String.valueOf(it.getMessage()).contains("is a stream"));
            }
            assertThat(vhost.depth("orders.parked")).isEqualTo(-1);
        }
    }
}
