package io.github.retryrmq.spring;

import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.support.AmqpHeaders;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.handler.annotation.Header;

/** A program for tests that kill it: every third message fails at its first attempt. */
@Configuration
@EnableAutoConfiguration
class Worker {

    public static void main(String[] arguments) {
        new SpringApplicationBuilder(Worker.class).web(WebApplicationType.NONE).properties("spring.rabbitmq.addresses=" + arguments[0], "retryrmq.dlx=true",
                "retryrmq.retry=fixed(300ms, retries=3)", "spring.rabbitmq.listener.simple.prefetch=20",
                "spring.rabbitmq.listener.simple.concurrency=" + arguments[1], "logging.level.root=off", "spring.main.banner-mode=off").run();
    }

    @Bean
    Queue orders() {
        return Retryrmq.workQueue("orders");
    }

    @RabbitListener(queues = "orders")
    void handle(String body, @Header(name = AmqpHeaders.RETRY_COUNT, required = false) Long retries) throws InterruptedException {
        Thread.sleep(5);
        if (Integer.parseInt(body) % 3 == 0 && (retries == null || retries == 0)) {
            throw new IllegalStateException("the first attempt fails");
        }
        System.out.println("handled " + body);
    }
}
