package io.github.retryrmq.spring;

import java.util.HashMap;
import java.util.Map;

import org.springframework.boot.context.properties.ConfigurationProperties;

/** The options of all queues, and in {@code retryrmq.queues[NAME]} those of one. */
@ConfigurationProperties("retryrmq")
public class RetryrmqProperties extends QueueProperties {

    /** Options of single queues, by their names. What is not given here has the value for all queues. */
    private final Map<String, QueueProperties> queues = new HashMap<>();

    public Map<String, QueueProperties> getQueues() {
        return queues;
    }

    /** The options of a queue. */
    RetryOptions options(String queue) {
        RetryOptions all = over(new RetryOptions().dlx(false));
        return queues.containsKey(queue) ? queues.get(queue).over(all) : all;
    }

    boolean isOnAnywhere() {
        return isOn(this) || queues.values().stream().anyMatch(RetryrmqProperties::isOn);
    }

    private static boolean isOn(QueueProperties properties) {
        return properties.over(new RetryOptions().dlx(false)).dlx;
    }
}
