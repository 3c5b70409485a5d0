package io.github.retryrmq.spring;

import java.util.List;

import org.jspecify.annotations.Nullable;

/** The options that can be given for all queues and for one. */
public class QueueProperties {

    /** Whether failed messages are retried and parked. */
    private @Nullable Boolean dlx;
    /** The policy for failures that no rule matches. */
    private @Nullable String retry;
    /** Other policies, by the error's type, a header or the routing key; the first rule that matches decides. */
    private @Nullable List<String> rules;
    /** Whether messages that will not be retried again are parked. If off, they are acknowledged and dropped. */
    private @Nullable Boolean park;
    /** Errors that a retry cannot fix: the message is parked at once. */
    private @Nullable List<Class<? extends Throwable>> fatal;
    /** Whether missing waiting and parking queues are created. */
    private @Nullable Boolean declare;
    /** After how many crashes of its consumer a message is parked. */
    private @Nullable Integer crashLimit;
    /** After how many deferrals a message is parked. */
    private @Nullable Integer deferLimit;
    /** The version of the application, for the history of each message. */
    private @Nullable String appVersion;

    RetryOptions over(RetryOptions options) {
        options = dlx == null ? options : options.dlx(dlx);
        options = retry == null ? options : options.retry(retry);
        options = rules == null ? options : options.rules(rules.toArray(String[]::new));
        options = park == null ? options : options.park(park);
        options = fatal == null ? options : options.fatal(fatal);
        options = declare == null ? options : options.declare(declare);
        options = crashLimit == null ? options : options.crashLimit(crashLimit);
        options = deferLimit == null ? options : options.deferLimit(deferLimit);
        return appVersion == null ? options : options.appVersion(appVersion);
    }

    public void setDlx(Boolean dlx) {
        this.dlx = dlx;
    }

    public void setRetry(String retry) {
        this.retry = retry;
    }

    public void setRules(List<String> rules) {
        this.rules = rules;
    }

    public void setPark(Boolean park) {
        this.park = park;
    }

    public void setFatal(List<Class<? extends Throwable>> fatal) {
        this.fatal = fatal;
    }

    public void setDeclare(Boolean declare) {
        this.declare = declare;
    }

    public void setCrashLimit(Integer crashLimit) {
        this.crashLimit = crashLimit;
    }

    public void setDeferLimit(Integer deferLimit) {
        this.deferLimit = deferLimit;
    }

    public void setAppVersion(String appVersion) {
        this.appVersion = appVersion;
    }
}
