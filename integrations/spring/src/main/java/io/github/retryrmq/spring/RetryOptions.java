package io.github.retryrmq.spring;

import java.util.Collection;
import java.util.List;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * What happens to the failed messages of a queue. The options have the names, defaults and texts of all languages of retryrmq. Each method returns a
 * changed copy; all throw {@link IllegalArgumentException} with a sentence that says what to change.
 */
public final class RetryOptions implements Cloneable {

    boolean dlx = true;
    Policy retry = Policy.parse("exponential(1s, factor=4, max=5m, retries=5)");
    List<Rule> rules = List.of();
    boolean park = true;
    List<Class<? extends Throwable>> fatal = List.of();
    boolean declare = true;
    int crashLimit = 10;
    int deferLimit = 1_000;
    String appVersion = "";

    /** Whether failed messages are retried and parked; on by default. If off, Spring does what it always does. */
    public RetryOptions dlx(boolean dlx) {
        return with(it -> it.dlx = dlx);
    }

    /** The policy for failures that no rule matches, such as {@code fixed(5s, retries=3)}; by default 1, 4, 16, 64 and 256 seconds. */
    public RetryOptions retry(String policy) {
        return with(it -> it.retry = Policy.parse(policy));
    }

    /** Other policies, such as {@code error=*Timeout* => fixed(1s)}. The first rule that matches decides. */
    public RetryOptions rules(String... rules) {
        return with(it -> it.rules = Stream.of(rules).map(Rule::parse).toList());
    }

    /** Whether messages that will not be retried again are parked; on by default. If off, they are acknowledged and dropped. */
    public RetryOptions park(boolean park) {
        return with(it -> it.park = park);
    }

    /** Errors that a retry cannot fix, besides those that Spring AMQP itself takes for fatal. Their messages are parked at once. */
    public RetryOptions fatal(Collection<Class<? extends Throwable>> fatal) {
        return with(it -> it.fatal = List.copyOf(fatal));
    }

    /** Whether missing waiting and parking queues are created; on by default. If off, they must exist. */
    public RetryOptions declare(boolean declare) {
        return with(it -> it.declare = declare);
    }

    /** After how many crashes of its consumer a message is parked as {@code delivery-limit}; 10 by default. */
    public RetryOptions crashLimit(int crashes) {
        if (crashes < 1) {
            throw new IllegalArgumentException("`crash-limit` must be at least 1");
        }
        return with(it -> it.crashLimit = crashes);
    }

    /** After how many deferrals a message is parked as {@code exhausted}; 1000 by default. */
    public RetryOptions deferLimit(int deferrals) {
        if (deferrals < 0) {
            throw new IllegalArgumentException("`defer-limit` must be at least 0");
        }
        return with(it -> it.deferLimit = deferrals);
    }

    /** The version of the application, which the history of each message names. */
    public RetryOptions appVersion(String version) {
        return with(it -> it.appVersion = version);
    }

    /** Every policy that may decide, the one without conditions first. */
    Stream<Policy> policies() {
        return Stream.concat(Stream.of(retry), rules.stream().map(Rule::policy));
    }

    private RetryOptions with(Consumer<RetryOptions> change) {
        try {
            RetryOptions copy = (RetryOptions) clone();
            change.accept(copy);
            return copy;
        } catch (CloneNotSupportedException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
