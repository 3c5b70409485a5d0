package io.github.retryrmq.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.awaitility.Awaitility.await;

import java.time.Duration;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import java.util.stream.Stream;

import com.rabbitmq.client.AMQP.BasicProperties;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Workers and brokers are killed in the middle of their work; nothing may be lost. */
class FaultTest {

    private static final int MESSAGES = 150;

    static Stream<TestBroker> brokers() {
        return TestBroker.all();
    }

    private static String[] bodies() {
        return IntStream.range(0, MESSAGES).mapToObj(String::valueOf).toArray(String[]::new);
    }

    /** Waits until this many different messages are handled. */
    private static void awaitHandled(Program.Running worker, Set<String> handled, int count) throws InterruptedException {
        long deadline = System.nanoTime() + Duration.ofMinutes(3).toNanos();
        while (handled.size() < count) {
            String line = worker.lines().poll(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
            assertThat(line).as("%d of %d are handled", handled.size(), count).isNotNull();
            handled.add(line);
        }
    }

    private static void assertNothingIsLeft(TestBroker.Vhost vhost) {
        await().atMost(ListenerTest.PATIENCE).until(() -> vhost.depth("orders") == 0 && vhost.depth("orders.retry.300") == 0);
        assertThat(vhost.depth("orders.parked")).isZero();
    }

    /** With how many consumers, and how often killed: a crash of several consumers can count as often as there are consumers. */
    static Stream<Arguments> kills() {
        return TestBroker.all().flatMap(broker -> Stream.of(Arguments.of(broker, 1, 2), Arguments.of(broker, 4, 1)));
    }

    @ParameterizedTest
    @MethodSource("kills")
    void killedWorkersLoseNothing(TestBroker broker, int consumers, int kills) throws InterruptedException {
        try (TestBroker.Vhost vhost = broker.vhost()) {
            vhost.channel(channel -> channel.queueDeclare("orders", true, false, false, Retryrmq.workQueue("orders").getArguments()));
            vhost.publish("orders", new BasicProperties.Builder().deliveryMode(2).build(), bodies());
            Set<String> handled = new HashSet<>();
            for (int kill = 1; kill <= kills; kill++) {
                Program.Running worker = Program.Running.of(Worker.class, vhost.url(), String.valueOf(consumers));
                try {
                    awaitHandled(worker, handled, kill * MESSAGES / (kills + 2));
                } finally {
                    worker.kill();
                }
                // What it printed meanwhile is acknowledged, and comes to nobody else.
                worker.lines().drainTo(handled);
            }
            Program.Running last = Program.Running.of(Worker.class, vhost.url(), String.valueOf(consumers));
            try {
                awaitHandled(last, handled, MESSAGES);
                assertNothingIsLeft(vhost);
            } finally {
                last.kill();
            }
        }
    }

    @ParameterizedTest
    @MethodSource("brokers")
    void aKilledBrokerLosesNothing(TestBroker shared) throws InterruptedException {
        TestBroker broker = shared.spawn();
        try {
            TestBroker.Vhost vhost = broker.vhost();
            vhost.channel(channel -> channel.queueDeclare("orders", true, false, false, Retryrmq.workQueue("orders").getArguments()));
            Program.Running worker = Program.Running.of(Worker.class, vhost.url(), "1");
            try {
                Set<String> handled = new HashSet<>();
                vhost.publish("orders", new BasicProperties.Builder().deliveryMode(2).build(), bodies());
                awaitHandled(worker, handled, MESSAGES / 3);
                broker.kill();
                broker.start();
                awaitHandled(worker, handled, MESSAGES);
                assertNothingIsLeft(vhost);
            } finally {
                worker.kill();
            }
        } finally {
            broker.release();
        }
    }
}
