package example;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

import io.github.retryrmq.spring.Defer;
import io.github.retryrmq.spring.Park;
import io.github.retryrmq.spring.RetryAfter;
import io.github.retryrmq.spring.Retryrmq;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.support.AmqpHeaders;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.stereotype.Component;

/** A worker whose failed messages are retried and parked. */
@SpringBootApplication
public class Application {

    public static void main(String[] arguments) {
        SpringApplication.run(Application.class, arguments);
    }

    /** Only if the queue is new. An existing one needs no change: declare it as before. */
    @Bean
    Queue orders() {
        return Retryrmq.workQueue("example.orders");
    }

    /** What happens to a message is decided by what its listener throws. */
    @Component
    public static class Orders {

        /** What was sent, for the test of this example. */
        public final List<String> sent = new CopyOnWriteArrayList<>();

        @RabbitListener(queues = "example.orders")
        void send(String order, @Header(AmqpHeaders.RETRY_COUNT) long retries) {
            switch (order) {
                case "unknown customer" -> throw new Park("no such customer"); // parked now
                case "not a number" -> throw new IllegalArgumentException(order); // parked now, because of `retryrmq.fatal`
                case "busy" -> {
                    if (retries == 0) {
                        throw new RetryAfter(Duration.ofMillis(200), "the shop asked us to wait"); // an attempt that failed
                    }
                }
                case "too early" -> {
                    if (sent.isEmpty()) {
                        throw new Defer(Duration.ofMillis(200)); // no failure
                    }
                }
                default -> {
                    if (retries < 1) {
                        throw new IllegalStateException("the shop does not answer"); // retried by the policy
                    }
                }
            }
            sent.add(order + ", attempt " + (retries + 1));
        }
    }
}
