package io.github.retryrmq.spring;

import org.springframework.amqp.ImmediateRequeueAmqpException;

/** A failed message could not be copied, so it is not acknowledged: its container requeues it. */
public class CopyNotStoredException extends ImmediateRequeueAmqpException {

    CopyNotStoredException(String message, Throwable cause) {
        super(message, cause);
    }
}
