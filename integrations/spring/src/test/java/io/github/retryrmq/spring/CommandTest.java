package io.github.retryrmq.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.awaitility.Awaitility.await;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

import com.rabbitmq.client.AMQP.BasicProperties;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The command {@code retryrmq} and a listener of Spring share a queue. */
class CommandTest {

    static Stream<TestBroker> brokers() {
        return TestBroker.all();
    }

    private static String retryrmq(TestBroker.Vhost vhost, String... arguments) {
        String program = System.getenv("RETRYRMQ_COMMAND");
        Assumptions.assumeTrue(program != null && Files.isExecutable(Path.of(program)), "RETRYRMQ_COMMAND is not the command `retryrmq`");
        List<String> command = new ArrayList<>(List.of(program));
        command.addAll(List.of(arguments));
        return Program.run(command, Map.of("RETRYRMQ_URL", vhost.url()));
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void theCommandReadsAndReplaysWhatAListenerParked(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            try (var app = ListenerTest.start(vhost, ListenerTest.Orders.class, "retryrmq.retry=fixed(100ms, retries=1)")) {
                vhost.publish("orders", new BasicProperties.Builder().messageId("4711").build(), "fails");
                await().atMost(ListenerTest.PATIENCE).until(() -> vhost.depth("orders.parked") == 1);
                assertThat(retryrmq(vhost, "parked", "ls", "orders", "--json").lines().toList()).singleElement().asString()
                        .contains("\"message_id\":\"4711\"", "\"reason\":\"exhausted\"", "no answer from 10.0.0.7");
                assertThat(retryrmq(vhost, "parked", "show", "orders", "4711"))
                        .contains("exhausted", "by retryrmq", "attempts     2", "java.lang.IllegalStateException", "ListenerTest$Orders.handle")
                        .doesNotContainIgnoringCase("warn");
                List<String> seen = app.getBean(ListenerTest.Orders.class).seen;
                seen.clear();
                retryrmq(vhost, "parked", "replay", "orders", "4711");
                await().atMost(ListenerTest.PATIENCE).until(() -> vhost.depth("orders.parked") == 1 && seen.size() == 2);
                assertThat(seen).containsExactly("fails orders 0", "fails orders 1");
                assertThat(vhost.take("orders.parked").getProps().getHeaders()).containsEntry("x-retry-replays", 1L);
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void eachContinuesTheCountOfTheOther(TestBroker broker) {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.declare("orders", "quorum");
            vhost.publish("orders", new BasicProperties.Builder().messageId("4711").build(), "fails");
            String[] consume = {"consume", "orders", "--dlx", "--retry", "fixed(100ms, retries=5)", "--count", "1", "--"};
            String[] fails = Stream.concat(Stream.of(consume), Stream.of("false")).toArray(String[]::new);
            String[] tells = Stream.concat(Stream.of(consume), Stream.of("sh", "-c", "echo attempt $RETRYRMQ_ATTEMPT")).toArray(String[]::new);
            retryrmq(vhost, fails);
            // The delay is longer than this test, so that the command finds the message, and not the listener once more.
            try (var app = ListenerTest.start(vhost, ListenerTest.Orders.class, "retryrmq.retry=fixed(1h, retries=5)")) {
                List<String> seen = app.getBean(ListenerTest.Orders.class).seen;
                await().atMost(ListenerTest.PATIENCE).until(() -> vhost.depth("orders.retry.3600000") == 1);
                assertThat(seen).containsExactly("fails orders 1");
            }
            retryrmq(vhost, "waiting", "flush", "orders", "--retry", "fixed(1h)", "--all", "--yes");
            assertThat(retryrmq(vhost, tells)).contains("attempt 3");
        }
    }
}
