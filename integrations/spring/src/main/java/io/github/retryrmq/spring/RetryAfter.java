package io.github.retryrmq.spring;

import java.time.Duration;

/** Thrown by a listener whose attempt failed, and that knows when the next one makes sense. It uses up a retry like any failure. */
public class RetryAfter extends RuntimeException {

    private final transient Duration delay;

    /** @param delay until the next attempt, 1 ms to 365 days */
    public RetryAfter(Duration delay, String message) {
        this(delay, message, null);
    }

    /** @param delay until the next attempt, 1 ms to 365 days */
    public RetryAfter(Duration delay, String message, Throwable cause) {
        super(message, cause);
        this.delay = delay;
    }

    /** @return the time until the next attempt */
    public Duration delay() {
        return delay;
    }
}
