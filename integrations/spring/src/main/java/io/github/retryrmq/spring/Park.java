package io.github.retryrmq.spring;

/** Thrown by a listener to park its message now, as {@code requested}. */
public class Park extends RuntimeException {

    /** @param reason what people read in the record */
    public Park(String reason) {
        super(reason);
    }

    /** @param reason what people read in the record; {@code cause} is in its stack */
    public Park(String reason, Throwable cause) {
        super(reason, cause);
    }
}
