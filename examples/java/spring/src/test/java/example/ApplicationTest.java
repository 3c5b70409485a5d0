package example;

import static org.assertj.core.api.Assertions.assertThat;
import static org.awaitility.Awaitility.await;

import java.time.Duration;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;

/** The whole worker with a real broker: publish, and wait for what happens. Short delays keep the test quick. */
@SpringBootTest(properties = "retryrmq.retry=fixed(200ms, retries=2)")
@EnabledIfEnvironmentVariable(named = "RETRYRMQ_URL", matches = ".+")
class ApplicationTest {

    private static final Duration PATIENCE = Duration.ofMinutes(1);

    @Autowired
    private RabbitTemplate rabbit;
    @Autowired
    private Application.Orders orders;

    @DynamicPropertySource
    static void broker(DynamicPropertyRegistry properties) {
        properties.add("spring.rabbitmq.addresses", () -> System.getenv("RETRYRMQ_URL"));
    }

    @Test
    void theSampleRetriesDefersAndParks() {
        rabbit.convertAndSend("example.orders", "7");
        rabbit.convertAndSend("example.orders", "busy");
        rabbit.convertAndSend("example.orders", "too early");
        await().atMost(PATIENCE).until(() -> orders.sent.size() == 3);
        assertThat(orders.sent).containsExactlyInAnyOrder("7, attempt 2", "busy, attempt 2", "too early, attempt 1");

        rabbit.convertAndSend("example.orders", "unknown customer");
        Message parked = rabbit.receive("example.orders.parked", PATIENCE.toMillis());
        assertThat(parked.getMessageProperties().getHeaders()).containsEntry("x-retry-parked-reason", "requested")
                .containsEntry("x-retry-error", "no such customer");
        rabbit.convertAndSend("example.orders", "not a number");
        parked = rabbit.receive("example.orders.parked", PATIENCE.toMillis());
        assertThat(parked.getMessageProperties().getHeaders()).containsEntry("x-retry-parked-reason", "fatal");
    }
}
