package io.github.retryrmq.spring;

import java.time.Duration;

/** Thrown by a listener that cannot handle its message yet. The message comes back later; this is no failure and uses up no retry. */
public class Defer extends RuntimeException {

    private final transient Duration delay;

    /** @param delay until the message comes back, 1 ms to 365 days */
    public Defer(Duration delay) {
        super("deferred for " + delay);
        this.delay = delay;
    }

    /** @return the time until the message comes back */
    public Duration delay() {
        return delay;
    }
}
